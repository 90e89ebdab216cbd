"""The service as it is behind a proxy that adds links and a charset."""

from flask import Flask, Response

import app


def create_app() -> Flask:
    """Return the WSGI application."""
    application = app.create_app()

    @application.after_request
    def change_headers(response: Response) -> Response:
        links = ["</help>; rel=help", '<http://127.0.0.2:1/v1/pets>; rel="next"']
        response.headers["Link"] = ", ".join(
            [*links, *response.headers.getlist("Link")]
        )
        response.headers["Content-Type"] += "; charset=utf-8"
        return response

    return application
