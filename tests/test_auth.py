"""The bearer key: who gets in, and that nobody else learns anything."""

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from tests.checks import assert_error


def list_pets(keys: str, authorization: str) -> TestResponse:
    client = create_app({"API_KEYS": keys, "DATABASE": ":memory:"}).test_client()
    return client.get("/v1/pets", headers={"Authorization": authorization})


@pytest.mark.parametrize(
    ("keys", "authorization"),
    [
        ("k", "Bearer k"),
        ("k", "bearer k"),
        ("k", "BEARER   k  "),
        ("a, b ,,c", "Bearer a"),
        ("a, b ,,c", "Bearer b"),
        ("a, b ,,c", "Bearer c"),
        ("two words", "Bearer two words"),
        ("a=b==", "Bearer a=b=="),
        ("clé", "Bearer clé".encode().decode("latin-1")),
    ],
)
def test_a_key_of_the_list_gets_in(keys: str, authorization: str) -> None:
    assert list_pets(keys, authorization).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "k", "Bearer", "Bearer  ", "Basic azpr", "Bearerx k", "Bearer\tk"],
)
def test_no_bearer_key_is_a_missing_key(authorization: str) -> None:
    response = list_pets("k", authorization)
    assert_error(response, 401, "missing_api_key")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="petstore"'


@pytest.mark.parametrize(
    ("keys", "key"),
    [("k", "K"), ("k", "kk"), ("k", "k,k"), ("k", "k,Bearer k"), ("a,b", "a,b")]
    + [("a,b", ","), ("k", "é"), ("é", "e")],
)
def test_any_other_key_is_invalid(keys: str, key: str) -> None:
    response = list_pets(keys, f"Bearer {key}")
    assert_error(response, 401, "invalid_api_key")
    assert response.headers["WWW-Authenticate"] == (
        'Bearer realm="petstore", error="invalid_token"'
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/pets?limit=0"),
        ("HEAD", "/v1/pets"),
        ("POST", "/v1/pets"),
        ("GET", "/v1/pets/abc"),
        ("DELETE", "/v1/pets/1"),
        ("GET", "/v1//pets"),
        ("GET", "/v1%2Fpets"),
        ("GET", "/v1/openapi.json/"),
        ("GET", "/v1/"),
    ],
)
def test_without_a_key_everything_under_v1_is_401(
    anonymous: FlaskClient, method: str, path: str
) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        assert anonymous.open(path, method=method, headers=headers).status_code == 401


@pytest.mark.parametrize("path", ["/v1", "/v10/pets", "/V1/pets"])
def test_outside_of_v1_nobody_needs_a_key(anonymous: FlaskClient, path: str) -> None:
    assert_error(anonymous.get(path), 404, "not_found")


def test_the_key_comes_before_the_body(anonymous: FlaskClient) -> None:
    for data, media_type in [(b"[" * 70_000, "application/json"), (b"x", "text/plain")]:
        response = anonymous.post("/v1/pets", data=data, content_type=media_type)
        assert_error(response, 401, "missing_api_key")
