"""The API keys. request_table.py has the operations that need one."""

import pytest
from werkzeug.test import TestResponse

from app import create_app
from tests.helpers import assert_error


def list_pets(keys: str, authorization: str) -> TestResponse:
    """List the pets of a service that has these keys."""
    client = create_app({"API_KEYS": keys, "DATABASE": ":memory:"}).test_client()
    return client.get("/v1/pets", headers={"Authorization": authorization})


@pytest.mark.parametrize(
    ("keys", "authorization"),
    [("k", "bearer k"), ("k", "BEARER   k  "), ("a=b==", "Bearer a=b==")]
    + [("a, b ,,c\n", f"Bearer {key}") for key in "abc"]
    + [("!~", "Bearer !~")],
)
def test_each_key_of_the_setting_is_valid(keys: str, authorization: str) -> None:
    assert list_pets(keys, authorization).status_code == 200


@pytest.mark.parametrize("authorization", ["k", "Bearer", "Bearer  ", "Basic azpr"])
def test_a_header_without_a_bearer_key_is_a_missing_key(authorization: str) -> None:
    response = list_pets("k", authorization)
    message = assert_error(response, 401, "missing_api_key")
    header = "Authorization: Bearer <API_KEY>"
    assert message == f"Send an API key in the header '{header}'."
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="petstore"'


@pytest.mark.parametrize(
    ("keys", "key"),
    [("k", "K"), ("k", "kk"), ("kk", "k"), ("k", "é")]
    + [("k", "k,k"), ("a,b", "a,b"), ("a,b", ",")],
)
def test_every_other_key_is_invalid(keys: str, key: str) -> None:
    response = list_pets(keys, f"Bearer {key}")
    message = assert_error(response, 401, "invalid_api_key")
    assert message == "The API key is not valid. Send one of the keys of this service."
    challenge = 'Bearer realm="petstore", error="invalid_token"'
    assert response.headers["WWW-Authenticate"] == challenge
