"""getPet: found, not found, deprecated, and gone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import app
from tests.helpers import add_pet, assert_error, other_program, post_pet

REMOVAL = datetime(2030, 12, 5, tzinfo=UTC)


def assert_deprecated(response: TestResponse) -> None:
    assert response.headers["Deprecation"] == "@1795132800"
    assert response.headers["Sunset"] == "Thu, 05 Dec 2030 00:00:00 GMT"
    assert response.headers["Link"] == '</v1/pets>; rel="successor-version"'


def test_get_pet_finds_a_pet_by_its_id(client: FlaskClient) -> None:
    pets = [add_pet(client), add_pet(client, name="Tom", status="sold")]
    for pet in pets:
        response = client.get(f"/v1/pets/{pet['id']}")
        assert response.get_json() == pet
        assert_deprecated(response)


@pytest.mark.parametrize("pet_id", ["0", "2", "9223372036854775807"])
def test_an_id_that_no_pet_has_is_not_found(client: FlaskClient, pet_id: str) -> None:
    add_pet(client)
    response = client.get(f"/v1/pets/{pet_id}")
    assert_error(response, 404, "pet_not_found")
    assert_deprecated(response)


@pytest.mark.parametrize(
    "text", ["", "abc", "-1", "1.0", "9223372036854775808", "9" * 5000]
)
def test_an_id_that_no_pet_can_have_matches_no_operation(
    client: FlaskClient, text: str
) -> None:
    response = client.get(f"/v1/pets/{text}")
    assert_error(response, 404, "not_found")
    assert "Deprecation" not in response.headers


def test_ids_end_at_the_largest_int64(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_pet(client)
    # SQLite keeps the largest id of a table with AUTOINCREMENT here.
    update = "UPDATE sqlite_sequence SET seq = 9223372036854775806"
    with other_program(database, update):
        pass
    pet = add_pet(client)
    assert pet["id"] == 9223372036854775807
    assert client.get("/v1/pets/9223372036854775807").get_json() == pet
    # No id is left.
    assert_error(post_pet(client), 503, "storage_unavailable")
    assert caplog.messages[-1].endswith("database or disk is full; free some space")


def test_get_pet_is_gone_from_5_december_2030_on(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pet = add_pet(client)
    monkeypatch.setattr(app, "now", lambda: REMOVAL - timedelta(milliseconds=1))
    assert client.get("/v1/pets/1").get_json() == pet
    monkeypatch.setattr(app, "now", lambda: REMOVAL)
    for pet_id in (1, 2):
        response = client.get(f"/v1/pets/{pet_id}")
        message = assert_error(response, 410, "gone")
        assert message == "Use GET /v1/pets with a status filter instead."
        assert_deprecated(response)
    assert client.get("/v1/pets").get_json() == [pet]


def test_the_time_of_the_removal_is_compared_with_each_request(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_pet(client)
    monkeypatch.undo()  # The application has the real time again.
    monkeypatch.setattr(app, "REMOVED_AT", datetime.now(UTC) + timedelta(hours=1))
    assert client.get("/v1/pets/1").status_code == 200
    monkeypatch.setattr(app, "REMOVED_AT", datetime.now(UTC))
    assert client.get("/v1/pets/1").status_code == 410


def test_a_new_pet_has_no_location_once_get_pet_is_gone(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "now", lambda: REMOVAL)
    response = post_pet(client)
    assert response.status_code == 201
    assert "Location" not in response.headers
