"""The service as it is behind a proxy that redirects, and adds links and a charset."""

from flask import Flask, Response, redirect
from werkzeug import Response as BaseResponse

import app


def create_app() -> Flask:
    """Return the WSGI application."""
    application = app.create_app()

    @application.route("/moved", methods=["GET", "POST"])
    def move() -> BaseResponse:
        return redirect("http://127.0.0.2:1/v1/pets")

    @application.after_request
    def change_headers(response: Response) -> Response:
        links = ["</help>; rel=help", '<http://127.0.0.2:1/v1/pets>; rel="next"']
        response.headers["Link"] = ", ".join(
            [*links, *response.headers.getlist("Link")]
        )
        response.headers["Content-Type"] += "; charset=utf-8"
        return response

    return application
