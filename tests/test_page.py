"""Test the page at / through HTTP. .ci/page.py tries it in a browser."""

import re

from flask.testing import FlaskClient

from tests.process import ROOT

PAGE = (ROOT / "index.html").read_text("utf-8")


def test_browser_runs_only_what_carries_the_nonce(anonymous: FlaskClient) -> None:
    response = anonymous.get("/")
    assert response.status_code == 200
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


def test_every_response_has_its_own_nonce(anonymous: FlaskClient) -> None:
    assert anonymous.get("/").text != anonymous.get("/").text


def test_page_names_no_other_host() -> None:
    # A comment has a space after its slashes, a URL has none.
    assert not re.search(r"//\S", PAGE)


def test_page_and_document_have_the_same_title(anonymous: FlaskClient) -> None:
    info = anonymous.get("/v1/openapi.json").get_json()["info"]
    title = f"{info['title']} {info['version']}"
    assert f"<title>{title}</title>" in PAGE
    assert f"<h1>{title}</h1>" in PAGE
