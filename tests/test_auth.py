"""The API key: which keys are valid, and which paths need one."""

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from tests.helpers import assert_error
from tests.request_table import REQUESTS, Request


def list_pets(keys: str, authorization: str) -> TestResponse:
    client = create_app({"API_KEYS": keys, "DATABASE": ":memory:"}).test_client()
    return client.get("/v1/pets", headers={"Authorization": authorization})


@pytest.mark.parametrize(
    ("keys", "authorization"),
    [("k", "bearer k"), ("k", "BEARER   k  "), ("a=b==", "Bearer a=b==")]
    + [("a, b ,,c", f"Bearer {key}") for key in "abc"]
    + [("two words", "Bearer two words")]
    + [("clé", "Bearer clé".encode().decode("latin-1"))],
)
def test_each_configured_key_is_valid(keys: str, authorization: str) -> None:
    assert list_pets(keys, authorization).status_code == 200


@pytest.mark.parametrize("authorization", ["k", "Bearer", "Bearer  ", "Basic azpr"])
def test_a_header_without_a_bearer_key_is_a_missing_key(authorization: str) -> None:
    response = list_pets("k", authorization)
    assert_error(response, 401, "missing_api_key")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="petstore"'


@pytest.mark.parametrize(
    ("keys", "key"),
    [("k", "K"), ("k", "kk"), ("k", "k,k"), ("a,b", "a,b"), ("a,b", ","), ("k", "é")],
)
def test_every_other_key_is_invalid(keys: str, key: str) -> None:
    response = list_pets(keys, f"Bearer {key}")
    assert_error(response, 401, "invalid_api_key")
    challenge = 'Bearer realm="petstore", error="invalid_token"'
    assert response.headers["WWW-Authenticate"] == challenge


@pytest.mark.parametrize("row", [row for row in REQUESTS if not row.prepare], ids=str)
def test_paths_under_v1_need_a_key_except_options_and_the_document(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, row: Request
) -> None:
    is_open = row.method == "OPTIONS" or row.path == "/v1/openapi.json"
    needs_key = row.path.startswith(("/v1/", "/v1%2F")) and not is_open
    for authorization in ("", "Bearer other"):
        response = row.send(client, monkeypatch, Authorization=authorization)
        assert response.status_code == (401 if needs_key else row.status)


def test_the_health_check_needs_no_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/healthz")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})
