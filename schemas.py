"""Input: the query of listPets and the body of createPet.

The schemas are marshmallow's: https://marshmallow.readthedocs.io/en/stable/quickstart.html
The sections on loading, validation, required fields and unknown fields are enough.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate
from werkzeug.exceptions import RequestEntityTooLarge

from errors import ServiceError

MAX_INT64 = 2**63 - 1
STATUS = validate.OneOf(("available", "pending", "sold"))


def require_no_surrogates(text: str) -> None:
    """Raise ValidationError if the text contains a lone surrogate.

    That is one half of an escaped character: "\\ud83d" of "\\ud83d\\udc08" (a cat).
    json.loads accepts it (RFC 8259, section 8.2), but UTF-8 cannot express it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValidationError("Must not contain lone surrogates.") from error


class ListQuery(Schema):
    """The query parameters of listPets."""

    limit = fields.Integer(load_default=20, validate=validate.Range(1, 100))
    status = fields.String(load_default=None, validate=STATUS)
    after = fields.Integer(load_default=0, validate=validate.Range(0, MAX_INT64))


class NewPet(Schema):
    """The contract's NewPet.

    `NEW_PET.load({"name": "Rex", "categoryId": 1})` returns `{"name": "Rex",
    "category_id": 1, "status": "available"}`, or raises ValidationError.
    """

    name = fields.String(required=True, validate=require_no_surrogates)
    # strict: only an int is valid. Otherwise, "1" and 1.5 would become 1.
    category_id = fields.Integer(
        data_key="categoryId",
        required=True,
        strict=True,
        validate=validate.Range(-MAX_INT64 - 1, MAX_INT64),
    )
    status = fields.String(load_default="available", validate=STATUS)


# EXCLUDE: unknown query parameters and members are ignored.
LIST_QUERY = ListQuery(unknown=EXCLUDE)
NEW_PET = NewPet(unknown=EXCLUDE)


# Clients repeat a few queries, so lru_cache keeps the latest results. That saves a
# tenth of the time of listPets. Requests share these results: do not change them.
@lru_cache(maxsize=256)
def parse_list_query(query_string: bytes) -> Mapping[str, Any]:
    """Return the limit, status and after of a query string.

    Raise ServiceError (`invalid_query`) if a parameter is not valid. The argument is
    not request.args, which Flask would parse for each request.
    """
    text = query_string.decode(errors="replace")
    # In a dict, the last one of a repeated parameter counts.
    values = dict(parse_qsl(text, keep_blank_values=True))
    return load(LIST_QUERY, values, "invalid_query")


def parse_body(schema: Schema) -> dict[str, Any]:
    """Return the members of the JSON object in the request's body, with defaults.

    Raise ServiceError if the body is not a JSON object that matches the schema. Raise
    RequestEntityTooLarge if it is larger than MAX_CONTENT_LENGTH.
    """
    body = read_body()
    if body and not request.is_json:
        message = "Send the body as 'Content-Type: application/json'."
        raise ServiceError("unsupported_media_type", message, 415)
    try:
        members = json.loads(body, parse_float=parse_number)
    # json raises RecursionError for a body that is nested too deeply.
    except (ValueError, RecursionError) as error:
        raise malformed_body(error) from error
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", "Send a JSON object.", 400)
    return load(schema, members, "invalid_body")


def read_body() -> bytes:
    """Return the request's body, or raise ServiceError if it is cut short."""
    try:
        body = request.get_data()
    except RequestEntityTooLarge:
        raise
    except Exception as error:
        # Each server has exceptions of its own for a body that it cannot read.
        raise malformed_body(error) from error
    if len(body) < (request.content_length or 0):
        raise malformed_body("it is shorter than its Content-Length")
    return body


def malformed_body(reason: object) -> ServiceError:
    """Return the error for a body that cannot be read as JSON."""
    message = f"Send a JSON object. The body could not be read: {reason}."
    return ServiceError("malformed_body", message, 400)


def parse_number(text: str) -> int | float:
    """Return a number. json calls this for one with a fraction or an exponent.

    1.0 and 1e3 are integers (JSON Schema Validation, section 6.1.1). From 2^53 on, a
    float may be rounded. So it is not converted, and categoryId refuses floats.
    """
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def load(schema: Schema, values: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Return the values with defaults, or raise ServiceError with every problem."""
    try:
        loaded: dict[str, Any] = schema.load(values)
    except ValidationError as error:
        problems = [
            f"{name}: {' '.join(messages)}"
            for name, messages in error.messages_dict.items()
        ]
        raise ServiceError(code, " ".join(problems), 400) from error
    return loaded
