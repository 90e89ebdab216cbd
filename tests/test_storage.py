"""The store: what is on the disk, who waits, and what happens to the file."""

import gc
import os
import resource
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from app import StartError
from tests.helpers import (
    NEW_PET,
    add_pet,
    all_pets,
    assert_error,
    create_client,
    other_program,
    post_pet,
)
from tests.service import FLASK, GUNICORN, Service, request, run, serving

# A thread that has not ended after this many seconds is taken to be waiting.
MOMENT = 0.1


def assert_unavailable(*responses: TestResponse) -> None:
    """Check that each response says that the store cannot answer."""
    for response in responses:
        assert_error(response, 503, "storage_unavailable")


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list. Each statement that SQLite executes is added to it."""
    executed: list[str] = []
    connect = sqlite3.connect

    def connect_and_trace(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(executed.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_and_trace)
    return executed


# Pets that got a 201.


def add_pets_until_killed(service: Service, number: int, names: list[str]) -> None:
    """Add pets on one connection, and note the names of those that got a 201."""
    with closing(service.connect()) as connection:
        for count in range(100_000):
            name = f"{number} {count}"
            pet = {**NEW_PET, "name": name}
            try:
                assert request(connection, "POST", "/v1/pets", pet).status == 201
            except (OSError, HTTPException):
                return
            names.append(name)


def test_no_pet_that_got_a_201_is_lost_by_kill_9(database: Path) -> None:
    names: list[str] = []
    with serving(database) as service, ThreadPoolExecutor(8) as threads:
        writers = [
            threads.submit(add_pets_until_killed, service, number, names)
            for number in range(8)
        ]
        while len(names) < 200:
            assert service.request("GET", "/healthz").status == 200
        service.kill()
    for writer in writers:
        writer.result()
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
    ended = run("python", "-c", ENDS_WHILE_ADDING, str(database))
    assert (ended.returncode, ended.stderr) == (0, "")
    stored = {pet["name"] for pet in all_pets(create_client(database))}
    assert set(ended.stdout.splitlines()) <= stored


def test_a_commit_waits_until_the_disk_has_synced(
    file_client: FlaskClient, statements: list[str]
) -> None:
    add_pet(file_client)
    # https://sqlite.org/pragma.html#pragma_synchronous
    assert "PRAGMA synchronous = FULL" in statements


def test_an_index_finds_the_pets_of_a_status(
    file_client: FlaskClient, database: Path
) -> None:
    with other_program(database) as program:
        query = f"EXPLAIN QUERY PLAN {storage.SELECT_PAGE_OF_STATUS}"
        values = {"status": "sold", "after": 0, "limit": 20}
        [(*_, plan)] = program.execute(query, values).fetchall()
    assert "pets_by_status (status=? AND rowid>?)" in plan


# Group commit.


def test_writes_that_wait_share_a_commit(
    file_client: FlaskClient, database: Path, statements: list[str]
) -> None:
    with ThreadPoolExecutor(8) as threads:
        with other_program(database, "BEGIN IMMEDIATE"):
            creates = [threads.submit(add_pet, file_client) for _ in range(8)]
            assert not wait(creates, MOMENT).done
        added = [create.result()["id"] for create in creates]
    assert sorted(added) == list(range(1, 9))
    assert sum("INSERT" in statement for statement in statements) == 8
    # Usually one. A thread that is late may need another one.
    assert statements.count("COMMIT") < 4


def test_a_statement_that_violates_a_constraint_fails_alone(database: Path) -> None:
    opened = storage.Database(str(database))

    insert = "INSERT INTO pets (name, category_id, status) VALUES ('Rex', 1, :status)"

    def add(status: str) -> Any:
        return opened.write(f"{insert} RETURNING id", {"status": status})[0][0]

    statuses = ["sold", "lost", "available", "lost", "pending"]
    with ThreadPoolExecutor(5) as threads:
        with other_program(database, "BEGIN IMMEDIATE"):
            writes = [threads.submit(add, status) for status in statuses]
            assert not wait(writes, MOMENT).done
        for write, status in zip(writes, statuses, strict=True):
            if status == "lost":
                with pytest.raises(sqlite3.IntegrityError):
                    write.result()
            else:
                assert write.result() in (1, 2, 3)
    opened.close()
    assert len(all_pets(create_client(database))) == 3


def test_a_bug_is_a_500_and_later_requests_succeed(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    assert all_pets(file_client) == pets
    with other_program(database, "ALTER TABLE pets RENAME TO animals") as program:
        for response in (post_pet(file_client), file_client.get("/v1/pets")):
            assert_error(response, 500, "internal_error")
        program.execute("ALTER TABLE animals RENAME TO pets")
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


@pytest.mark.parametrize("step", ["PRAGMA synchronous", "BEGIN", "INSERT"])
def test_the_next_write_succeeds_after_one_without_memory(
    file_client: FlaskClient, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [step]

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if failing and failing[0] in sql:
                raise MemoryError
            return super().execute(sql, *args)

    monkeypatch.setattr(
        sqlite3, "connect", partial(sqlite3.connect, factory=Connection)
    )
    for _ in range(2):
        assert_error(post_pet(file_client), 500, "internal_error")
    failing.clear()
    pets = [add_pet(file_client), add_pet(file_client)]
    assert all_pets(file_client) == pets


# Locks, full and read-only disks, and damage.


def test_reads_continue_and_writes_are_503_while_another_program_holds_the_lock(
    database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.5)
    file_client = create_client(database)
    pets = [add_pet(file_client)]
    with ThreadPoolExecutor(32) as threads:
        with other_program(database, "BEGIN IMMEDIATE"):
            creates = [threads.submit(post_pet, file_client) for _ in range(32)]
            lists = []
            while not all(create.done() for create in creates):
                lists.append(all_pets(file_client))
        assert lists == [pets] * len(lists)
        # Two or three if they waited for the writes.
        assert len(lists) > 10
        assert_unavailable(*(create.result() for create in creates))
    assert caplog.messages[-1].endswith("database is locked; another program uses it")
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no larger files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_writes_are_503_while_the_disk_is_full(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(file_client)]
    with largest_file(wal_of(database).stat().st_size):
        assert_unavailable(post_pet(file_client, name="x" * 60_000))
        assert all_pets(file_client) == pets
    reason = "disk I/O error; the disk may be full or failing"
    assert caplog.messages[-1].endswith(reason)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """Return a folder, and run the test as nobody: root may write to any file."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        if is_root:
            os.seteuid(65_534)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)


def test_writes_are_503_if_the_file_is_read_only(folder_of_nobody: Path) -> None:
    database = folder_of_nobody / "pets.db"
    client = create_client(database)
    assert all_pets(client) == []
    database.chmod(0o444)
    assert_unavailable(post_pet(client))
    assert all_pets(client) == []
    for file in folder_of_nobody.iterdir():
        file.chmod(0o644)
    # After a restart:
    client = create_client(database)
    assert add_pet(client) == all_pets(client)[0]


def test_a_file_that_this_user_may_not_write_to_is_refused(
    folder_of_nobody: Path,
) -> None:
    database = folder_of_nobody / "pets.db"
    create_client(database)
    database.chmod(0o444)
    with pytest.raises(StartError) as refusal:
        create_client(database)
    reason = f"attempt to write a readonly database; {storage.CHECK_ACCESS}."
    assert str(refusal.value) == f"PETSTORE_DATABASE: {database}: {reason}"


def test_a_folder_that_this_user_may_not_write_to_is_refused(
    folder_of_nobody: Path,
) -> None:
    database = folder_of_nobody / "folder" / "pets.db"
    database.parent.mkdir()
    create_client(database)
    # Backups are in this mode.
    with other_program(database, "PRAGMA journal_mode = DELETE"):
        pass
    database.parent.chmod(0o555)
    with pytest.raises(StartError, match="this user must be allowed to write"):
        create_client(database)
    database.parent.chmod(0o755)


def test_a_damaged_file_is_503_and_refused_at_startup(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_other_store(database)
    client = create_client(database)
    # Page 1 has the schema, and the other pages have the pets.
    content = database.read_bytes()
    database.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert_unavailable(client.get("/v1/pets"), post_pet(client))
    assert caplog.messages[-1].endswith("is malformed; restore a backup")
    with pytest.raises(StartError, match="is malformed; restore a backup"):
        create_client(database)


# The file is removed, moved away, or replaced.


def create_other_store(path: Path) -> Path:
    """Create a store with the pet Tom, close it, and return its path."""
    database = storage.Database(str(path))
    columns = "name, category_id, status"
    database.write(f"INSERT INTO pets ({columns}) VALUES ('Tom', 1, 'sold')", {})
    database.close()
    assert not wal_of(path).exists()
    return path


@pytest.mark.parametrize("is_used_before", [True, False])
@pytest.mark.parametrize("successor", ["none", "other store", "link to the file"])
def test_a_moved_file_is_503_until_it_is_back(
    file_client: FlaskClient,
    database: Path,
    is_used_before: bool,
    successor: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pets = [add_pet(file_client)] if is_used_before else []
    moved = database.rename(database.with_name("moved.db"))
    if successor == "other store":
        create_other_store(database.with_name("other.db")).rename(database)
    elif successor == "link to the file":
        database.symlink_to(moved)
    for _ in range(2):
        assert_unavailable(post_pet(file_client), file_client.get("/healthz"))
        assert_unavailable(file_client.get("/v1/pets"), file_client.get("/v1/pets/1"))
    assert caplog.messages[-1].endswith(
        "the file was moved, removed or replaced; put it back, or restart the service, "
        "which uses or creates the file at this path"
    )
    assert database.exists() == (successor != "none")
    moved.replace(database)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


def test_a_file_that_a_link_leads_to_may_not_be_replaced_either(
    database: Path, tmp_path: Path
) -> None:
    target = create_other_store(tmp_path / "target.db")
    database.symlink_to(target)
    client = create_client(database)
    pets = [*all_pets(client), add_pet(client)]
    moved = target.rename(tmp_path / "moved.db")
    create_other_store(tmp_path / "other.db").rename(target)
    assert_unavailable(post_pet(client), client.get("/v1/pets"))
    moved.replace(target)
    assert all_pets(client) == pets


@pytest.mark.parametrize(
    ("command", "number", "is_replaced"),
    [
        (GUNICORN, signal.SIGTERM, True),
        (GUNICORN, signal.SIGTERM, False),
        (FLASK, signal.SIGINT, True),
    ],
)
def test_a_restart_uses_or_creates_the_file_at_the_path(
    database: Path, command: list[str], number: int, is_replaced: bool
) -> None:
    moved, other = database.with_name("moved.db"), database.with_name("other.db")
    create_other_store(other)
    with serving(database, command) as service:
        pets = [service.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        database.rename(moved)
        if is_replaced:
            other.rename(database)
        assert service.request("GET", "/healthz").status == 503
        service.stop(number)
    assert database.exists() == is_replaced
    # The moved file has all its pets, although its WAL has stayed at the old path.
    assert all_pets(create_client(moved)) == pets
    names = [pet["name"] for pet in all_pets(create_client(database))]
    assert names == (["Tom"] if is_replaced else [])


def test_a_moved_file_has_all_pets_after_an_orderly_end_even_if_it_was_only_read(
    database: Path,
) -> None:
    with serving(database) as service:
        pets = [service.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        service.kill()
    with serving(database) as service:
        assert service.request("GET", "/v1/pets").body == pets
        moved = database.rename(database.with_name("moved.db"))
        service.stop()
    assert all_pets(create_client(moved)) == pets


# In memory, several stores, and the end of a store.


def test_each_store_in_memory_has_its_own_pets_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A file that only has the same name.
    (tmp_path / ":memory:").touch()
    client, other = create_client(":memory:"), create_client(":memory:")
    (tmp_path / ":memory:").unlink()
    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(add_pet, client) for _ in range(80)]
        lists = [threads.submit(all_pets, client) for _ in range(80)]
    pets = sorted((create.result() for create in creates), key=lambda pet: pet["id"])
    assert all_pets(client) == pets
    assert all(pets[: len(seen.result())] == seen.result() for seen in lists)
    assert all_pets(other) == list(tmp_path.iterdir()) == []


def test_two_stores_may_use_one_file(file_client: FlaskClient, database: Path) -> None:
    other = create_client(database)
    pets = [add_pet(file_client), add_pet(other), add_pet(file_client)]
    assert all_pets(other) == all_pets(file_client) == pets


def test_a_dropped_store_leaves_no_open_file_and_no_wal(database: Path) -> None:
    client = create_client(database)
    pets = [add_pet(client), *all_pets(client)][:1]
    assert wal_of(database).exists()
    del client
    gc.collect()
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    assert not [file for file in files if file.startswith(str(database.parent))]
    assert list(database.parent.iterdir()) == [database]
    assert all_pets(create_client(database)) == pets
