"""The Error body: the one place where code, message and status are put together."""

import json
from collections.abc import Iterable
from http import HTTPStatus

from flask import current_app
from werkzeug import Response  # what get_response returns; Flask's is a subclass
from werkzeug.exceptions import HTTPException

# What Flask and gunicorn (by gunicorn.conf.py) answer by themselves: code and message.
STANDARD_ERRORS = {
    400: ("bad_request", "Send valid HTTP/1.1."),
    405: ("method_not_allowed", "This path does not take the method."),
    413: ("body_too_large", "Send a smaller body."),
    414: ("uri_too_long", "Send a shorter URL."),
    417: ("expectation_failed", "Send no Expect header but '100-continue'."),
    431: ("request_header_fields_too_large", "Send fewer or shorter headers."),
    500: ("internal_error", "The service failed. Its log says why."),
    501: ("not_implemented", "Send no Transfer-Encoding but 'chunked'."),
}


class ServiceError(HTTPException):
    """A failure of the application's own: its code, message, status and headers.

    The message is a sentence for the client: what is wrong, or what to send instead.
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
        self.code = status  # as HTTPException calls it
        self.headers = headers


def error_response(error: HTTPException) -> Response:
    """Answer an HTTP error with the Error body (contract, section Errors).

    It takes the place of Werkzeug's HTML; the headers, such as Allow, stay.
    """
    response = error.get_response()
    if isinstance(error, ServiceError):
        response.headers.extend(error.headers)
        response.data = error_body(
            error.error_code, error.message, response.status_code
        )
    else:
        response.data = standard_error_body(response.status_code, response.allow)
    response.content_type = "application/json"
    return response


def storage_unavailable(error: Exception) -> Response:
    """Log why the store cannot answer, and answer 503, which does not say why."""
    current_app.logger.error("storage unavailable: %s", error)
    message = "The store cannot answer at the moment. Try again in a second."
    headers = [("Retry-After", "1")]
    return error_response(ServiceError("storage_unavailable", message, 503, headers))


def standard_error_body(status: int, methods: Iterable[str] = ()) -> str:
    """Return the Error body for a status that Flask or gunicorn has set.

    Its code and message are those of STANDARD_ERRORS, or else the standard phrase. The
    message names the methods that are allowed, if any: curl does not show Allow.
    """
    phrase = HTTPStatus(status).phrase
    standard = (phrase.lower().replace(" ", "_"), f"{phrase}.")
    code, message = STANDARD_ERRORS.get(status, standard)
    if methods:
        message = f"{message} It takes {', '.join(sorted(methods))}."
    return error_body(code, message, status)


def error_body(code: str, message: str, status: int) -> str:
    """Return the Error body as JSON, on a line of its own."""
    return json.dumps({"code": code, "message": message, "status": status}) + "\n"
