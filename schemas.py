"""What comes in: the body of createPet, the query of listPets, the id of getPet."""

import json
import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qs

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate

from errors import ServiceError

STATUSES = ("available", "pending", "sold")
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_BODY_BYTES = 64 * 1024
CANONICAL_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")

EXAMPLE = 'Send a pet such as {"name": "Rex", "categoryId": 1}.'

# What to send, whichever way a member or parameter is at fault.
RULES = {
    "name": "must be a string without lone surrogates",
    "categoryId": f"must be an integer from {INT64_MIN} to {INT64_MAX}",
    "status": f"must be one of {', '.join(STATUSES)}",
    "limit": "must be one decimal integer from 1 to 100",
    "after": f"must be one decimal integer from 0 to {INT64_MAX}",
}


class NewPet(NamedTuple):
    """A pet to add, as the contract's NewPet has it."""

    name: str
    category_id: int
    status: str


class ListQuery(NamedTuple):
    """Which pets to list: at most `limit`, of one status or any, ids past `after`."""

    limit: int
    status: str | None
    after: int


def _encodable(text: str) -> None:
    # JSON can spell a lone surrogate (RFC 8259, section 8.2), UTF-8 cannot hold one.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(str(error)) from None


class DecimalInteger(fields.Integer):
    """An integer of the query string, in canonical decimal digits and given once."""

    def _deserialize(self, value: object, *args: object, **kwargs: object) -> int:
        if isinstance(value, str) and CANONICAL_DECIMAL.fullmatch(value):
            return int(value)
        raise self.make_error("invalid")


class NewPetSchema(Schema):
    """The contract's NewPet; other members are ignored."""

    class Meta:
        unknown = EXCLUDE

    name = fields.String(required=True, validate=_encodable)
    category_id = fields.Integer(
        data_key="categoryId",
        required=True,
        strict=True,
        validate=validate.Range(INT64_MIN, INT64_MAX),
    )
    status = fields.String(load_default="available", validate=validate.OneOf(STATUSES))


class ListQuerySchema(Schema):
    """The query parameters of listPets; others are ignored."""

    class Meta:
        unknown = EXCLUDE

    limit = DecimalInteger(load_default=20, validate=validate.Range(1, 100))
    status = fields.String(load_default=None, validate=validate.OneOf(STATUSES))
    after = DecimalInteger(load_default=0, validate=validate.Range(0, INT64_MAX))


NEW_PET_SCHEMA = NewPetSchema()
LIST_QUERY_SCHEMA = ListQuerySchema()


def _load(schema: Schema, data: dict[str, Any], error_code: str) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = schema.load(data)
    except ValidationError as error:
        faults = [
            f"{name} {'' if name in data else 'is missing, it '}{RULES[name]}"
            for name in error.messages_dict
        ]
        raise ServiceError(error_code, f"{'; '.join(faults)}.") from None
    return loaded


@lru_cache(maxsize=256)
def parse_list_query(query_string: str) -> ListQuery:
    """Return what a query string asks for, or raise `invalid_query`.

    Clients repeat their queries, so the latest are remembered.
    """
    given = parse_qs(query_string, keep_blank_values=True)
    # A repeated parameter stays a list, which no field takes.
    once = {name: v[0] if len(v) == 1 else v for name, v in given.items()}
    return ListQuery(**_load(LIST_QUERY_SCHEMA, once, "invalid_query"))


def parse_pet_id(text: str) -> int | None:
    """Return the id that a path segment spells, or None where no pet can have it."""
    if CANONICAL_DECIMAL.fullmatch(text) and int(text) <= INT64_MAX:
        return int(text)
    return None


def read_new_pet() -> NewPet:
    """Return the NewPet in the request's body.

    Raises unsupported_media_type, body_too_large, malformed_body or invalid_body, in
    this order.
    """
    body = _parse_json(_read_body())
    if not isinstance(body, dict):
        raise ServiceError("invalid_body", f"The body is no JSON object. {EXAMPLE}")
    return NewPet(**_load(NEW_PET_SCHEMA, body, "invalid_body"))


def _malformed(reason: str) -> ServiceError:
    return ServiceError("malformed_body", f"The body {reason}. {EXAMPLE}")


def _read_body() -> bytes:
    environ = request.environ
    length = request.content_length
    if not length and "HTTP_TRANSFER_ENCODING" not in environ:
        raise _malformed("is missing")
    if request.mimetype != "application/json":
        raise ServiceError(
            "unsupported_media_type",
            "Send the body as 'Content-Type: application/json'.",
            [("Accept", "application/json")],
        )
    codings = (
        environ.get("HTTP_CONTENT_ENCODING", "identity").lower(),
        environ.get("HTTP_TRANSFER_ENCODING", "chunked").lower(),
    )
    if codings != ("identity", "chunked"):
        raise ServiceError(
            "unsupported_media_type",
            "Send the body uncompressed.",
            [("Accept-Encoding", "identity")],
        )
    too_large = (length or 0) > MAX_BODY_BYTES
    body = b"" if too_large else _read_stream()
    if too_large or len(body) > MAX_BODY_BYTES:
        message = f"Send a body of at most {MAX_BODY_BYTES} bytes."
        raise ServiceError("body_too_large", message)
    if len(body) < (length or 0):
        raise _malformed("is shorter than its Content-Length")
    return body


def _read_stream() -> bytes:
    # A byte more than is allowed, to see that there is one. MAX_CONTENT_LENGTH would
    # cut a chunked body there and take the beginning for the whole.
    stream = request.stream
    try:
        return stream.read(MAX_BODY_BYTES + 1)
    except Exception:
        # Every server has exceptions of its own for a body that breaks off.
        raise _malformed("breaks off or its chunks are malformed") from None


def _number(literal: str) -> int | float:
    """Read a number; a whole one within int64 is an int however it is written."""
    try:
        number = Decimal(literal)
        if INT64_MIN <= number <= INT64_MAX and number == int(number):
            return int(number)
    except InvalidOperation:
        pass  # an exponent past what decimal can hold
    return float(literal)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise ValueError(f"gives the member {json.dumps(name[:40])} twice")
        found[name] = value
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"contains {name}, which is not JSON")


DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_number,
    parse_float=_number,
    parse_constant=_constant,
)


def _parse_json(body: bytes) -> Any:
    try:
        return DECODER.decode(body.decode())
    except UnicodeDecodeError:
        raise _malformed("is not UTF-8") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _malformed(f"is not JSON at {place} ({error.msg})") from None
    except RecursionError:
        raise _malformed("is nested too deeply") from None
    except ValueError as error:
        raise _malformed(str(error)) from None
