"""listPets: the limit, the filter, and the link to the next page."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.helpers import add_pet, all_pets, assert_error, other_program


def test_pets_are_listed_oldest_first(client: FlaskClient) -> None:
    pets = [add_pet(client, name="Tom", status="sold"), add_pet(client, name="Ada")]
    assert [pet["id"] for pet in pets] == [1, 2]
    response = client.get("/v1/pets")
    assert response.get_json() == pets
    # One pet per line.
    assert response.text.count("\n") == 2
    assert response.text.startswith('[{"id":1,')


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("status", ["", "available", "pending", "sold"])
def test_following_the_links_finds_each_pet_once(
    client: FlaskClient, limit: int, status: str
) -> None:
    statuses = ["sold", "available", "pending", "sold", "sold", "pending", "sold"]
    pets = [add_pet(client, status=each) for each in statuses]
    path = f"/v1/pets?limit={limit}"
    if status:
        path += f"&status={status}"
        pets = [pet for pet in pets if pet["status"] == status]
    assert all_pets(client, path) == pets


@pytest.mark.parametrize(
    ("query", "prefix", "link"),
    [
        ("", "", "/v1/pets?limit=20&after=20"),
        ("limit=1&status=sold", "", "/v1/pets?limit=1&status=sold&after=1"),
        ("after=3&limit=2", "/store", "/store/v1/pets?limit=2&after=5"),
        # The unknown ones are arguments of Flask's url_for.
        (
            "limit=1&_external=1&_scheme=https&_anchor=x&_method=POST",
            "",
            "/v1/pets?limit=1&after=1",
        ),
        ("limit=21", "", None),
    ],
)
def test_the_link_to_the_next_page_has_the_prefix_the_limit_and_the_status(
    client: FlaskClient, query: str, prefix: str, link: str | None
) -> None:
    for _ in range(21):
        add_pet(client, status="sold")
    environ = {"SCRIPT_NAME": prefix}
    response = client.get(f"/v1/pets?{query}", environ_overrides=environ)
    assert response.headers.get("Link") == (f'<{link}>; rel="next"' if link else None)


def test_a_client_that_follows_the_links_sees_pets_that_are_added_meanwhile(
    client: FlaskClient,
) -> None:
    def add_pets() -> list[int]:
        return [add_pet(client)["id"] for _ in range(15)]

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(add_pets) for _ in range(4)]
        seen: list[int] = []
        writers_are_done = False
        while not writers_are_done:
            # The last round begins after the writers are done, to see their last pets.
            writers_are_done = all(writer.done() for writer in writers)
            path = f"/v1/pets?limit=3&after={seen[-1] if seen else 0}"
            seen += [pet["id"] for pet in all_pets(client, path)]
    added = [pet_id for writer in writers for pet_id in writer.result()]
    assert seen == sorted(added)


def test_after_skips_the_pets_up_to_an_id(client: FlaskClient, database: Path) -> None:
    pets = [add_pet(client) for _ in range(3)]
    assert client.get("/v1/pets?after=0").get_json() == pets
    assert client.get("/v1/pets?after=2").get_json() == pets[2:]
    assert client.get("/v1/pets?after=9223372036854775807").get_json() == []
    # Not so many pets: pet 1 is the only one before pet 3.
    with other_program(database, "DELETE FROM pets WHERE id = 2"):
        pass
    for query in ("after=2", "after=2&status=available"):
        assert client.get(f"/v1/pets?{query}").get_json() == pets[2:]


def test_unknown_parameters_are_ignored_and_the_last_of_a_repeated_one_counts(
    client: FlaskClient,
) -> None:
    pets = [add_pet(client), add_pet(client)]
    repeated = "limit=0&limit=1&status=&status=available"
    page = client.get(f"/v1/pets?Limit=0&x&%ff&{repeated}")
    assert page.get_json() == pets[:1]
    # WSGI has a character for each byte. This byte is not UTF-8.
    page = client.get("/v1/pets", environ_overrides={"QUERY_STRING": "x=\xff&limit=1"})
    assert page.get_json() == pets[:1]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=", "limit=x", "limit=1.5", f"limit={'9' * 5000}"]
    + ["status=", "status=SOLD", "status=%ff"]
    + ["after=-1", "after=", "after=9223372036854775808"],
)
def test_an_invalid_parameter_is_named(client: FlaskClient, query: str) -> None:
    message = assert_error(client.get(f"/v1/pets?{query}"), 400, "invalid_query")
    assert message.startswith(f"{query.partition('=')[0]}: ")


def test_every_invalid_parameter_is_named(client: FlaskClient) -> None:
    response = client.get("/v1/pets?after=y&limit=0&status=x")
    assert assert_error(response, 400, "invalid_query") == (
        "limit: Must be an integer from 1 to 100. "
        "status: Must be one of: available, pending, sold. "
        "after: Must be an integer from 0 to 9223372036854775807."
    )
