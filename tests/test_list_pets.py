"""listPets: the limit, the filter, and paging from one Link to the next."""

import pytest
from flask.testing import FlaskClient

import schemas
from tests.checks import add_pet, add_pets, assert_error, next_path


def walk(client: FlaskClient, path: str) -> list[list[int]]:
    """Return the ids of every page, from the one at `path` to the last."""
    pages = []
    while path:
        response = client.get(path)
        assert response.status_code == 200
        pages.append([pet["id"] for pet in response.get_json()])
        path = next_path(response.headers.get("Link", ""))
    return pages


def test_an_empty_store_lists_no_pets(client: FlaskClient) -> None:
    response = client.get("/v1/pets")
    assert (response.status_code, response.data) == (200, b"[]\n")
    assert response.content_type == "application/json"
    assert "Link" not in response.headers


def test_pets_are_listed_whole_and_oldest_first(client: FlaskClient) -> None:
    add_pets(client, "sold", "available")
    assert client.get("/v1/pets").get_json() == [
        {"id": 1, "name": "Rex", "categoryId": 1, "status": "sold"},
        {"id": 2, "name": "Rex", "categoryId": 1, "status": "available"},
    ]


def test_a_page_holds_twenty_pets_unless_told(client: FlaskClient) -> None:
    add_pets(client, *["sold"] * 21)
    response = client.get("/v1/pets")
    assert len(response.get_json()) == 20
    assert response.headers["Link"] == '</v1/pets?limit=20&after=20>; rel="next"'


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8, 100])
def test_following_next_visits_every_pet_once(client: FlaskClient, limit: int) -> None:
    ids = add_pets(client, *["pending"] * 7)
    pages = walk(client, f"/v1/pets?limit={limit}")
    assert sum(pages, []) == ids
    assert all(len(page) == limit for page in pages[:-1])
    assert pages[-1]


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_following_next_keeps_the_filter(client: FlaskClient, limit: int) -> None:
    ids = add_pets(client, *["sold", "available", "pending", "sold"] * 2)
    pages = walk(client, f"/v1/pets?limit={limit}&status=sold")
    assert sum(pages, []) == [ids[0], ids[3], ids[4], ids[7]]
    assert pages[-1]


def test_next_names_limit_status_and_after(client: FlaskClient) -> None:
    add_pets(client, "sold", "available", "sold")
    link = client.get("/v1/pets?status=sold&limit=1").headers["Link"]
    assert link == '</v1/pets?limit=1&status=sold&after=1>; rel="next"'


def test_a_pet_added_meanwhile_is_on_a_later_page(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold")
    link = client.get("/v1/pets?limit=1").headers["Link"]
    add_pets(client, "sold")
    assert walk(client, next_path(link)) == [[2], [3]]


def test_only_pets_past_after_are_listed(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold", "sold")
    assert walk(client, "/v1/pets?after=0") == [[1, 2, 3]]
    assert walk(client, "/v1/pets?after=2") == [[3]]
    assert walk(client, "/v1/pets?after=9223372036854775807") == [[]]


@pytest.mark.parametrize("status", ["available", "pending", "sold"])
def test_a_status_lists_only_its_pets(client: FlaskClient, status: str) -> None:
    add_pets(client, "available", "pending", "sold")
    pets = client.get(f"/v1/pets?status={status}").get_json()
    assert [pet["status"] for pet in pets] == [status]


@pytest.mark.parametrize("query", ["limit=1", "limit=100", "Limit=0", "x=1&x=2", "%ff"])
def test_other_queries_are_fine(client: FlaskClient, query: str) -> None:
    assert client.get(f"/v1/pets?{query}").status_code == 200


NOT_CANONICAL = ["", "x", "1_0", "+5", "-1", "%D9%A3", "1%D9%A3", "%205", "5%20", "1.5"]
NOT_CANONICAL += ["1e1", "007", "%00", "%FF", "1%0A", "9223372036854775808", "9" * 5000]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "status=", "status=SOLD", "status=%FF"]
    + [f"limit={text}" for text in NOT_CANONICAL]
    + [f"after={text}" for text in NOT_CANONICAL],
)
def test_a_parameter_that_breaks_its_rule_is_named(
    client: FlaskClient, query: str
) -> None:
    message = assert_error(client.get(f"/v1/pets?{query}"), 400, "invalid_query")
    assert message.startswith(f"{query.partition('=')[0]}: ")


@pytest.mark.parametrize(
    ("query", "name"),
    [("limit=5&limit=5", "limit"), ("status=sold&x=1&status=sold", "status")],
)
def test_a_parameter_given_twice_is_refused(
    client: FlaskClient, query: str, name: str
) -> None:
    message = assert_error(client.get(f"/v1/pets?{query}"), 400, "invalid_query")
    assert message == f"Give {name} only once."


def test_every_parameter_at_fault_is_named(client: FlaskClient) -> None:
    response = client.get("/v1/pets?limit=0&status=x&after=y")
    assert assert_error(response, 400, "invalid_query") == (
        "limit: Must be greater than or equal to 1 and less than or equal to 100. "
        "status: Must be one of: available, pending, sold. "
        "after: Not an integer in decimal digits."
    )


# The latest queries are remembered.


def test_the_same_query_lists_what_there_is_by_now(client: FlaskClient) -> None:
    for number in (1, 2):
        add_pet(client)
        assert len(client.get("/v1/pets?limit=5").get_json()) == number


def test_no_number_of_queries_fills_the_memory(client: FlaskClient) -> None:
    for number in range(300):
        assert client.get(f"/v1/pets?after={number}").status_code == 200
    assert schemas.parse_list_query.cache_info().currsize <= 256


def test_head_answers_like_get_without_the_body(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold")
    get = client.get("/v1/pets?limit=1")
    head = client.head("/v1/pets?limit=1")
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers == get.headers
