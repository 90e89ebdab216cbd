"""What comes in: the query of listPets, the body of createPet, the id of getPet."""

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


# marshmallow's Schema checks and converts each field: first, `pre_load` gets the text
# and returns text; last, `validate` gets the value and only raises. A field that is
# missing has its `load_default`. Its name in the JSON is its `data_key`, if it has one.


def _require_decimal(text: str) -> str:
    # int() alone would take 1_0, +5, and the digits of other scripts.
    if not CANONICAL_DECIMAL.fullmatch(text):
        raise ValidationError("Must be 1 to 19 digits, with no sign or leading zero.")
    return text


def _require_encodable(text: str) -> None:
    # JSON can spell half a character, "\ud800" (RFC 8259, section 8.2): a surrogate
    # without its other half. UTF-8, and so SQLite, cannot hold it.
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError("Must not contain lone surrogates.") from None


class ListQuery(Schema):
    """The query parameters of listPets."""

    limit = fields.Integer(
        load_default=20, pre_load=_require_decimal, validate=validate.Range(1, 100)
    )
    status = fields.String(load_default=None, validate=STATUS)
    after = fields.Integer(
        load_default=0, pre_load=_require_decimal, validate=validate.Range(0, INT64.max)
    )


class NewPet(Schema):
    """The contract's NewPet."""

    name = fields.String(required=True, validate=_require_encodable)
    # Strict: without it, 1.5 would become 1.
    category_id = fields.Integer(
        data_key="categoryId", required=True, strict=True, validate=INT64
    )
    status = fields.String(load_default="available", validate=STATUS)


# Parameters and members that the contract does not name are ignored.
LIST_QUERY = ListQuery(unknown=EXCLUDE)
NEW_PET = NewPet(unknown=EXCLUDE)


@lru_cache(maxsize=256)
def parse_list_query(query_string: str) -> Mapping[str, Any]:
    """Return the limit, status and after of a query string, or raise `invalid_query`.

    Clients repeat their queries, so the latest are remembered.
    """
    # Each name with all its values, as in {"limit": ["1", "2"]}.
    given = parse_qs(query_string, keep_blank_values=True)
    repeated = [name for name in LIST_QUERY.fields if len(given.get(name, ())) > 1]
    if repeated:
        message = f"Give {' and '.join(repeated)} only once."
        raise ServiceError("invalid_query", message, 400)
    values = {name: texts[0] for name, texts in given.items()}
    return _load(LIST_QUERY, values, "invalid_query")


def read_body_as(schema: Schema) -> dict[str, Any]:
    """Return what a schema loads from the JSON object in the request's body.

    Raises ServiceError, in this order: malformed_body (there is no body),
    unsupported_media_type, body_too_large, malformed_body (cut short, or no JSON),
    invalid_body. request.get_json would take a member given twice, round numbers, and
    explain less.
    """
    _check_headers()
    members = _parse_json(_read_body())
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", "Send a JSON object.", 400)
    return _load(schema, members, "invalid_body")


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
            f"{name}: {' '.join(messages)}"
            for name, messages in error.messages_dict.items()
        ]
        raise ServiceError(error_code, " ".join(faults), 400) from None
    return loaded


def _malformed(reason: str) -> ServiceError:
    return ServiceError("malformed_body", f"The body {reason}.", 400)


def _check_headers() -> None:
    """Raise unless the headers announce a JSON body that is not too large."""
    # A client tells the length of a body before it or, where it cannot know yet, sends
    # it in pieces (chunks), which Transfer-Encoding tells.
    if not request.content_length and "Transfer-Encoding" not in request.headers:
        raise _malformed("is missing: send JSON")
    if request.mimetype != "application/json":
        message = "Send the body as 'Content-Type: application/json'."
        headers = [("Accept", "application/json")]
        raise ServiceError("unsupported_media_type", message, 415, headers)
    coding = request.headers.get("Content-Encoding", "").lower()
    if coding not in ("", "identity"):
        headers = [("Accept-Encoding", "identity")]
        message = "Send the body uncompressed."
        raise ServiceError("unsupported_media_type", message, 415, headers)
    _check_size(request.content_length or 0)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        message = f"Send a body of at most {MAX_BODY_BYTES} bytes."
        raise ServiceError("body_too_large", message, 413)


def _read_body() -> bytes:
    # Under `flask run` it is a RawIOBase: read() may return too little and, at a chunk
    # cut short, read past its memory (SIGSEGV). A BufferedReader raises an error.
    stream: Any = request.stream
    if isinstance(stream, io.RawIOBase):
        stream = io.BufferedReader(stream)
    try:
        # One byte more than is allowed shows that there is more. By MAX_CONTENT_LENGTH,
        # a setting of Flask's, a larger body in chunks would end here as malformed.
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
    except Exception:
        # Every server has exceptions of its own for a body that breaks off.
        raise _malformed("breaks off, or its chunks are malformed") from None
    _check_size(len(body))
    if len(body) < (request.content_length or 0):
        raise _malformed("is shorter than its Content-Length")
    return body


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode(),
            # Called for each object, each number, and each NaN and Infinity.
            object_pairs_hook=_without_repeats,
            parse_int=_read_number,
            parse_float=_read_number,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {error}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is given twice")
    return members


def _read_number(literal: str) -> int | Decimal:
    """Read a number; a whole one is an int however it is written, as 1.0 or 1e3.

    By Decimal: a float would turn 9007199254740993.0 into another number, and int takes
    no more than 4,300 digits.
    """
    try:
        number = Decimal(literal)
    except InvalidOperation:
        return Decimal("NaN")  # past what decimal can hold: the schema refuses it
    # As an int, 1e999999999 would fill the memory: it is left for the schema to refuse,
    # as is all that is far beyond int64.
    if -(10**20) < number < 10**20 and number == int(number):
        return int(number)
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
