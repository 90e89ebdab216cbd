"""The page at /: who may see it, and what may run in it. CI tries it in a browser."""

import re

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from tests.service import ROOT

PAGE = (ROOT / "index.html").read_text("utf-8")


def test_the_page_is_served_without_a_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/")
    assert response.status_code == 200
    assert response.content_type == "text/html; charset=utf-8"
    nonce = re.findall('nonce="(.+?)"', response.text)[0]
    assert response.text == PAGE.replace("{nonce}", nonce)


def test_nothing_runs_in_it_but_its_own_script_and_style(
    anonymous: FlaskClient,
) -> None:
    policies = [anonymous.get("/").headers["Content-Security-Policy"] for _ in "12"]
    nonces = [re.findall("'nonce-(.{16,}?)'", policy) for policy in policies]
    assert all(script == style for script, style in nonces)
    assert nonces[0] != nonces[1]
    assert policies[0].replace(nonces[0][0], "x").split("; ") == [
        "default-src 'none'",
        "script-src 'nonce-x'",
        "style-src 'nonce-x'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]


def test_it_names_no_other_host_and_inserts_no_html() -> None:
    assert "//" not in PAGE.replace("// ", "")
    assert "innerHTML" not in PAGE
    assert "localStorage" not in PAGE


def test_it_is_there_under_a_prefix_without_a_redirect(client: FlaskClient) -> None:
    outer = Client(DispatcherMiddleware(Flask("outer"), {"/x": client.application}))
    for path in ("/x", "/x/"):
        assert outer.get(path).status_code == 200
