"""The Error body: every way to fail ends in it, with the headers that belong to it."""

import logging
from pathlib import Path

import pytest
from flask import Flask, abort
from flask.testing import FlaskClient

from tests.checks import add_pet, assert_error

PET = {"json": {"name": "Rex", "categoryId": 1}}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/", 404, "not_found", id="root"),
        pytest.param("GET", "/v1", 404, "not_found", id="no operation"),
        pytest.param("GET", "/v1/pets/", 404, "not_found", id="slash at the end"),
        pytest.param("GET", "/v1//pets", 404, "not_found", id="two slashes"),
        pytest.param("POST", "/v1//pets", 404, "not_found", id="two slashes, POST"),
        pytest.param("GET", "/v1/pets/1/x", 404, "not_found", id="below a pet"),
        pytest.param("GET", "/v1/pets/a%2Fb", 404, "not_found", id="encoded slash"),
        pytest.param("GET", "/v1/Pets", 404, "not_found", id="other letter case"),
        pytest.param("GET", "/v1/store/orders", 404, "not_found", id="store orders"),
        pytest.param("GET", "/static/app.py", 404, "not_found", id="static files"),
        pytest.param("OPTIONS", "/v1/x", 404, "not_found", id="OPTIONS of nothing"),
        pytest.param("GET", "/v1/pets/7", 404, "pet_not_found", id="no such pet"),
        pytest.param("PUT", "/v1/pets", 405, "method_not_allowed", id="PUT pets"),
        pytest.param("PATCH", "/v1/pets/1", 405, "method_not_allowed", id="PATCH pet"),
        pytest.param("POST", "/v1/pets/1", 405, "method_not_allowed", id="POST pet"),
        pytest.param("TRACE", "/v1/pets", 405, "method_not_allowed", id="TRACE"),
        pytest.param("BREW", "/v1/pets", 405, "method_not_allowed", id="made up"),
        pytest.param("POST", "/healthz", 405, "method_not_allowed", id="POST healthz"),
        pytest.param("GET", "/v1/pets?limit=0", 400, "invalid_query", id="query"),
        pytest.param("POST", "/v1/pets", 400, "malformed_body", id="no body"),
    ],
)
def test_a_failure_is_the_error_body(
    client: FlaskClient, method: str, path: str, status: int, code: str
) -> None:
    response = client.open(path, method=method)
    assert_error(response, status, code)
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/pets", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/v1/pets/1", {"GET", "HEAD", "OPTIONS"}),
        ("/healthz", {"GET", "HEAD", "OPTIONS"}),
    ],
)
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


@pytest.mark.parametrize(
    "headers",
    [
        {"Connection": "Upgrade", "Upgrade": "websocket"},
        {"Host": "."},
        {"Host": "a..b"},
        {"Host": f"{'x' * 64}.example"},
        {"Host": "a b"},
        {"Host": ""},
    ],
)
def test_no_route_depends_on_host_or_upgrade(
    client: FlaskClient, headers: dict[str, str]
) -> None:
    assert client.get("/v1/pets", headers=headers).get_json() == []
    assert client.get("/healthz", headers=headers).status_code == 200


def test_every_answer_forbids_caching_and_sniffing(client: FlaskClient) -> None:
    for response in (client.get("/v1/pets"), client.post("/v1/pets", **PET)):
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_another_http_error_takes_its_standard_phrase(
    app: Flask, client: FlaskClient
) -> None:
    app.add_url_rule("/teapot", view_func=lambda: abort(418))
    assert_error(client.get("/teapot"), 418, "i_m_a_teapot")


def test_a_bug_is_logged_and_not_told(
    app: Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    app.add_url_rule("/bug", view_func=lambda: {}["the secret"])
    response = client.get("/bug")
    assert_error(response, 500, "internal_error")
    assert "secret" not in response.text
    assert "KeyError: 'the secret'" in caplog.text


def test_a_store_that_cannot_answer_is_logged_and_not_told(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_pet(client)
    for path in database.parent.glob("pets.db*"):
        path.rename(path.with_suffix(".gone"))
    response = client.post("/v1/pets", **PET)
    assert_error(response, 503, "storage_unavailable")
    assert response.headers["Retry-After"] == "1"
    assert str(database) not in response.text
    [record] = caplog.records
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)
    assert f"storage unavailable: {database}: " in record.message
