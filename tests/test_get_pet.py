"""getPet: found, not found, announced as deprecated, and gone from its day on."""

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.checks import REMOVED_AT, add_pet, assert_error, execute


def test_a_pet_is_found_by_its_id(client: FlaskClient) -> None:
    pets = [add_pet(client), add_pet(client, name="Tom", status="sold")]
    assert [client.get(f"/v1/pets/{n}").get_json() for n in (1, 2)] == pets


@pytest.mark.parametrize(
    "text",
    ["2", "0", "-1", "01", "+1", "1.0", "1_0", "abc", "%D9%A1", "%201", "1%0A", "%ff"]
    + ["9223372036854775807", "9" * 5000],
)
def test_an_id_that_no_pet_has_is_not_found(client: FlaskClient, text: str) -> None:
    add_pet(client)
    assert_error(client.get(f"/v1/pets/{text}"), 404, "pet_not_found")


def test_the_largest_id_is_found_and_a_larger_one_is_not(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    execute(database, "UPDATE sqlite_sequence SET seq = 9223372036854775806")
    pet = add_pet(file_client)
    assert pet["id"] == 9223372036854775807
    assert file_client.get("/v1/pets/9223372036854775807").get_json() == pet
    response = file_client.get("/v1/pets/9223372036854775808")
    assert_error(response, 404, "pet_not_found")


def test_it_announces_its_end_until_the_last_moment_and_is_gone_from_then_on(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pet = add_pet(client)
    for now, statuses in ((REMOVED_AT - 0.001, [200, 404]), (REMOVED_AT, [410, 410])):
        monkeypatch.setattr("time.time", lambda now=now: now)
        answers = [client.get(f"/v1/pets/{text}") for text in ("1", "abc")]
        assert [answer.status_code for answer in answers] == statuses
        for answer in answers:
            assert answer.headers["Deprecation"] == "@1795132800"
            assert answer.headers["Sunset"] == "Thu, 05 Dec 2030 00:00:00 GMT"
            assert answer.headers["Link"] == '</v1/pets>; rel="successor-version"'
    assert client.get("/v1/pets").get_json() == [pet]
