"""The Error body (code, message and status), and every response that has one.

Werkzeug's HTTP errors: https://werkzeug.palletsprojects.com/en/stable/exceptions/
"""

import json
from collections.abc import Mapping

from flask import current_app, request, url_for
from werkzeug import Response
from werkzeug.exceptions import HTTPException


class ServiceError(HTTPException):
    """An error that this service raises: its code, message, status and headers.

    The message is a sentence that says what is wrong, or what to send instead.
    """

    def __init__(
        self,
        error_code: str,
        message: str,
        status: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        # Werkzeug calls the status `code`, so the contract's code is `error_code`.
        self.code = status
        self.error_code = error_code
        self.headers = headers or {}


def error_response(error: HTTPException) -> Response:
    """Return the response for an HTTP error, with the Error body."""
    # Werkzeug's own response has the status, headers such as Allow, and HTML, which is
    # replaced below.
    response = error.get_response()
    # Werkzeug's name of the status: not_found for "Not Found".
    error_code = error.name.lower().replace(" ", "_")
    message = error.description or error.name
    if isinstance(error, ServiceError):
        error_code = error.error_code
        response.headers.update(error.headers)
    elif error is request.routing_exception and response.status_code == 404:
        # Flask keeps the exception of a path without an operation here. (abort(404) in
        # a view raises another one.)
        document = url_for("public.getOpenapi")
        message = f"Nothing is at this path. See {document} for the paths."
    elif response.status_code == 405:
        message = f"Send one of the methods {', '.join(sorted(response.allow))}."
    elif response.status_code == 500:
        error_code, message = "internal_error", "The service failed. Its log says why."
    body = {"code": error_code, "message": message, "status": response.status_code}
    response.data = json.dumps(body, separators=(",", ":")) + "\n"
    response.content_type = "application/json"
    return response


def unavailable_response(error: Exception) -> Response:
    """Log why the store cannot answer, and return 503 without the reason."""
    current_app.logger.error("Storage unavailable: %s", error)
    # After a sync that has failed, the pet may be stored (`SqliteFile.write`).
    message = (
        "The store cannot answer at the moment. Try again in a second. If you were "
        "adding a pet, look for it before you send it again."
    )
    headers = {"Retry-After": "1"}
    return error_response(ServiceError("storage_unavailable", message, 503, headers))
