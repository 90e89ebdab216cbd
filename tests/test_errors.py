"""Errors: each one is an Error body with its headers."""

import logging
import re
from pathlib import Path

import pytest
from flask import abort
from flask.testing import FlaskClient

from tests.helpers import NEW_PET, assert_error, assert_unavailable, routes
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


def test_405_and_options_name_the_methods(
    client: FlaskClient, anonymous: FlaskClient
) -> None:
    methods: dict[str, set[str]] = {}
    for route in routes(client):
        method, path = route.split()
        added = {method, "HEAD"} if method == "GET" else {method}
        methods.setdefault(path, {"OPTIONS"}).update(added)
    for path, allowed in methods.items():
        example = re.sub("{.*?}", "1", path)
        # No route takes TRACE.
        refused, options = client.trace(example), anonymous.options(example)
        message = assert_error(refused, 405, "method_not_allowed")
        names = ", ".join(sorted(allowed))
        assert message == f"This path does not support the method. It supports {names}."
        assert (options.status_code, options.data) == (200, b"")
        assert set(refused.allow) == set(options.allow) == allowed
        assert set(options.access_control_allow_methods) == allowed
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
