"""Input: the query of listPets, the body of createPet, and the id of getPet."""

import io
import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import parse_qs

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate

from errors import ServiceError

MAX_BODY_BYTES = 64 * 1024
# At most 19 digits, as many as 2^63 has.
CANONICAL_DECIMAL = re.compile("0|[1-9][0-9]{0,18}")
INT64 = validate.Range(-(2**63), 2**63 - 1)
STATUS = validate.OneOf(("available", "pending", "sold"))


def require_canonical_decimal(text: str) -> str:
    """Return the text unchanged, or raise ValidationError.

    int() alone would accept 1_0, +5, and the digits of other scripts.
    """
    if not CANONICAL_DECIMAL.fullmatch(text):
        raise ValidationError("Must be 1 to 19 digits, with no sign or leading zero.")
    return text


def require_no_surrogates(text: str) -> None:
    """Raise ValidationError if the text contains a lone surrogate.

    JSON can express one, as in "\\ud800" (RFC 8259, section 8.2), but UTF-8 cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError("Must not contain lone surrogates.") from error


class ListQuery(Schema):
    """The query parameters of listPets."""

    limit = fields.Integer(
        load_default=20,
        pre_load=require_canonical_decimal,
        validate=validate.Range(1, 100),
    )
    status = fields.String(load_default=None, validate=STATUS)
    after = fields.Integer(
        load_default=0,
        pre_load=require_canonical_decimal,
        validate=validate.Range(0, INT64.max),
    )


class NewPet(Schema):
    """The contract's NewPet."""

    name = fields.String(required=True, validate=require_no_surrogates)
    # strict: 1.5 is an error, and does not become 1.
    category_id = fields.Integer(
        data_key="categoryId", required=True, strict=True, validate=INT64
    )
    status = fields.String(load_default="available", validate=STATUS)


# Unknown query parameters and members are ignored.
LIST_QUERY = ListQuery(unknown=EXCLUDE)
NEW_PET = NewPet(unknown=EXCLUDE)


# Clients repeat their queries, so the latest results are kept.
@lru_cache(maxsize=256)
def parse_list_query(query_string: str) -> Mapping[str, Any]:
    """Return the limit, status and after of a query string.

    Raise ServiceError (`invalid_query`) if a parameter is not valid or is repeated.
    """
    values_by_name = parse_qs(query_string, keep_blank_values=True)
    repeated = [
        name for name in LIST_QUERY.fields if len(values_by_name.get(name, [])) > 1
    ]
    if repeated:
        message = f"Send {' and '.join(repeated)} only once."
        raise ServiceError("invalid_query", message, 400)
    values = {name: values[0] for name, values in values_by_name.items()}
    return load(LIST_QUERY, values, "invalid_query")


def parse_body(schema: Schema) -> dict[str, Any]:
    """Validate the JSON object in the request's body, and return it with defaults.

    Raise ServiceError if the body is missing, too large, of another media type, not
    valid JSON, or if it does not match the schema.

    This does not use request.get_json, which accepts repeated members and incomplete
    bodies, and rounds large numbers.
    """
    check_headers()
    members = parse_json(read_body())
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", "Send a JSON object.", 400)
    return load(schema, members, "invalid_body")


def parse_pet_id(text: str) -> int | None:
    """Return the id in a path, or None if no pet can have this id."""
    if CANONICAL_DECIMAL.fullmatch(text) and int(text) <= INT64.max:
        return int(text)
    return None


def load(schema: Schema, values: dict[str, Any], error_code: str) -> dict[str, Any]:
    """Validate values, and return them with defaults, or raise ServiceError."""
    try:
        loaded: dict[str, Any] = schema.load(values)
    except ValidationError as error:
        problems = [
            f"{name}: {' '.join(messages)}"
            for name, messages in error.messages_dict.items()
        ]
        raise ServiceError(error_code, " ".join(problems), 400) from error
    return loaded


def check_headers() -> None:
    """Raise ServiceError unless the headers announce a JSON body of an allowed size."""
    # A chunked body has no Content-Length.
    if not request.content_length and "Transfer-Encoding" not in request.headers:
        raise malformed_body("The body is missing. Send a JSON object.")
    if request.mimetype != "application/json":
        message = "Send the body as 'Content-Type: application/json'."
        headers = [("Accept", "application/json")]
        raise ServiceError("unsupported_media_type", message, 415, headers)
    encoding = request.headers.get("Content-Encoding", "").lower()
    if encoding not in ("", "identity"):
        headers = [("Accept-Encoding", "identity")]
        message = "Send the body uncompressed."
        raise ServiceError("unsupported_media_type", message, 415, headers)
    check_size(request.content_length or 0)


def check_size(size: int) -> None:
    """Raise ServiceError (413) if a body of this size is too large."""
    if size > MAX_BODY_BYTES:
        message = f"Send a body of at most {MAX_BODY_BYTES} bytes."
        raise ServiceError("body_too_large", message, 413)


def read_body() -> bytes:
    """Return the body, and raise ServiceError if it is too large or incomplete."""
    stream: Any = request.stream
    if isinstance(stream, io.RawIOBase):
        # The stream of `flask run` may return less than it is asked for, and its `read`
        # crashes Python (SIGSEGV) if the last chunk is cut short. BufferedReader calls
        # `readinto` instead, until it has everything.
        stream = io.BufferedReader(stream)
    try:
        # One byte more than allowed shows that a chunked body is too large.
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
    except Exception as error:
        # Each server raises exceptions of its own for an incomplete body.
        message = "The body is incomplete, or its chunks are malformed."
        raise malformed_body(message) from error
    check_size(len(body))
    if len(body) < (request.content_length or 0):
        raise malformed_body("The body is shorter than its Content-Length.")
    return body


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text, and raise ServiceError if it is not valid."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise malformed_body("The body is not valid UTF-8.") from error
    if text.startswith("\ufeff"):
        raise malformed_body("The body begins with a byte order mark.")
    try:
        return json.loads(
            text,
            object_pairs_hook=make_object,
            parse_int=parse_number,
            parse_float=parse_number,
            parse_constant=refuse_constant,
        )
    except json.JSONDecodeError as error:
        reason = f"{error.msg} (line {error.lineno}, column {error.colno})"
        raise malformed_body(f"The body is not valid JSON: {reason}.") from error
    except RecursionError as error:
        raise malformed_body("The body is nested too deeply.") from error


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object, or raise ServiceError if one is repeated."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise malformed_body(f"The body repeats the member {name[:100]!r}.")
        members[name] = value
    return members


def parse_number(literal: str) -> int | Decimal:
    """Return a JSON number: an int if it is a whole number, as 1.0 and 1e3 are.

    A float would round 9007199254740993.0, and int() accepts at most 4,300 digits.
    """
    try:
        number = Decimal(literal)
    except InvalidOperation:
        # The exponent is too large even for Decimal. The schema refuses NaN.
        return Decimal("NaN")
    # A number far outside of int64 stays a Decimal, which the schema refuses: as an
    # int, 1e999999999 would fill the memory.
    if -(10**20) < number < 10**20 and number == int(number):
        return int(number)
    return number


def refuse_constant(name: str) -> NoReturn:
    """Raise ServiceError for NaN, Infinity and -Infinity."""
    raise malformed_body(f"The body contains {name}, which is not valid JSON.")


def malformed_body(message: str) -> ServiceError:
    """Return the error for a body that cannot be read as JSON."""
    return ServiceError("malformed_body", message, 400)
