"""The page at / through HTTP. system/test_page.py tries it in a browser."""

import re
from base64 import b64encode
from hashlib import sha256

from flask.testing import FlaskClient


def test_the_page_is_html_with_a_policy(anonymous: FlaskClient) -> None:
    response = anonymous.get("/")
    assert (response.status_code, response.mimetype) == (200, "text/html")
    script = re.findall("<script>(.*?)</script>", response.text, re.DOTALL)[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert response.headers["Content-Security-Policy"].split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "style-src 'unsafe-inline'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]


def test_the_page_and_the_document_have_the_same_title(anonymous: FlaskClient) -> None:
    info = anonymous.get("/v1/openapi.json").get_json()["info"]
    title = f"{info['title']} {info['version']}"
    page = anonymous.get("/").text
    assert f"<title>{title}</title>" in page
    assert f"<h1>{title}</h1>" in page
