"""The store: pets that got a 201, batches, pets in memory, and other databases."""

import sqlite3
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from sqlite_file import SqliteFile
from storage import (
    SELECT_PAGE_OF_STATUS,
    InMemory,
    Rows,
    StorageUnavailable,
    Values,
)
from tests.helpers import (
    NEW_PET,
    add_pet,
    all_pets,
    assert_unavailable,
    create_client,
    needs_linux,
    other_program,
    post_pet,
    wal_of,
)
from tests.request_table import REQUESTS, Request
from tests.service import run, serving, start_writers, wait_until

# Pets that got a 201. system/test_disk.py shows that they are on the disk.


@needs_linux
def test_no_pet_that_got_a_201_is_lost_by_kill_9(database: Path) -> None:
    names: list[str] = []
    with ThreadPoolExecutor(8) as threads, serving(database) as service:
        writers = start_writers(threads, service, names, 200)
        service.kill()
    assert [writer.result() for writer in writers] == [None] * 8
    stored = [pet["name"] for pet in all_pets(create_client(database))]
    assert set(names) <= set(stored)
    assert len(set(stored)) == len(stored)


# A program that ends while its threads add pets, and prints the name of each pet.
ENDS_WHILE_ADDING = """
import os, sys, threading
from tests.helpers import add_pet, create_client

client = create_client(sys.argv[1])

def add_pets(thread, count):
    for number in range(count):
        pet = add_pet(client, name=f"{thread} {number}")
        os.write(1, (pet["name"] + "\\n").encode())
        client.get("/v1/pets")

for number in range(8):
    threading.Thread(target=add_pets, args=[number, 10_000], daemon=True).start()
add_pets(8, 20)
"""


def test_a_program_may_end_while_its_threads_add_pets(database: Path) -> None:
    ended = run(sys.executable, "-c", ENDS_WHILE_ADDING, str(database))
    assert (ended.returncode, ended.stderr) == (0, "")
    stored = {pet["name"] for pet in all_pets(create_client(database))}
    assert set(ended.stdout.splitlines()) <= stored


def test_sixteen_threads_may_send_the_first_requests(tmp_path: Path) -> None:
    for number in range(20):
        client = create_client(tmp_path / f"{number}.db")
        with ThreadPoolExecutor(16) as threads:
            lists = [threads.submit(all_pets, client) for _ in range(8)]
            creates = [threads.submit(add_pet, client) for _ in range(8)]
        pets = sorted((each.result() for each in creates), key=lambda pet: pet["id"])
        assert all_pets(client) == pets
        assert all(each.result() == pets[: len(each.result())] for each in lists)


# A batch: the statements of threads that write at the same time.


def send_together(
    client: FlaskClient, database: Path, paths: list[str]
) -> list[TestResponse]:
    """Post a pet to each path. All requests but the first share a batch."""
    # No response tells when a thread has joined a batch.
    group_commit = client.application.extensions["store"]._database._group_commit

    def is_committing_and_joined_by(count: int) -> bool:
        joined = len(group_commit._next_batch.statements)
        return group_commit.commit_lock.locked() and joined == count

    with ThreadPoolExecutor(len(paths)) as threads:

        def post(number: int) -> Future[TestResponse]:
            pet = {**NEW_PET, "name": f"{number}"}
            return threads.submit(client.post, paths[number], json=pet)

        # The first request waits for the lock. Meanwhile, the others join a batch.
        with other_program(database, "BEGIN IMMEDIATE"):
            futures = [post(0)]
            wait_until(lambda: is_committing_and_joined_by(0))
            futures += [post(number) for number in range(1, len(paths))]
            wait_until(lambda: is_committing_and_joined_by(len(paths) - 1))
        return [future.result() for future in futures]


def add_view(client: FlaskClient, **members: Any) -> None:
    """Add a view at /x that adds a pet with these members, unchecked."""
    store = client.application.extensions["store"]
    values = {"name": "Rex", "category_id": 1, "status": "sold", **members}
    client.application.add_url_rule(
        "/x", view_func=lambda: store.add(**values), methods=["POST"]
    )


def names(pets: list[Any]) -> set[str]:
    """Return the names of pets."""
    return {pet["name"] for pet in pets}


@pytest.mark.parametrize(
    "members", [{"category_id": 2**63}, {"status": "lost"}, {"name": None}]
)
def test_a_statement_that_fails_fails_alone(
    client: FlaskClient, database: Path, members: dict[str, Any]
) -> None:
    add_view(client, **members)
    responses = send_together(client, database, ["/v1/pets", "/x"] * 8)
    statuses = [response.status_code for response in responses]
    assert statuses == [201, 500] * 8
    assert len(all_pets(client)) == 8


def test_a_statement_that_undoes_the_transaction_fails_its_batch(
    client: FlaskClient, database: Path
) -> None:
    trigger = (
        "CREATE TRIGGER no_pet_15 BEFORE INSERT ON pets WHEN NEW.name = '15' "
        "BEGIN SELECT RAISE(ROLLBACK, 'no pet 15'); END"
    )
    with other_program(database, trigger):
        pass
    responses = send_together(client, database, ["/v1/pets"] * 16)
    added = [each.get_json() for each in responses if each.status_code == 201]
    refused = [each for each in responses if each.status_code == 500]
    assert (len(added), len(refused)) == (1, 15)
    assert names(added) == names(all_pets(client))


@needs_linux
def test_a_request_waits_for_the_lock_also_after_a_move(
    client: FlaskClient, database: Path
) -> None:
    add_pet(client)
    moved = database.rename(database.with_name("moved.db"))
    assert_unavailable(post_pet(client))
    moved.rename(database)
    responses = send_together(client, database, ["/v1/pets"] * 2)
    assert [response.status_code for response in responses] == [201, 201]


class LockState:
    """A value that is stored as "locked", or as "free" if another program may write."""

    def __init__(self, database: Path) -> None:
        self.database = database

    def __conform__(self, protocol: object) -> str:
        with closing(sqlite3.connect(self.database, timeout=0)) as program:
            try:
                program.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return "locked"
            return "free"


def test_a_transaction_has_the_lock_before_its_first_statement(
    client: FlaskClient, database: Path
) -> None:
    # Otherwise, each statement of a batch would wait for the lock of another program.
    add_view(client, name=LockState(database))
    client.post("/x")
    assert names(all_pets(client)) == {"locked"}


def test_a_query_cannot_change_the_store(client: FlaskClient) -> None:
    database = client.application.extensions["store"]._database
    client.application.add_url_rule(
        "/x", view_func=lambda: database.read("DELETE FROM pets", {})
    )
    pets = [add_pet(client)]
    assert_unavailable(client.get("/x"))
    assert all_pets(client) == pets


# The schema.


def test_a_list_of_a_status_uses_the_index(client: FlaskClient, database: Path) -> None:
    values = {"status": "sold", "after": 0, "limit": 20}
    with other_program(database) as program:
        query = f"EXPLAIN QUERY PLAN {SELECT_PAGE_OF_STATUS}"
        [(*_, plan)] = program.execute(query, values).fetchall()
    assert plan.endswith(" USING INDEX pets_by_status (status=? AND rowid>?)")


@pytest.mark.parametrize(
    "pet",
    ["'Rex', 'one', 'sold'", "x'00', 1, 'sold'", "'Rex', 1, 'lost'"]
    + ["NULL, 1, 'sold'", "'Rex', NULL, 'sold'", "'Rex', 1, NULL"],
)
def test_another_program_cannot_add_what_no_pet_has(
    client: FlaskClient, database: Path, pet: str
) -> None:
    with other_program(database) as program, pytest.raises(sqlite3.IntegrityError):
        program.execute(f"INSERT INTO pets VALUES (1, {pet})")


# In memory, several stores, and other databases.


@pytest.mark.parametrize("row", REQUESTS, ids=str)
def test_a_store_in_memory_answers_as_a_file_does(row: Request) -> None:
    client = create_client(":memory:")
    add_pet(client)
    assert row.send(client).status_code == row.status


def test_each_store_in_memory_has_its_own_pets_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A file that only has the same name.
    (tmp_path / ":memory:").touch()
    client, other = create_client(":memory:"), create_client(Path(":memory:"))
    (tmp_path / ":memory:").unlink()
    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(add_pet, client) for _ in range(80)]
        lists = [threads.submit(all_pets, client) for _ in range(80)]
    pets = sorted((create.result() for create in creates), key=lambda pet: pet["id"])
    assert all_pets(client) == pets
    assert all(pets[: len(seen.result())] == seen.result() for seen in lists)
    assert all_pets(other) == list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_file", [True, False])
def test_a_closed_store_may_be_closed_again_and_opens_at_the_next_request(
    database: Path, is_file: bool
) -> None:
    store = SqliteFile(str(database)) if is_file else InMemory()
    client = create_client(database, store)
    pets = [add_pet(client)]
    store.close()
    store.close()
    assert not wal_of(database).exists()
    if is_file:
        moved = database.rename(database.with_name("moved.db"))
        assert_unavailable(post_pet(client))
        moved.rename(database)
    assert all_pets(client) == (pets if is_file else [])
    pet = add_pet(client)
    assert all_pets(client)[-1] == pet
    store.close()


class Unreachable:
    """A Database whose server does not answer."""

    def read(self, sql: str, values: Values) -> Rows:
        raise StorageUnavailable("it cannot be reached")

    write = read


def test_another_database_that_cannot_answer_is_503(database: Path) -> None:
    client = create_client(database, Unreachable())
    assert_unavailable(client.get("/v1/pets"), client.get("/v1/pets/1"))
    assert_unavailable(post_pet(client), client.get("/healthz"))
    assert not database.exists()
