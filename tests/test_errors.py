"""Errors: each is exactly the Error body, and has its headers."""

import logging
from pathlib import Path

import pytest
from flask import abort
from flask.testing import FlaskClient
from werkzeug.exceptions import HTTPException

from tests.helpers import add_pet, assert_error, post_pet
from tests.request_table import REQUESTS, Request


@pytest.mark.parametrize("row", REQUESTS, ids=str)
def test_each_response_has_its_error_body_and_the_common_headers(
    client: FlaskClient, row: Request
) -> None:
    add_pet(client)
    response = row.send(client)
    assert response.status_code == row.status
    if row.code:
        assert_error(response, row.status, row.code)
        assert response.text.startswith(f'{{"code":"{row.code}","message":"')
        assert response.text.endswith("}\n")
    for name, value in (
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Access-Control-Allow-Origin", "*"),
        (
            "Access-Control-Expose-Headers",
            "Deprecation, Link, Location, Retry-After, Sunset",
        ),
    ):
        assert response.headers.getlist(name) == [value]
    assert "Access-Control-Allow-Credentials" not in response.headers
    is_preflight = row.method == "OPTIONS" and not row.code
    assert ("Access-Control-Allow-Methods" in response.headers) == is_preflight


def test_another_method_is_refused_with_the_methods_of_the_path(
    client: FlaskClient,
) -> None:
    response = client.delete("/v1/pets")
    message = assert_error(response, 405, "method_not_allowed")
    assert message == "Send one of the methods GET, HEAD, OPTIONS, POST."
    assert set(response.allow) == {"GET", "HEAD", "OPTIONS", "POST"}


def test_options_answers_a_preflight_request(anonymous: FlaskClient) -> None:
    response = anonymous.options("/v1/openapi.json")
    assert (response.status_code, response.data) == (200, b"")
    headers = response.headers
    assert set(response.allow) == {"GET", "HEAD", "OPTIONS"}
    assert headers["Access-Control-Allow-Methods"] == headers["Allow"]
    allowed = "Authorization, Content-Type, *"
    assert headers["Access-Control-Allow-Headers"] == allowed
    assert headers["Access-Control-Max-Age"] == "7200"


def test_an_unknown_path_is_not_found(client: FlaskClient) -> None:
    for prefix in ("", "/store"):
        environ = {"SCRIPT_NAME": prefix}
        response = client.get("/v1/store/orders", environ_overrides=environ)
        message = assert_error(response, 404, "not_found")
        document = f"{prefix}/v1/openapi.json"
        assert message == f"Nothing is at this path. See {document} for the paths."


def test_the_health_check_is_ok(anonymous: FlaskClient) -> None:
    assert anonymous.get("/healthz").text == '{"status":"ok"}\n'


def raise_payment_required() -> str:
    """Raise an error without a text."""

    class PaymentRequired(HTTPException):
        code = 402

    raise PaymentRequired


def test_an_error_of_a_view_keeps_its_text_and_headers(client: FlaskClient) -> None:
    add_view = client.application.add_url_rule
    add_view("/old", "old", lambda: abort(404, "Too old."))
    add_view("/fast", "fast", lambda: abort(429, "Too fast.", retry_after=7))
    add_view("/paid", "paid", raise_payment_required)
    assert assert_error(client.get("/old"), 404, "not_found") == "Too old."
    response = client.get("/fast")
    assert assert_error(response, 429, "too_many_requests") == "Too fast."
    assert response.headers["Retry-After"] == "7"
    # Without a text, the message is the name of the status.
    message = assert_error(client.get("/paid"), 402, "payment_required")
    assert message == "Payment Required"


def test_a_bug_is_logged_and_not_shown(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.application.add_url_rule("/x", view_func=lambda: str(1 / 0))
    message = assert_error(client.get("/x"), 500, "internal_error")
    assert message == "The service failed. Its log says why."
    assert "ZeroDivisionError: division by zero" in caplog.text


def test_an_unavailable_store_is_logged_and_not_shown(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.unlink()
    for response in (post_pet(client), client.get("/healthz")):
        message = assert_error(response, 503, "storage_unavailable")
        assert message == (
            "The store cannot answer at the moment. Try again in a second. If you were "
            "adding a pet, look for it before you send it again."
        )
        assert response.headers["Retry-After"] == "1"
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert caplog.messages[0].startswith(f"Storage unavailable: {database}: the file")
