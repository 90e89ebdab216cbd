"""The Error body: the one place where code, message and status are put together."""

import json
import re
from collections.abc import Sequence
from http import HTTPStatus

from flask import Flask, Response, current_app
from werkzeug.exceptions import HTTPException

# Every code that has words of its own, and the status that goes with it.
STATUS_BY_CODE = {
    "malformed_body": 400,
    "invalid_body": 400,
    "invalid_query": 400,
    "missing_api_key": 401,
    "invalid_api_key": 401,
    "not_found": 404,
    "pet_not_found": 404,
    "method_not_allowed": 405,
    "gone": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "internal_error": 500,
    "storage_unavailable": 503,
}

# What Flask raises by itself; its own descriptions are written for browsers.
RAISED_BY_FLASK = {
    404: ("not_found", "Nothing is at this path."),
    405: ("method_not_allowed", "Use a method that the Allow header lists."),
    413: ("body_too_large", "Send a smaller body."),
    500: ("internal_error", "The service failed. Its log says why."),
}


class ServiceError(HTTPException):
    """A failure answered with a code of STATUS_BY_CODE and a message for the client.

    The message says what to send instead. The headers go out with the answer.
    """

    def __init__(
        self, code: str, message: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = STATUS_BY_CODE[code]
        self.error_code = code
        self.message = message
        self.headers = headers


def error_response(error: HTTPException) -> Response:
    """Answer an HTTP error with the Error body (contract, section Errors).

    Headers such as Allow stay; those that describe the replaced body go.
    """
    status = error.code or 500
    if isinstance(error, ServiceError):
        code, message, headers = error.error_code, error.message, error.headers
    else:
        code, message = RAISED_BY_FLASK.get(status) or _standard_words(status)
        headers = error.get_headers()
    body = json.dumps({"code": code, "message": message, "status": status})
    response = Response(body, status, mimetype="application/json")
    for name, value in headers:
        if name not in ("Content-Type", "Content-Length"):
            response.headers[name] = value
    return response


def _standard_words(status: int) -> tuple[str, str]:
    phrase = HTTPStatus(status).phrase
    return re.sub(r"[^a-z]+", "_", phrase.lower()), f"{phrase}."


def storage_unavailable(error: Exception) -> Response:
    """Log why the store cannot answer, and answer 503; the client learns only that."""
    current_app.logger.error("storage unavailable: %s", error)
    return error_response(
        ServiceError(
            "storage_unavailable",
            "The store cannot answer at the moment. Try again in a second.",
            [("Retry-After", "1")],
        )
    )


def init_app(app: Flask) -> None:
    """Let every failure of the application end in the Error body.

    Flask logs a crash, wraps it as a 500 and passes it to this same handler. One for
    Exception would take the crash before it is logged.
    """
    app.register_error_handler(HTTPException, error_response)
