"""getPet: found, not found, announced as deprecated, and gone from its day on."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.checks import REMOVED_AT, add_pet, add_pets, assert_error


def assert_deprecated(response: TestResponse) -> None:
    assert response.headers["Deprecation"] == "@1795132800"
    assert response.headers["Sunset"] == "Thu, 05 Dec 2030 00:00:00 GMT"
    assert response.headers["Link"] == '</v1/pets>; rel="successor-version"'


def test_a_pet_is_found_by_its_id(client: FlaskClient) -> None:
    add_pet(client)
    pet = add_pet(client, name="Tom", status="sold")
    response = client.get("/v1/pets/2")
    assert response.status_code == 200
    assert response.content_type == "application/json"
    assert response.get_json() == pet
    assert_deprecated(response)


@pytest.mark.parametrize(
    "text",
    ["2", "0", "-1", "01", "+1", "1.0", "1_0", "abc", "%D9%A1", "%201"]
    + ["1%20", "1%00", "1%0A", "%ff", "😀", "9223372036854775807", "9" * 5000],
)
def test_an_id_that_no_pet_has_is_not_found(client: FlaskClient, text: str) -> None:
    add_pet(client)
    response = client.get(f"/v1/pets/{text}")
    assert_error(response, 404, "pet_not_found")
    assert_deprecated(response)


def test_digits_of_other_scripts_are_no_id(client: FlaskClient) -> None:
    add_pets(client, *["sold"] * 13)
    assert client.get("/v1/pets/13").status_code == 200
    assert_error(client.get("/v1/pets/1%D9%A3"), 404, "pet_not_found")


def test_the_largest_id_is_found_and_a_larger_one_is_not(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 9223372036854775806")
    pet = add_pet(file_client)
    assert pet["id"] == 9223372036854775807
    assert file_client.get("/v1/pets/9223372036854775807").get_json() == pet
    response = file_client.get("/v1/pets/9223372036854775808")
    assert_error(response, 404, "pet_not_found")


def test_it_is_there_until_the_last_moment(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_pet(client)
    monkeypatch.setattr("time.time", lambda: REMOVED_AT - 0.001)
    assert client.get("/v1/pets/1").status_code == 200


@pytest.mark.parametrize("text", ["1", "2", "abc"])
def test_it_is_gone_from_its_day_on_and_the_others_go_on(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("time.time", lambda: REMOVED_AT)
    pet = add_pet(client)
    response = client.get(f"/v1/pets/{text}")
    assert_error(response, 410, "gone")
    assert_deprecated(response)
    assert client.get("/v1/pets").get_json() == [pet]
