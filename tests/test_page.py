"""The page at /: who may see it, and what may run in it. CI tries it in a browser."""

import re

from flask.testing import FlaskClient

from tests.process import ROOT

PAGE = (ROOT / "index.html").read_text("utf-8")


def test_nothing_runs_in_it_but_what_carries_the_nonce_of_this_answer(
    anonymous: FlaskClient,
) -> None:
    response = anonymous.get("/")
    assert response.content_type == "text/html; charset=utf-8"
    [nonce] = set(re.findall('nonce="(.{16,}?)"', response.text))
    assert response.text == PAGE.replace("{nonce}", nonce)
    assert nonce not in anonymous.get("/").text
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


def test_it_names_no_other_host() -> None:
    assert "//" not in PAGE.replace("// ", "")
