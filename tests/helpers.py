"""Helpers of the tests: a client, its requests, and what an error looks like."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from sqlite_file import SqliteFile
from storage import Database, PetStore

KEY = "test-key"
NEW_PET = {"name": "Rex", "categoryId": 1}

needs_linux = pytest.mark.skipif(
    sys.platform != "linux",
    reason="Needs Linux: gunicorn, process groups, or files such as /dev/full",
)


def create_client(path: Path | str, database: Database | None = None) -> FlaskClient:
    """Return a client of a new application. It sends the key."""
    client = create_app(
        {"API_KEYS": KEY, "DATABASE": path}, database=database
    ).test_client()
    # Each request has this header.
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {KEY}"
    return client


def open_store(path: Path, name: str) -> SqliteFile:
    """Create a file with one pet of this name, and return it. It is still open."""
    database = SqliteFile(str(path))
    PetStore(database).add(name=name, category_id=1, status="sold")
    return database


def create_other_store(path: Path) -> Path:
    """Create a store with the pet Tom, close it, and return its path."""
    open_store(path, "Tom").close()
    assert not wal_of(path).exists()
    return path


def is_in_wal_mode(database: Path) -> bool:
    """Return what the header of the file says (sqlite.org/fileformat2.html)."""
    return database.read_bytes()[18:20] != b"\1\1"


def wal_of(database: Path) -> Path:
    """Return the path of the WAL."""
    return Path(f"{database}-wal")


def assert_error(response: TestResponse, status: int, code: str) -> str:
    """Check that a response is an Error body, and return its message."""
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = response.get_json()
    assert body == {"code": code, "message": body["message"], "status": status}
    return str(body["message"])


def assert_unavailable(*responses: TestResponse) -> None:
    """Check that each response says that the store cannot answer."""
    for response in responses:
        assert_error(response, 503, "storage_unavailable")


def post_pet(client: FlaskClient, **members: Any) -> TestResponse:
    """Send the pet Rex. `members` replace its members, or are added."""
    return client.post("/v1/pets", json={**NEW_PET, **members})


def add_pet(client: FlaskClient, **members: Any) -> dict[str, Any]:
    """Add the pet Rex, and return it. `members` replace its members, or are added."""
    response = post_pet(client, **members)
    assert response.status_code == 201, response.text
    return dict(response.get_json())


def all_pets(client: FlaskClient, path: str = "/v1/pets?limit=100") -> list[Any]:
    """Return the pets of every page, from the one at a path to the last."""
    pets = []
    while path:
        response = client.get(path)
        assert response.status_code == 200, response.text
        pets += response.get_json()
        path = response.headers.get("Link", "").partition(">")[0].lstrip("<")
    return pets


@contextmanager
def other_program(
    database: Path | str, *statements: str
) -> Iterator[sqlite3.Connection]:
    """Execute statements in the file, and keep it open during a `with` block.

    After a BEGIN, it has the lock during the block. A str is a URI.
    """
    with closing(
        sqlite3.connect(database, isolation_level=None, uri=isinstance(database, str))
    ) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection
