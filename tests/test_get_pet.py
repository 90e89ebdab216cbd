"""getPet: found, not found, deprecated, and gone."""

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.helpers import REMOVAL, add_pet, assert_error, execute, set_clock


def test_get_pet_finds_a_pet_by_its_id(client: FlaskClient) -> None:
    pets = [add_pet(client), add_pet(client, name="Tom", status="sold")]
    assert [client.get(f"/v1/pets/{n}").get_json() for n in (1, 2)] == pets


@pytest.mark.parametrize(
    "text",
    ["2", "0", "-1", "01", "+1", "1.0", "1_0", "abc", "%D9%A1", "%201", "1%0A", "%ff"]
    + ["9223372036854775807", "9" * 5000],
)
def test_other_ids_are_not_found(client: FlaskClient, text: str) -> None:
    add_pet(client)
    assert_error(client.get(f"/v1/pets/{text}"), 404, "pet_not_found")


def test_ids_end_at_the_largest_int64(file_client: FlaskClient, database: Path) -> None:
    add_pet(file_client)
    execute(database, "UPDATE sqlite_sequence SET seq = 9223372036854775806")
    pet = add_pet(file_client)
    assert pet["id"] == 9223372036854775807
    assert file_client.get("/v1/pets/9223372036854775807").get_json() == pet
    response = file_client.get("/v1/pets/9223372036854775808")
    assert_error(response, 404, "pet_not_found")


def test_get_pet_is_deprecated_then_gone(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pet = add_pet(client)
    for now, statuses in ((REMOVAL - 0.001, [200, 404]), (REMOVAL, [410, 410])):
        set_clock(monkeypatch, now)
        responses = [client.get(f"/v1/pets/{text}") for text in ("1", "abc")]
        assert [response.status_code for response in responses] == statuses
        for response in responses:
            assert response.headers["Deprecation"] == "@1795132800"
            assert response.headers["Sunset"] == "Thu, 05 Dec 2030 00:00:00 GMT"
            assert response.headers["Link"] == '</v1/pets>; rel="successor-version"'
    assert client.get("/v1/pets").get_json() == [pet]
