"""What the tests assert, how they make pets, and what other programs do to a file."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

# A pet to add: the least that createPet takes.
PET = {"name": "Rex", "categoryId": 1}

# When getPet is removed: date -ud 2030-12-05T00:00:00Z +%s
REMOVED_AT = 1922659200.0


def assert_error(response: TestResponse, status: int, code: str) -> str:
    """Check that a response is the Error body and nothing else; return its message."""
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = response.get_json()
    assert body == {"code": code, "message": body["message"], "status": status}
    assert body["message"].endswith(".")
    return str(body["message"])


def assert_unavailable(*answers: TestResponse) -> None:
    """Check that the store could not answer, and that the client may try again."""
    for answer in answers:
        assert_error(answer, 503, "storage_unavailable")
        assert answer.headers["Retry-After"] == "1"


def post(client: FlaskClient, name: str = "Rex", **members: object) -> TestResponse:
    """Send a pet; several threads may do so at once."""
    return client.post("/v1/pets", json={**PET, "name": name, **members})


def add_pet(client: FlaskClient, **members: Any) -> dict[str, Any]:
    """Add a pet, and return it as the answer has it."""
    response = post(client, **members)
    assert response.status_code == 201, response.text
    return response.get_json()


def add_pets(client: FlaskClient, *statuses: str) -> list[int]:
    """Add a pet of each status, and return their ids."""
    return [add_pet(client, status=status)["id"] for status in statuses]


def each_page(client: FlaskClient, path: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the pets of every page, from the one at `path` to the last."""
    while path:
        page = client.get(path)
        assert page.status_code == 200, page.text
        yield page.get_json()
        path = next_path(page.headers.get("Link", ""))


def all_pets(client: FlaskClient) -> list[dict[str, Any]]:
    """Return every pet, page by page."""
    return [pet for page in each_page(client, "/v1/pets?limit=100") for pet in page]


def next_path(link: str) -> str:
    """Return the path in a Link header, or nothing where there is none."""
    return link.partition(">")[0].lstrip("<")


def routes(client: FlaskClient) -> dict[str, str]:
    """Return the endpoint of every method and path, but not of HEAD and OPTIONS."""
    return {
        f"{method} {re.sub('<.*>', '{petId}', rule.rule)}": rule.endpoint
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


# What other programs do to the file.


@contextmanager
def used_by_another(database: Path, *statements: str) -> Iterator[sqlite3.Connection]:
    """Run statements in the file, and keep it open for the length of a `with` block."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()
        yield connection


def held(database: Path) -> AbstractContextManager[object]:
    """Hold the file as who writes does, for the length of a `with` block."""
    return used_by_another(database, "BEGIN IMMEDIATE")


def execute(database: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in the file, and return the rows of the last."""
    with used_by_another(database, *statements[:-1]) as connection:
        return connection.execute(statements[-1]).fetchall()
