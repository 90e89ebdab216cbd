"""What comes in: the query of listPets, the body of createPet, the id of getPet."""

import io
import json
import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qs

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate

from errors import ServiceError

MAX_BODY_BYTES = 64 * 1024
CANONICAL_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")

LIMIT = validate.Range(1, 100)
AFTER = validate.Range(0, 2**63 - 1)
INT64 = validate.Range(-(2**63), 2**63 - 1)
STATUS = validate.OneOf(("available", "pending", "sold"))

# What to send, whichever way a member or parameter is at fault.
RULES = {
    "limit": f"must be one decimal integer from {LIMIT.min} to {LIMIT.max}",
    "after": f"must be one decimal integer from {AFTER.min} to {AFTER.max}",
    "name": "must be a string without lone surrogates",
    "categoryId": f"must be an integer from {INT64.min} to {INT64.max}",
    "status": f"must be one of {', '.join(STATUS.choices)}",
}

EXAMPLE = 'Send a pet such as {"name": "Rex", "categoryId": 1}.'


class ListQuery(NamedTuple):
    """Which pets to list: at most `limit`, of one status or any, ids past `after`."""

    limit: int
    status: str | None
    after: int


class NewPet(NamedTuple):
    """A pet to add, as the contract's NewPet has it."""

    name: str
    category_id: int
    status: str


class DecimalInteger(fields.Integer):
    """An integer of the query string, in canonical decimal digits."""

    def _deserialize(self, value: object, *args: object, **kwargs: object) -> int:
        if isinstance(value, str) and CANONICAL_DECIMAL.fullmatch(value):
            return int(value)
        raise self.make_error("invalid")


def _encodable(text: str) -> None:
    # JSON can spell a lone surrogate (RFC 8259, section 8.2), UTF-8 cannot hold one.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(str(error)) from None


class ListQuerySchema(Schema):
    """The query parameters of listPets; others are ignored."""

    class Meta:
        unknown = EXCLUDE

    limit = DecimalInteger(load_default=20, validate=LIMIT)
    status = fields.String(load_default=None, validate=STATUS)
    after = DecimalInteger(load_default=0, validate=AFTER)


class NewPetSchema(Schema):
    """The contract's NewPet; other members are ignored."""

    class Meta:
        unknown = EXCLUDE

    name = fields.String(required=True, validate=_encodable)
    category_id = fields.Integer(
        data_key="categoryId", required=True, strict=True, validate=INT64
    )
    status = fields.String(load_default="available", validate=STATUS)


LIST_QUERY_SCHEMA = ListQuerySchema()
NEW_PET_SCHEMA = NewPetSchema()


@lru_cache(maxsize=256)
def parse_list_query(query_string: str) -> ListQuery:
    """Return what a query string asks for, or raise `invalid_query`.

    Clients repeat their queries, so the latest are remembered.
    """
    given = parse_qs(query_string, keep_blank_values=True)
    for name in LIST_QUERY_SCHEMA.fields:
        if len(given.get(name, ())) > 1:
            message = f"{name} is given twice, it {RULES[name]}."
            raise ServiceError("invalid_query", message)
    values = {name: texts[0] for name, texts in given.items()}
    return ListQuery(**_load(LIST_QUERY_SCHEMA, values, "invalid_query"))


def read_new_pet() -> NewPet:
    """Return the NewPet in the request's body.

    Raises unsupported_media_type, body_too_large, malformed_body or invalid_body, in
    this order; malformed_body also, before the others, where there is no body at all.
    """
    _check_headers()
    members = _parse_json(_read_body())
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", f"The body is no JSON object. {EXAMPLE}")
    return NewPet(**_load(NEW_PET_SCHEMA, members, "invalid_body"))


def parse_pet_id(text: str) -> int | None:
    """Return the id that a path segment spells, or None where no pet can have it."""
    if CANONICAL_DECIMAL.fullmatch(text) and int(text) <= INT64.max:
        return int(text)
    return None


def _load(schema: Schema, values: dict[str, Any], error_code: str) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = schema.load(values)
    except ValidationError as error:
        faults = [
            f"{name} {'' if name in values else 'is missing, it '}{RULES[name]}"
            for name in error.messages_dict
        ]
        raise ServiceError(error_code, f"{'; '.join(faults)}.") from None
    return loaded


def _malformed(reason: str) -> ServiceError:
    return ServiceError("malformed_body", f"The body {reason}. {EXAMPLE}")


def _check_headers() -> None:
    """Raise unless the headers announce a JSON body that is not too large."""
    environ = request.environ
    if not request.content_length and "HTTP_TRANSFER_ENCODING" not in environ:
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
    _check_size(request.content_length or 0)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        message = f"Send a body of at most {MAX_BODY_BYTES} bytes."
        raise ServiceError("body_too_large", message)


def _read_body() -> bytes:
    # The stream of Flask's own server shortens a buffer that it has been lent, which
    # ends the process (SIGSEGV); it cannot shorten the one of a BufferedReader.
    stream: Any = request.stream
    if isinstance(stream, io.RawIOBase):
        stream = io.BufferedReader(stream)
    try:
        # A byte more than is allowed, to see that there is one. MAX_CONTENT_LENGTH
        # would cut a chunked body there and take the beginning for the whole.
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
    except Exception:
        # Every server has exceptions of its own for a body that breaks off.
        raise _malformed("breaks off or its chunks are malformed") from None
    _check_size(len(body))
    if len(body) < (request.content_length or 0):
        raise _malformed("is shorter than its Content-Length")
    return body


def _number(literal: str) -> int | Decimal | None:
    """Read a number; a whole one within int64 is an int however it is written."""
    try:
        number = Decimal(literal)
    except InvalidOperation:
        return None  # its exponent is past what decimal can hold: no member takes it
    # The range comes first: a whole number can have a billion digits.
    if INT64.min <= number <= INT64.max and number == int(number):
        return int(number)
    return number


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
