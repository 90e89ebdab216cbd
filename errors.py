"""The Error body: the one place where code, message and status are put together."""

import json
import re
from collections.abc import Iterable
from http.client import responses

from flask import Flask, Response, current_app
from werkzeug.exceptions import HTTPException

# Every code of the application, and the status that goes with it.
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

# What Flask and gunicorn refuse by themselves: the code, and what to send instead.
WORDS_BY_STATUS = {
    400: ("bad_request", "Send valid HTTP/1.1, with one well-formed Host header."),
    405: ("method_not_allowed", "Use a method that the Allow header lists."),
    413: ("body_too_large", "Send a smaller body."),
    414: ("uri_too_long", "Send a shorter URL."),
    417: ("expectation_failed", "Send no Expect header but '100-continue'."),
    431: ("request_header_fields_too_large", "Send fewer or shorter headers."),
    500: ("internal_error", "The service failed. Its log says why."),
    501: ("not_implemented", "Send no Transfer-Encoding but 'chunked'."),
}


class ServiceError(HTTPException):
    """A failure answered with a code of STATUS_BY_CODE and a message for the client.

    The message says what to send instead. The headers go out with the answer.
    """

    def __init__(
        self, error_code: str, message: str, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = STATUS_BY_CODE[error_code]  # as HTTPException calls the status
        self.error_code = error_code
        self.message = message
        self.headers = headers


def init_app(app: Flask) -> None:
    """Let every failure of the application end in the Error body.

    Flask logs a crash, wraps it as a 500 and passes it to this same handler. One for
    Exception would take the crash before it is logged.
    """
    app.register_error_handler(HTTPException, error_response)


def error_response(error: HTTPException) -> Response:
    """Answer an HTTP error with the Error body (contract, section Errors).

    Headers such as Allow stay; those that describe the replaced body go.
    """
    status = error.code
    assert status, "Flask passes on no error without a status"
    if isinstance(error, ServiceError):
        body = error_body(error.error_code, error.message, status)
        headers = error.headers
    else:
        body = standard_error_body(status)
        headers = error.get_headers()
    response = Response(body, status, mimetype="application/json")
    for name, value in headers:
        if name.lower() not in ("content-type", "content-length"):
            response.headers.add(name, value)
    return response


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


def standard_error_body(status: int) -> str:
    """Return the Error body for a status that is not the application's own."""
    phrase = responses.get(status, "Unknown Error")
    standard = re.sub(r"[^a-z]+", "_", phrase.lower()), f"{phrase}."
    code, message = WORDS_BY_STATUS.get(status, standard)
    return error_body(code, message, status)


def error_body(code: str, message: str, status: int) -> str:
    """Return the Error body as JSON."""
    return json.dumps({"code": code, "message": message, "status": status})
