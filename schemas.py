"""Input: queries and bodies.

The schemas are marshmallow's: https://marshmallow.readthedocs.io/en/stable/quickstart.html
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from flask import request
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate
from werkzeug.exceptions import RequestEntityTooLarge

from errors import ServiceError

MAX_INT64 = 2**63 - 1
# In bytes. The contract names no limit. Without one, bodies could fill the memory.
MAX_BODY = 64 * 1024
STATUSES = ("available", "pending", "sold")
# A lone surrogate is one half of a character in UTF-16: "\ud83d" without "\udc08".
# json.loads accepts it, but SQLite stores UTF-8, which has none.
has_no_lone_surrogate = validate.Regexp(
    r"\A[^\ud800-\udfff]*\Z", error="Must not contain lone surrogates."
)


def error_messages(message: str) -> dict[str, Any]:
    """Return what a field says if marshmallow refuses its value.

    The keys are marshmallow's names of the errors. `message` says what to send.
    """
    return {"required": "Required.", "null": message, "invalid": message}


def status_field(**options: Any) -> fields.String:
    """Return a field for the contract's PetStatus."""
    message = f"Must be one of: {', '.join(STATUSES)}."
    rule = validate.OneOf(STATUSES, error=message)
    messages = error_messages(message)
    return fields.String(validate=rule, error_messages=messages, **options)


def integer_field(
    minimum: int, maximum: int, hint: str = "", **options: Any
) -> fields.Integer:
    """Return a field for an integer in a range. Its message ends with the hint."""
    message = f"Must be an integer from {minimum} to {maximum}{hint}."
    rule = validate.Range(minimum, maximum, error=message)
    messages = error_messages(message)
    return fields.Integer(validate=rule, error_messages=messages, **options)


class ListQuery(Schema):
    """The query parameters of listPets."""

    limit = integer_field(1, 100, load_default=20)
    status = status_field(load_default=None)
    after = integer_field(0, MAX_INT64, load_default=0)


class NewPet(Schema):
    """The contract's NewPet. `load` returns `category_id` for `categoryId`."""

    name = fields.String(
        required=True,
        validate=has_no_lone_surrogate,
        error_messages=error_messages("Must be a string."),
    )
    category_id = integer_field(
        -MAX_INT64 - 1,
        MAX_INT64,
        hint=", without quotes",
        data_key="categoryId",
        required=True,
        strict=True,  # Otherwise, "1" and 1.5 would become 1.
    )
    status = status_field(load_default="available")


# EXCLUDE: ignore unknown query parameters and members.
LIST_QUERY = ListQuery(unknown=EXCLUDE)
NEW_PET = NewPet(unknown=EXCLUDE)


def parse_query(schema: Schema) -> dict[str, Any]:
    """Return the query parameters with defaults, or raise ServiceError."""
    # Not request.args, which fails if the query has bytes that are not UTF-8.
    text = request.query_string.decode(errors="replace")
    # In a dict, the last one of a repeated parameter counts.
    values = dict(parse_qsl(text, keep_blank_values=True))
    return load(schema, values, "invalid_query")


def parse_body(schema: Schema) -> dict[str, Any]:
    """Return the members of the JSON object in the request's body, with defaults.

    Raise ServiceError if the body or a member is not valid.
    """
    body = read_body()
    if not body:
        raise malformed("is empty")
    if not request.is_json:
        message = "Send the body as 'Content-Type: application/json'."
        raise ServiceError("unsupported_media_type", message, 415)
    try:
        # From bytes, json.loads would read UTF-16, too. utf-8-sig skips a byte order
        # mark.
        members = json.loads(
            body.decode("utf-8-sig"),
            parse_constant=refuse_constant,
            parse_float=parse_float,
        )
    # The first two have to come first: they are ValueErrors, too.
    except UnicodeDecodeError as error:
        raise malformed("is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise malformed(f"is not JSON: {error}") from error
    except ValueError as error:  # json.loads calls int(), which has this limit.
        raise malformed("contains a number of more than 4,300 digits") from error
    except RecursionError as error:
        raise malformed("is nested too deeply") from error
    if not isinstance(members, dict):
        raise ServiceError("invalid_body", "Send a JSON object.", 400)
    return load(schema, members, "invalid_body")


def read_body() -> bytes:
    """Return the body of the request, or raise ServiceError."""
    # Flask refuses a Content-Length above its limit. But a body in chunks has none, and
    # Flask cuts it off at its limit, without an error. So its limit is one byte more
    # than ours: if this byte is there, the body is too large.
    request.max_content_length = MAX_BODY + 1
    try:
        body = request.get_data()
    except RequestEntityTooLarge as error:
        raise too_large() from error
    except Exception as error:  # Each server has exceptions of its own.
        raise malformed("could not be read") from error
    if len(body) > MAX_BODY:
        raise too_large()
    return body


def too_large() -> ServiceError:
    """Return the error for a body of more than MAX_BODY bytes."""
    message = f"Send a body of at most {MAX_BODY:,} bytes."
    return ServiceError("body_too_large", message, 413)


def malformed(reason: str) -> ServiceError:
    """Return the error for a body that is not JSON."""
    return ServiceError(
        "malformed_body", f"Send a JSON object. The body {reason}.", 400
    )


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN, Infinity and -Infinity. json.loads calls this."""
    raise malformed(f"contains {name}, which is not JSON")


def parse_float(text: str) -> int | float:
    """Return an int for 1.0, which JSON Schema calls an integer, otherwise a float.

    json.loads calls this for each number with a point or an exponent. A field that is
    `strict` refuses every float. JSON Schema calls 1e2 an integer, too, but here, a
    number with an exponent stays a float: as an int, 1e999999999 would fill the memory.
    """
    whole, _, fraction = text.partition(".")
    # 1.0 becomes an int. 1.5, 1e2 and 1.0e5 stay floats. (int(float(text)) would round
    # 9007199254740993.0.)
    return int(whole) if set(fraction) == {"0"} else float(text)


def load(schema: Schema, values: Mapping[str, Any], code: str) -> dict[str, Any]:
    """Return the values with defaults, or raise ServiceError with every problem."""
    try:
        return dict(schema.load(values))
    except ValidationError as error:
        problems = error.messages_dict.items()
        message = " ".join(f"{name}: {' '.join(texts)}" for name, texts in problems)
        raise ServiceError(code, message, 400) from error
