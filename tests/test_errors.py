"""The Error body: every way to fail ends in it, with the headers that belong to it."""

import logging
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.exceptions import TooManyRequests

from tests.checks import PET, assert_error, assert_unavailable
from tests.requests import REQUESTS, Request

EXPOSED = "Deprecation, Link, Location, Retry-After, Sunset"


def fail(client: FlaskClient, error: Exception) -> None:
    """Let the application raise an exception at /fail."""

    def view() -> None:
        raise error

    client.application.add_url_rule("/fail", view_func=view)


@pytest.mark.parametrize(
    "request_", REQUESTS, ids=lambda row: f"{row.method} {row.path} {row.status}"
)
def test_an_answer_is_a_success_or_the_error_body_and_any_page_may_read_it(
    file_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, request_: Request
) -> None:
    response = request_.send(file_client, monkeypatch)
    assert response.status_code == request_.status
    if request_.code:
        assert_error(response, request_.status, request_.code)
    for name, value in (
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Expose-Headers", EXPOSED),
    ):
        assert response.headers.getlist(name) == [value]
    assert "Access-Control-Allow-Credentials" not in response.headers


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/pets", "GET, HEAD, OPTIONS, POST"),
        ("/v1/pets/1", "GET, HEAD, OPTIONS"),
        ("/v1/openapi.json", "GET, HEAD, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
    ],
)
def test_a_refused_method_and_options_name_the_methods(
    client: FlaskClient, anonymous: FlaskClient, path: str, methods: str
) -> None:
    refused = client.delete(path)
    message = assert_error(refused, 405, "method_not_allowed")
    assert message == f"This path does not take the method. It takes {methods}."
    assert ", ".join(sorted(refused.allow)) == methods
    options = anonymous.options(path)
    assert (options.status_code, options.data) == (200, b"")
    assert ", ".join(sorted(options.allow)) == methods
    allowed = options.headers["Access-Control-Allow-Methods"]
    assert ", ".join(sorted(allowed.split(", "))) == methods
    headers = options.headers["Access-Control-Allow-Headers"]
    assert headers == "Authorization, Content-Type"
    assert options.headers["Access-Control-Max-Age"] == "7200"


def test_a_wrong_path_leads_to_the_document(client: FlaskClient) -> None:
    message = assert_error(client.get("/pets"), 404, "not_found")
    assert message == ("Nothing is at this path. /v1/openapi.json lists what there is.")


@pytest.mark.parametrize("host", ["pet_store:8000", "example.com:", "[::1]:80", "a:b"])
def test_any_host_will_do(client: FlaskClient, host: str) -> None:
    assert client.get("/v1/pets", headers={"Host": host}).get_json() == []


# Whatever else an application may raise.


def test_another_http_error_takes_its_standard_phrase(client: FlaskClient) -> None:
    fail(client, TooManyRequests(retry_after=7))
    response = client.get("/fail")
    assert_error(response, 429, "too_many_requests")
    assert response.headers["Retry-After"] == "7"


def test_a_bug_is_logged_and_not_told(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    fail(client, KeyError("the secret"))
    response = client.get("/fail")
    assert_error(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "KeyError: 'the secret'" in caplog.text


def test_a_store_that_cannot_answer_is_logged_and_not_told(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert file_client.post("/v1/pets", json=PET).status_code == 201
    database.rename(database.with_suffix(".gone"))
    caplog.clear()
    response = file_client.post("/v1/pets", json=PET)
    assert_unavailable(response)
    assert str(database) not in response.text
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert record.message.startswith(f"storage unavailable: {database}: ")
