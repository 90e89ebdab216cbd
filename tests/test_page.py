"""The page at /: who may see it, and what may run in it. CI tries it in a browser."""

import re

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from tests.service import ROOT

PAGE = (ROOT / "index.html").read_text("utf-8")


def test_nothing_runs_in_it_but_what_carries_the_nonce_of_this_answer(
    anonymous: FlaskClient,
) -> None:
    nonces = set()
    for _ in range(2):
        response = anonymous.get("/")
        assert response.content_type == "text/html; charset=utf-8"
        [nonce] = set(re.findall('nonce="(.{16,}?)"', response.text))
        assert response.text == PAGE.replace("{nonce}", nonce)
        assert response.headers["Content-Security-Policy"].split("; ") == [
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            f"style-src 'nonce-{nonce}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
        nonces.add(nonce)
    assert len(nonces) == 2


def test_it_names_no_other_host() -> None:
    assert "//" not in PAGE.replace("// ", "")


def test_it_is_there_under_a_prefix_without_a_redirect(client: FlaskClient) -> None:
    outer = Client(DispatcherMiddleware(Flask("outer"), {"/x": client.application}))
    assert [outer.get(path).status_code for path in ("/x", "/x/")] == [200, 200]
