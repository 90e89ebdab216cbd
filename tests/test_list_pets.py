"""listPets: the limit, the filter, and the link to the next page."""

import pytest
from flask.testing import FlaskClient

import schemas
from tests.helpers import add_pets, assert_error, each_page, next_path


def ids_of_pages(client: FlaskClient, path: str) -> list[list[int]]:
    """Return the ids of every page, from the one at `path` to the last."""
    ids = []
    for page in each_page(client, path):
        ids.append([pet["id"] for pet in page])
        assert len(ids) < 10, "the links do not end"
    return ids


def test_pets_are_listed_oldest_first(client: FlaskClient) -> None:
    add_pets(client, "sold", "available")
    assert client.get("/v1/pets").get_json() == [
        {"id": 1, "name": "Rex", "categoryId": 1, "status": "sold"},
        {"id": 2, "name": "Rex", "categoryId": 1, "status": "available"},
    ]


def test_a_page_has_twenty_pets_by_default(client: FlaskClient) -> None:
    add_pets(client, *["sold"] * 21)
    response = client.get("/v1/pets")
    assert len(response.get_json()) == 20
    assert response.headers["Link"] == '</v1/pets?limit=20&after=20>; rel="next"'


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 100])
def test_following_the_links_finds_each_pet_once(
    client: FlaskClient, limit: int
) -> None:
    pets = ["sold", "available", "pending", "sold", "sold", "pending", "sold"]
    add_pets(client, *pets)
    for query in ("", "&status=available", "&status=pending", "&status=sold"):
        expected = [
            n for n, status in enumerate(pets, 1) if not query or status in query
        ]
        pages = ids_of_pages(client, f"/v1/pets?limit={limit}{query}")
        assert sum(pages, []) == expected
        assert all(len(page) == limit for page in pages[:-1])
        assert pages[-1]


def test_a_pet_added_between_two_pages_is_on_a_later_page(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold")
    link = client.get("/v1/pets?limit=1").headers["Link"]
    add_pets(client, "sold")
    assert ids_of_pages(client, next_path(link)) == [[2], [3]]


def test_after_skips_the_pets_up_to_an_id(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold", "sold")
    assert ids_of_pages(client, "/v1/pets?after=0") == [[1, 2, 3]]
    assert ids_of_pages(client, "/v1/pets?after=2") == [[3]]
    assert ids_of_pages(client, "/v1/pets?after=9223372036854775807") == [[]]


def test_unknown_parameters_are_ignored(client: FlaskClient) -> None:
    assert client.get("/v1/pets?Limit=0&x=1&x=2&%ff").get_json() == []


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "status=", "status=SOLD", "status=%FF", "after=-1"]
    + ["after=", "after=01", "after=1.5", "after=9223372036854775808"]
    + [f"limit={text}" for text in ("", "x", "1_0", "+5", "%205", "5%20", "1.5", "007")]
    + [f"limit={text}" for text in ("%D9%A3", "1%D9%A3", "1%0A", "9" * 5000)],
)
def test_an_invalid_parameter_is_named(client: FlaskClient, query: str) -> None:
    message = assert_error(client.get(f"/v1/pets?{query}"), 400, "invalid_query")
    assert message.startswith(f"{query.partition('=')[0]}: ")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=5&limit=5", "Send limit only once."),
        ("status=&limit=5&x=1&status=&limit=5", "Send limit and status only once."),
        (
            "limit=0&status=x&after=y",
            "limit: Must be greater than or equal to 1 and less than or equal to 100. "
            "status: Must be one of: available, pending, sold. "
            "after: Must be 1 to 19 digits, with no sign or leading zero.",
        ),
    ],
)
def test_all_invalid_parameters_are_named(
    client: FlaskClient, query: str, message: str
) -> None:
    response = client.get(f"/v1/pets?{query}")
    assert assert_error(response, 400, "invalid_query") == message


def test_the_cache_of_parsed_queries_is_bounded() -> None:
    assert schemas.parse_list_query.cache_info().maxsize


def test_head_responds_like_get_without_the_body(client: FlaskClient) -> None:
    add_pets(client, "sold", "sold")
    get = client.get("/v1/pets?limit=1")
    head = client.head("/v1/pets?limit=1")
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers == get.headers
