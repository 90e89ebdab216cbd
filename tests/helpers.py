"""Helpers of the tests: assertions, requests, and other programs that use the file."""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

# The smallest body that createPet accepts.
NEW_PET = {"name": "Rex", "categoryId": 1}

# Seconds since 1970: 1 January 2027, and 5 December 2030, when getPet is removed.
BEFORE_REMOVAL = 1798761600.0
REMOVAL = 1922659200.0


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the time that app.py sees, in seconds since 1970."""
    monkeypatch.setattr("app.time", SimpleNamespace(time=lambda: seconds))


# Assertions.


def assert_error(response: TestResponse, status: int, code: str) -> str:
    """Check that a response is an Error body, and return its message."""
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = response.get_json()
    assert body == {"code": code, "message": body["message"], "status": status}
    assert body["message"].endswith(".")
    return str(body["message"])


def assert_unavailable(*responses: TestResponse) -> None:
    """Check that each response says that the store cannot answer for now."""
    for response in responses:
        assert_error(response, 503, "storage_unavailable")
        assert response.headers["Retry-After"] == "1"


# Requests.


def post_pet(client: FlaskClient, name: str = "Rex", **members: object) -> TestResponse:
    """Send a pet. Several threads may do so at once."""
    return client.post("/v1/pets", json={**NEW_PET, "name": name, **members})


def add_pet(client: FlaskClient, **members: Any) -> dict[str, Any]:
    """Add a pet, and return the pet in the response."""
    response = post_pet(client, **members)
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
    """Return the path in a Link header, or an empty string if the header is missing."""
    return link.partition(">")[0].lstrip("<")


def routes(client: FlaskClient) -> dict[str, str]:
    """Return the endpoint of each method and path, without HEAD and OPTIONS.

    A path is written as in the OpenAPI document: `<pet_id>` is `{petId}`.
    """

    def parameter(match: re.Match[str]) -> str:
        first, *words = match[1].split("_")
        return f"{{{first}{''.join(word.title() for word in words)}}}"

    return {
        f"{method} {re.sub('<(.*?)>', parameter, rule.rule)}": rule.endpoint
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


# Files.


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def copy_as_if_killed(database: Path) -> Path:
    """Copy the files that would be left if this process were killed now."""
    copy = Path(mkdtemp(dir=database.parent), database.name)
    shutil.copy(database, copy)
    if wal_of(database).exists():
        shutil.copy(wal_of(database), wal_of(copy))
    return copy


def pets_if_killed_now(database: Path) -> list[dict[str, Any]]:
    """Return the pets that would be stored if this process were killed now."""
    with connected(copy_as_if_killed(database)) as connection:
        connection.row_factory = sqlite3.Row
        pets = "SELECT id, name, category_id AS categoryId, status FROM pets"
        return [dict(row) for row in connection.execute(f"{pets} ORDER BY id")]


# Other programs, and SQLite.


@contextmanager
def connected(database: Path, *statements: str) -> Iterator[sqlite3.Connection]:
    """Run statements in the file, and keep it open during a `with` block."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()
        yield connection


def locked_by_another_program(
    database: Path,
) -> AbstractContextManager[sqlite3.Connection]:
    """Hold the write lock of the file during a `with` block."""
    return connected(database, "BEGIN IMMEDIATE")


def read_by_another_program(
    database: Path,
) -> AbstractContextManager[sqlite3.Connection]:
    """Keep a read transaction open during a `with` block."""
    return connected(database, "BEGIN", "SELECT * FROM pets")


def execute(database: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in the file, and return the rows of the last one."""
    with connected(database, *statements[:-1]) as connection:
        return connection.execute(statements[-1]).fetchall()


def sqlite_error(message: str, code: int) -> sqlite3.OperationalError:
    """Return an error with a result code, as SQLite raises it."""
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


@contextmanager
def intercept_statements(
    *,
    before: Callable[[str], object] = lambda _: None,
    after: Callable[[str], object] = lambda _: None,
) -> Iterator[None]:
    """Call functions before and after each SQL statement.

    They are called for the connections that are opened during a `with` block.
    """

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            before(sql)
            cursor = super().execute(sql, *values)
            after(sql)
            return cursor

        def rollback(self) -> None:
            before("ROLLBACK")
            super().rollback()
            after("ROLLBACK")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
        yield


def refuse_after_failed_rollback(client: FlaskClient) -> dict[str, Any]:
    """Add a pet, and send another one whose COMMIT and rollback fail.

    The client must not have used its store. Return the pet that was added.
    """
    failures: list[str] = []

    def run_out_of_memory(sql: str) -> None:
        if failures and sql == failures[0]:
            failures.pop(0)
            raise MemoryError

    with intercept_statements(before=run_out_of_memory):
        pet = add_pet(client)
        failures += ["COMMIT", "ROLLBACK"]
        assert_unavailable(post_pet(client))
    assert not failures
    return pet
