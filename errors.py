"""The Error body, and the responses that contain it."""

import json
from collections.abc import Iterable
from http import HTTPStatus

from flask import current_app
from werkzeug import Response
from werkzeug.exceptions import HTTPException

# Every response has these headers.
RESPONSE_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    # A page of any origin may call the service: unlike a cookie, the key is not sent
    # by the browser itself (https://developer.mozilla.org/docs/Web/HTTP/Guides/CORS).
    ("Access-Control-Allow-Origin", "*"),
    (
        "Access-Control-Expose-Headers",
        "Deprecation, Link, Location, Retry-After, Sunset",
    ),
)

# The code and message of errors that Flask and gunicorn (see gunicorn.conf.py) raise.
STANDARD_ERRORS = {
    400: ("bad_request", "Send valid HTTP/1.1."),
    405: ("method_not_allowed", "This path does not support the method."),
    # Flask raises it if MAX_CONTENT_LENGTH is set.
    413: ("body_too_large", "Send a smaller body."),
    414: ("uri_too_long", "Send a shorter URL."),
    417: ("expectation_failed", "Send no Expect header except '100-continue'."),
    431: ("request_header_fields_too_large", "Send fewer or shorter headers."),
    500: ("internal_error", "The service failed. Its log says why."),
    501: ("not_implemented", "Send no Transfer-Encoding except 'chunked'."),
}


class ServiceError(HTTPException):
    """An error that this service raises: its code, message, status and headers.

    The message is a sentence for the client. It says what is wrong, or what to send
    instead.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.error_code = code
        self.message = message
        # Werkzeug calls the status `code`, and reads it from this attribute.
        self.code = status
        self.headers = headers


def error_response(error: HTTPException) -> Response:
    """Return the Error body for an HTTP error.

    Headers that Werkzeug has set, such as Allow, stay.
    """
    response = error.get_response()
    if isinstance(error, ServiceError):
        body = error_body(error.error_code, error.message, response.status_code)
        response.headers.extend(error.headers)
    else:
        body = standard_error_body(response.status_code, response.allow)
    response.data = body
    response.content_type = "application/json"
    return response


def storage_unavailable(error: Exception) -> Response:
    """Log why the store cannot answer, and return 503 without the reason."""
    current_app.logger.error("storage unavailable: %s", error)
    message = "The store cannot answer at the moment. Try again in a second."
    headers = [("Retry-After", "1")]
    return error_response(ServiceError("storage_unavailable", message, 503, headers))


def standard_error_body(status: int, allowed_methods: Iterable[str] = ()) -> str:
    """Return the Error body for a status that Flask or gunicorn has chosen.

    The message names the allowed methods: without -i, curl does not show the header
    Allow.
    """
    phrase = HTTPStatus(status).phrase
    default = (phrase.lower().replace(" ", "_"), f"{phrase}.")
    code, message = STANDARD_ERRORS.get(status, default)
    if allowed_methods:
        message = f"{message} It supports {', '.join(sorted(allowed_methods))}."
    return error_body(code, message, status)


def error_body(code: str, message: str, status: int) -> str:
    """Return the Error body as a line of JSON."""
    error = {"code": code, "message": message, "status": status}
    return json.dumps(error, separators=(",", ":")) + "\n"
