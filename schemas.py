"""Input: queries and bodies.

The schemas are marshmallow's: https://marshmallow.readthedocs.io/en/stable/quickstart.html
Read its sections on loading, validation, required fields and unknown fields.
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
is_status = validate.OneOf(("available", "pending", "sold"))


class ListQuery(Schema):
    """The query parameters of listPets."""

    limit = fields.Integer(load_default=20, validate=validate.Range(1, 100))
    status = fields.String(load_default=None, validate=is_status)
    after = fields.Integer(load_default=0, validate=validate.Range(0, MAX_INT64))


class NewPet(Schema):
    """The contract's NewPet.

    `NEW_PET.load({"name": "Rex", "categoryId": 1})` returns `{"name": "Rex",
    "category_id": 1, "status": "available"}`, or raises ValidationError.
    """

    # A lone surrogate is one half of a character in UTF-16: "\ud83d" without "\udc08".
    # json.loads accepts it, but UTF-8 cannot encode it.
    name = fields.String(
        required=True,
        validate=validate.Regexp(
            r"[^\ud800-\udfff]*\Z", error="Must not contain lone surrogates."
        ),
    )
    category_id = fields.Integer(
        data_key="categoryId",
        required=True,
        strict=True,  # Otherwise, "1" and 1.5 would become 1.
        error_messages={"invalid": "Must be an integer, in JSON without quotes."},
        validate=validate.Range(-MAX_INT64 - 1, MAX_INT64),
    )
    status = fields.String(load_default="available", validate=is_status)


# EXCLUDE: unknown query parameters and members are ignored.
LIST_QUERY = ListQuery(unknown=EXCLUDE)
NEW_PET = NewPet(unknown=EXCLUDE)


# Clients repeat a few queries, so lru_cache keeps the latest results. Without it,
# listPets takes a tenth longer. Requests share these results: do not change them.
@lru_cache(maxsize=256)
def parse_list_query(query_string: bytes) -> Mapping[str, Any]:
    """Return the limit, status and after of a query string.

    Raise ServiceError (`invalid_query`) if a parameter is not valid. (Not request.args:
    Flask would parse it even for a query string in the cache.)
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
    try:
        body = request.get_data()
        if body and not request.is_json:
            message = "Send the body as 'Content-Type: application/json'."
            raise ServiceError("unsupported_media_type", message, 415)
        if len(body) < (request.content_length or 0):
            raise ValueError("it is shorter than its Content-Length")
        members = json.loads(body, parse_float=parse_float)
    except (RequestEntityTooLarge, ServiceError):
        raise
    # A server may raise an exception of its own for a body that it cannot read. json
    # raises ValueError, or RecursionError if the body is nested too deeply.
    except Exception as error:
        message = f"Send a JSON object. The body could not be read: {error}."
        raise ServiceError("malformed_body", message, 400) from error
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", "Send a JSON object.", 400)
    return load(schema, members, "invalid_body")


def parse_float(text: str) -> int | float:
    """Return 1.0 and 1e3 as integers, and 1.5 as a float.

    In JSON Schema, 1.0 is an integer (Validation, section 6.1.1). Floats of 2^53 or
    more may have been rounded, so they stay floats, and categoryId refuses them.
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
