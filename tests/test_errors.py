"""Errors: each one is an Error body with its headers."""

import logging
from pathlib import Path

import pytest
from flask import abort
from flask.testing import FlaskClient

from tests.helpers import NEW_PET, assert_error, assert_unavailable
from tests.request_table import REQUESTS, Request


@pytest.mark.parametrize("row", REQUESTS, ids=str)
def test_each_request_gets_its_status_error_body_and_common_headers(
    file_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, row: Request
) -> None:
    response = row.send(file_client, monkeypatch)
    assert response.status_code == row.status
    if row.code:
        assert_error(response, row.status, row.code)
    exposed = "Deprecation, Link, Location, Retry-After, Sunset"
    for name, value in (
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Expose-Headers", exposed),
    ):
        assert response.headers.getlist(name) == [value]
    assert "Access-Control-Allow-Credentials" not in response.headers
    is_preflight = row.method == "OPTIONS" and not row.code
    assert ("Access-Control-Allow-Methods" in response.headers) == is_preflight


@pytest.mark.parametrize(
    "path", ["/v1/pets", "/v1/pets/1", "/v1/openapi.json", "/healthz", "/"]
)
def test_405_and_options_name_the_methods(
    client: FlaskClient, anonymous: FlaskClient, path: str
) -> None:
    methods = f"GET, HEAD, OPTIONS{', POST' if path == '/v1/pets' else ''}"
    refused, options = client.delete(path), anonymous.options(path)
    message = assert_error(refused, 405, "method_not_allowed")
    assert message == f"This path does not take the method. It takes {methods}."
    assert (options.status_code, options.data) == (200, b"")
    for names in (refused.allow, options.allow, options.access_control_allow_methods):
        assert ", ".join(sorted(names)) == methods
    headers = options.headers["Access-Control-Allow-Headers"]
    assert headers == "Authorization, Content-Type"
    assert options.headers["Access-Control-Max-Age"] == "7200"


def test_other_http_errors_use_the_standard_phrase(client: FlaskClient) -> None:
    client.application.add_url_rule("/x", view_func=lambda: abort(429, retry_after=7))
    response = client.get("/x")
    message = assert_error(response, 429, "too_many_requests")
    assert message == "Too Many Requests."
    assert response.headers["Retry-After"] == "7"


def test_a_bug_is_logged_but_not_shown(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.application.add_url_rule("/x", view_func=lambda: str(1 / 0))
    response = client.get("/x")
    assert_error(response, 500, "internal_error")
    assert "division" not in response.text
    assert "ZeroDivisionError: division by zero" in caplog.text


def test_an_unavailable_store_is_logged_but_not_shown(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.rename(database.with_suffix(".moved"))
    response = file_client.post("/v1/pets", json=NEW_PET)
    assert_unavailable(response)
    assert str(database) not in response.text
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert record.message.startswith(f"storage unavailable: {database}: ")
