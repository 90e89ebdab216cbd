"""The Error body: every way to fail ends in it, with the headers that belong to it."""

import logging
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import (
    Conflict,
    HTTPException,
    ImATeapot,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)
from werkzeug.test import TestResponse

from tests.checks import PET, add_pet, assert_error

# Of createPet.
JSON_BODY = {"content_type": "application/json"}


def fail(app: Flask, error: Exception) -> None:
    """Let the application raise an exception at /fail."""

    def view() -> None:
        raise error

    app.add_url_rule("/fail", view_func=view)


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/", {}, 404, "not_found"),
        ("GET", "/v1/pets/", {}, 404, "not_found"),
        ("GET", "/v1//pets", {}, 404, "not_found"),
        ("POST", "/v1//pets", {}, 404, "not_found"),
        ("GET", "/v1/pets/1/x", {}, 404, "not_found"),
        ("GET", "/v1/pets/a%2Fb", {}, 404, "not_found"),
        ("GET", "/v1/Pets", {}, 404, "not_found"),
        ("GET", "/v1/store/orders", {}, 404, "not_found"),
        ("GET", "/static/app.py", {}, 404, "not_found"),
        ("OPTIONS", "/v1/x", {}, 404, "not_found"),
        ("GET", "/v1/pets/7", {}, 404, "pet_not_found"),
        ("PUT", "/v1/pets", {}, 405, "method_not_allowed"),
        ("PATCH", "/v1/pets/1", {}, 405, "method_not_allowed"),
        ("POST", "/v1/pets/1", {}, 405, "method_not_allowed"),
        ("TRACE", "/v1/pets", {}, 405, "method_not_allowed"),
        ("BREW", "/v1/pets", {}, 405, "method_not_allowed"),
        ("POST", "/healthz", {}, 405, "method_not_allowed"),
        ("GET", "/v1/pets?limit=0", {}, 400, "invalid_query"),
        ("POST", "/v1/pets", {**JSON_BODY, "data": "{"}, 400, "malformed_body"),
        ("POST", "/v1/pets", {**JSON_BODY, "data": "{}"}, 400, "invalid_body"),
        ("POST", "/v1/pets", {"data": "{}"}, 415, "unsupported_media_type"),
        ("POST", "/v1/pets", {"json": "x" * 65_536}, 413, "body_too_large"),
    ],
)
def test_a_failure_is_the_error_body(
    client: FlaskClient,
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
    code: str,
) -> None:
    response = client.open(path, method=method, **options)
    assert_error(response, status, code)
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_wrong_path_leads_to_the_document(client: FlaskClient) -> None:
    message = client.get("/").get_json()["message"]
    assert message == (
        "Nothing is at this path. "
        "The OpenAPI document at /v1/openapi.json lists what there is."
    )
    assert client.get("/v1/openapi.json").status_code == 200


def test_every_answer_forbids_caching_and_sniffing(client: FlaskClient) -> None:
    for response in (client.get("/v1/pets"), client.post("/v1/pets", json=PET)):
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


METHODS = pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/pets", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/v1/pets/1", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/openapi.json", {"GET", "HEAD", "OPTIONS"}),
        ("/healthz", {"GET", "HEAD", "OPTIONS"}),
    ],
)


@METHODS
def test_allow_lists_the_methods(
    client: FlaskClient, anonymous: FlaskClient, path: str, methods: set[str]
) -> None:
    refused = client.delete(path)
    assert_error(refused, 405, "method_not_allowed")
    assert set(refused.allow) == methods
    options = anonymous.options(path)
    assert (options.status_code, options.data) == (204, b"")
    assert "Content-Type" not in options.headers
    assert set(options.allow) == methods


# Hosts, and what else a request may say of its connection.


@pytest.mark.parametrize(
    "host", [".", "a..b", f"{'x' * 64}.example", "a b", "", "]", "a/b", "a:b", "u@b"]
)
def test_a_malformed_host_is_a_bad_request(client: FlaskClient, host: str) -> None:
    for path in ("/v1/pets", "/v1/pets/1", "/healthz", "/v1/openapi.json", "/"):
        response = client.get(path, headers={"Host": host})
        assert_error(response, 400, "bad_request")


@pytest.mark.parametrize(
    "host", ["x", "x:8000", "127.0.0.1", "[::1]", "[::1]:80", f"{'x' * 63}.example"]
)
def test_any_well_formed_host_is_fine(client: FlaskClient, host: str) -> None:
    assert client.get("/v1/pets", headers={"Host": host}).get_json() == []


def test_an_upgrade_is_ignored(client: FlaskClient) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert client.get("/v1/pets", headers=upgrade).get_json() == []
    assert client.post("/v1/pets", headers=upgrade, json=PET).status_code == 201


# Pages of other origins (CORS).

ORIGIN = {"HTTP_ORIGIN": "http://localhost:3000"}
EXPOSED = "Deprecation, Link, Location, Retry-After, Sunset"


def cors_headers(response: TestResponse) -> dict[str, str]:
    """Return the headers that tell a browser what a page may do."""
    return {
        name: value
        for name, value in response.headers
        if name.startswith("Access-Control-")
    }


def assert_readable_by_any_page(response: TestResponse) -> None:
    headers = cors_headers(response)
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert headers["Access-Control-Expose-Headers"] == EXPOSED
    assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/v1/pets", {}, 200),
        ("HEAD", "/v1/pets", {}, 200),
        ("GET", "/v1/openapi.json", {}, 200),
        ("GET", "/healthz", {}, 200),
        ("POST", "/v1/pets", {"json": PET}, 201),
        ("OPTIONS", "/v1/pets", {}, 204),
        ("POST", "/v1/pets", {"json": {}}, 400),
        ("GET", "/v1/pets", {"headers": {"Host": "."}}, 400),
        ("GET", "/v1/pets", {"headers": {"Authorization": ""}}, 401),
        ("GET", "/v1/pets", {"headers": {"Authorization": "Bearer other"}}, 401),
        ("GET", "/", {}, 404),
        ("OPTIONS", "/v1/x", {}, 404),
        ("GET", "/v1/pets/7", {}, 404),
        ("DELETE", "/v1/pets", {}, 405),
        ("POST", "/v1/pets", {"json": "x" * 65_536}, 413),
        ("POST", "/v1/pets", {"data": "{}"}, 415),
        ("GET", "/fail", {}, 500),
    ],
)
def test_a_page_may_read_every_answer_and_others_hear_nothing_of_it(
    app: Flask,
    client: FlaskClient,
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
) -> None:
    fail(app, RuntimeError("a bug"))
    other = client.open(path, method=method, **options)
    page = client.open(path, method=method, environ_overrides=ORIGIN, **options)
    assert page.status_code == other.status_code == status
    assert_readable_by_any_page(page)
    assert cors_headers(other) == {}
    if method != "OPTIONS":
        assert len(cors_headers(page)) == 2


def test_a_page_may_read_that_the_store_is_unavailable(
    client: FlaskClient, database: Path
) -> None:
    database.unlink()
    page = client.get("/v1/pets", environ_overrides=ORIGIN)
    assert_error(page, 503, "storage_unavailable")
    assert_readable_by_any_page(page)
    assert cors_headers(client.get("/v1/pets")) == {}


@METHODS
def test_a_browser_learns_without_a_key_what_a_page_may_send(
    anonymous: FlaskClient, path: str, methods: set[str]
) -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    response = anonymous.options(path, headers=asked, environ_overrides=ORIGIN)
    assert (response.status_code, response.data) == (204, b"")
    assert_readable_by_any_page(response)
    headers = cors_headers(response)
    assert headers["Access-Control-Allow-Methods"] == response.headers["Allow"]
    assert set(response.allow) == methods
    assert headers["Access-Control-Allow-Headers"] == "Authorization, Content-Type"
    assert headers["Access-Control-Max-Age"] == "7200"


# Whatever else an application may raise.


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Conflict(), 409, "conflict"),
        (ImATeapot(), 418, "i_m_a_teapot"),
        (TooManyRequests(), 429, "too_many_requests"),
        (ServiceUnavailable(), 503, "service_unavailable"),
    ],
)
def test_another_http_error_takes_its_standard_phrase(
    app: Flask, client: FlaskClient, error: HTTPException, status: int, code: str
) -> None:
    fail(app, error)
    assert_error(client.get("/fail"), status, code)


def test_a_status_without_a_phrase_is_the_error_body_too(
    app: Flask, client: FlaskClient
) -> None:
    class ClientClosedRequest(HTTPException):
        code = 499

    fail(app, ClientClosedRequest())
    assert_error(client.get("/fail"), 499, "unknown_error")


def test_the_headers_of_an_error_are_kept(app: Flask, client: FlaskClient) -> None:
    schemes = [WWWAuthenticate("basic"), WWWAuthenticate("bearer")]
    fail(app, Unauthorized(www_authenticate=schemes))
    response = client.get("/fail")
    assert_error(response, 401, "unauthorized")
    assert response.headers.getlist("WWW-Authenticate") == ["Basic", "Bearer"]


def test_what_an_error_says_of_its_own_body_is_not_kept(
    app: Flask, client: FlaskClient
) -> None:
    class Odd(Conflict):
        def get_headers(self, *_: object) -> list[tuple[str, str]]:
            return [("Content-Type", "text/plain"), ("Content-Length", "3")]

    fail(app, Odd())
    response = client.get("/fail")
    assert_error(response, 409, "conflict")
    [length] = response.headers.getlist("Content-Length")
    assert int(length) == len(response.data)
    assert response.headers.getlist("Content-Type") == ["application/json"]


def test_a_bug_is_logged_and_not_told(
    app: Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    fail(app, KeyError("the secret"))
    response = client.get("/fail")
    assert_error(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "KeyError: 'the secret'" in caplog.text


def test_a_store_that_cannot_answer_is_logged_and_not_told(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_pet(client)
    for path in database.parent.glob("pets.db*"):
        path.rename(path.with_suffix(".gone"))
    response = client.post("/v1/pets", json=PET)
    assert_error(response, 503, "storage_unavailable")
    assert response.headers["Retry-After"] == "1"
    assert str(database) not in response.text
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert f"storage unavailable: {database}: " in record.message
