"""listPets: the limit, the filter, and paging from one Link to the next."""

import pytest
from flask.testing import FlaskClient
from werkzeug.http import parse_options_header

import schemas
from tests.checks import add_pet, add_pets, assert_error


def next_url(link: str) -> str:
    """Return the target of a Link header that must say rel="next"."""
    target, options = parse_options_header(link)
    assert options == {"rel": "next"}
    return target.removeprefix("<").removesuffix(">")


def walk(client: FlaskClient, url: str) -> list[list[int]]:
    """Return the ids of every page, from the one at `url` to the last."""
    pages = []
    while True:
        response = client.get(url)
        assert response.status_code == 200
        pages.append([pet["id"] for pet in response.get_json()])
        if "Link" not in response.headers:
            return pages
        url = next_url(response.headers["Link"])


def test_an_empty_store_lists_no_pets(client: FlaskClient) -> None:
    response = client.get("/v1/pets")
    assert (response.status_code, response.data) == (200, b"[]")
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


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 7, 8, 100])
def test_following_next_visits_every_pet_once(client: FlaskClient, limit: int) -> None:
    ids = add_pets(client, *["pending"] * 7)
    pages = walk(client, f"/v1/pets?limit={limit}")
    assert sum(pages, []) == ids
    assert all(len(page) == limit for page in pages[:-1])
    assert pages[-1]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
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
    assert walk(client, next_url(link)) == [[2], [3]]


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
NOT_CANONICAL += ["1.0", "1e1", "007", "0x1", "%00", "%FF", "1%0A", "1%00"]
NOT_CANONICAL += ["9223372036854775808", "9" * 5000]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "status=",
        "status=SOLD",
        "status=lost",
        *(f"limit={text}" for text in NOT_CANONICAL),
        *(f"after={text}" for text in NOT_CANONICAL),
    ],
)
def test_a_parameter_that_breaks_its_rule_is_named(
    client: FlaskClient, query: str
) -> None:
    response = client.get(f"/v1/pets?{query}")
    assert_error(response, 400, "invalid_query")
    assert response.get_json()["message"].startswith(f"{query.partition('=')[0]} must ")


@pytest.mark.parametrize(
    "query", ["limit=5&limit=5", "after=1&after=2", "status=sold&x=1&status=sold"]
)
def test_a_parameter_given_twice_is_refused(client: FlaskClient, query: str) -> None:
    response = client.get(f"/v1/pets?{query}")
    assert_error(response, 400, "invalid_query")
    name = query.partition("=")[0]
    message = response.get_json()["message"]
    assert message.startswith(f"{name} is given twice, it must be one ")


# The latest queries are remembered.


def test_a_query_that_was_refused_is_refused_again(client: FlaskClient) -> None:
    first, again = (client.get("/v1/pets?limit=0") for _ in range(2))
    assert_error(first, 400, "invalid_query")
    assert_error(again, 400, "invalid_query")
    assert again.get_json() == first.get_json()


def test_the_same_query_lists_what_there_is_by_now(client: FlaskClient) -> None:
    pets = [add_pet(client), add_pet(client)]
    assert client.get("/v1/pets?limit=5").get_json() == pets
    pets.append(add_pet(client))
    assert client.get("/v1/pets?limit=5").get_json() == pets


def test_no_number_of_queries_fills_the_memory(client: FlaskClient) -> None:
    for number in range(300):
        assert client.get(f"/v1/pets?after={number}").status_code == 200
    assert schemas.parse_list_query.cache_info().currsize <= 256


def test_every_parameter_at_fault_is_named(client: FlaskClient) -> None:
    response = client.get("/v1/pets?limit=0&status=x&after=y")
    assert_error(response, 400, "invalid_query")
    assert response.get_json()["message"] == (
        "limit must be one decimal integer from 1 to 100; "
        "status must be one of available, pending, sold; "
        "after must be one decimal integer from 0 to 9223372036854775807."
    )


def test_head_answers_like_get_without_the_body(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold")
    get = client.get("/v1/pets?limit=1")
    head = client.head("/v1/pets?limit=1")
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers == get.headers
