"""The store: what is on the disk, who waits, and what happens to the file."""

import gc
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier
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
    needs_linux,
    open_store,
    other_program,
    post_pet,
)
from tests.service import (
    FLASK,
    GUNICORN,
    TIMEOUT,
    add_pets_until_refused,
    run,
    serving,
)


def assert_unavailable(*responses: TestResponse) -> None:
    """Check that each response says that the store cannot answer."""
    for response in responses:
        assert_error(response, 503, "storage_unavailable")


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [file for file in files if file.startswith(str(folder))]


# Pets that got a 201.


@needs_linux
def test_no_pet_that_got_a_201_is_lost_by_kill_9(database: Path) -> None:
    names: list[str] = []
    with serving(database) as service, ThreadPoolExecutor(8) as threads:
        writers = [
            threads.submit(add_pets_until_refused, service, number, names)
            for number in range(8)
        ]
        while len(names) < 200:
            assert service.request("GET", "/healthz").status == 200
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
    ended = run("python", "-c", ENDS_WHILE_ADDING, str(database))
    assert (ended.returncode, ended.stderr) == (0, "")
    stored = {pet["name"] for pet in all_pets(create_client(database))}
    assert set(ended.stdout.splitlines()) <= stored


@needs_linux
def test_the_response_waits_until_the_wal_with_the_pet_is_on_the_disk(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def sync(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), wal_of(database).stat())
        synced.append(all_pets(create_client(database)))

    monkeypatch.setattr(os, "fdatasync", sync)
    pets = [add_pet(file_client)]
    assert synced == [pets]
    pets.append(add_pet(file_client))
    assert synced == [pets[:1], pets]


@needs_linux
def test_threads_that_add_pets_sync_at_the_same_time_and_hold_no_lock(
    file_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[list[Any]] = []
    # One thread lists the pets once all eight wait for the disk.
    all_sync = Barrier(8, lambda: lists.append(all_pets(file_client)), TIMEOUT)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: all_sync.wait())
    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(add_pet, file_client) for _ in range(8)]
    added = sorted(create.result()["id"] for create in creates)
    assert lists == [all_pets(file_client)]
    assert added == [pet["id"] for pet in lists[0]] == list(range(1, 9))


@needs_linux
def test_writes_are_503_until_a_restart_after_a_sync_that_failed(
    database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    client = create_client(database)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        assert_unavailable(post_pet(client))
    # The system reports the error once, so the next sync would succeed.
    pets = all_pets(client)
    assert_unavailable(post_pet(client))
    assert all_pets(client) == pets
    assert_unavailable(client.get("/healthz"))
    reason = "a sync has failed ([Errno 5] Input/output error)"
    advice = f"{wal_of(database)}: {reason}; check the disk, and restart the service"
    assert caplog.messages == [f"Storage unavailable: {advice}"] * 3
    client.application.extensions["store"].close()
    assert not open_files(database.parent)
    assert_unavailable(post_pet(client))
    client = create_client(database)
    assert add_pet(client) in all_pets(client)


def test_a_statement_that_violates_a_constraint_fails_alone(
    file_client: FlaskClient, database: Path
) -> None:
    with ThreadPoolExecutor(8) as threads, other_program(database) as program:
        program.execute("CREATE UNIQUE INDEX unique_name ON pets (name)")
        names = ["Rex", "Tom", "Rex", "Ada"] * 4
        responses = threads.map(lambda name: post_pet(file_client, name=name), names)
        statuses = [response.status_code for response in responses]
    assert (statuses.count(201), statuses.count(500)) == (3, 13)
    assert {pet["name"] for pet in all_pets(file_client)} == {"Rex", "Tom", "Ada"}


@pytest.mark.parametrize(
    "step",
    ["PRAGMA synchronous = NORMAL", storage.READ_PROBE, "INSERT INTO pets (name"],
)
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
        # One or two if they waited for the writes.
        assert len(lists) > 10
        assert_unavailable(*(create.result() for create in creates))
    assert caplog.messages[-1].endswith("database is locked; another program uses it")
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


def test_a_write_waits_until_another_program_releases_the_lock(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_program(database, "BEGIN IMMEDIATE") as program:
        # The other program commits while the write waits.
        monkeypatch.setattr(time, "sleep", lambda seconds: program.commit())
        pet = add_pet(file_client)
    assert all_pets(file_client) == [pet]


def test_nothing_is_stored_while_the_file_has_no_wal(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with other_program(database, "PRAGMA journal_mode = DELETE"):
        pass
    assert_unavailable(post_pet(file_client), file_client.get("/v1/pets"))
    missing = f"No such file or directory: '{wal_of(database)}'"
    assert caplog.messages[-1].endswith(missing)
    with other_program(database, "PRAGMA journal_mode = WAL"):
        assert all_pets(file_client) == []
    assert add_pet(file_client) == all_pets(file_client)[0]


@contextmanager
def limited(name: str, limit: int) -> Iterator[None]:
    """Set a limit of this process, such as RLIMIT_FSIZE, during a `with` block."""
    import resource  # Windows has none.

    kind = getattr(resource, name)
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


@needs_linux
def test_a_write_without_a_descriptor_is_503_and_later_writes_succeed(
    tmp_path: Path,
) -> None:
    statuses = []
    for spare in range(8):
        client = create_client(tmp_path / f"{spare}.db")
        next_descriptor = os.dup(0)
        os.close(next_descriptor)
        with limited("RLIMIT_NOFILE", next_descriptor + spare):
            response = post_pet(client)
        statuses.append(response.status_code)
        pets = [response.get_json()] if response.status_code == 201 else []
        assert all_pets(client) == pets
        add_pet(client)
    assert set(statuses) == {201, 503}


@needs_linux
def test_writes_are_503_while_the_disk_is_full(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(file_client)]
    # No file can grow, as on a full disk.
    with limited("RLIMIT_FSIZE", wal_of(database).stat().st_size):
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


@needs_linux
def test_a_read_only_file_is_503_and_refused_at_startup(folder_of_nobody: Path) -> None:
    database = folder_of_nobody / "pets.db"
    client = create_client(database)
    database.chmod(0o444)
    assert_unavailable(post_pet(client))
    assert all_pets(client) == []
    with pytest.raises(StartError) as refusal:
        create_client(database)
    reason = f"attempt to write a readonly database; {storage.CHECK_ACCESS}."
    assert str(refusal.value) == f"PETSTORE_DATABASE: {database}: {reason}"
    for file in folder_of_nobody.iterdir():
        file.chmod(0o644)
    client = create_client(database)
    assert add_pet(client) == all_pets(client)[0]


@needs_linux
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
    open_store(path, "Tom").close()
    assert not wal_of(path).exists()
    return path


@needs_linux
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


@needs_linux
def test_a_moved_folder_is_503_until_it_is_back(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    client = create_client(folder / "pets.db")
    pets = [add_pet(client)]
    moved = folder.rename(tmp_path / "moved")
    assert_unavailable(post_pet(client), client.get("/v1/pets"))
    moved.rename(folder)
    pets.append(add_pet(client))
    assert all_pets(client) == pets


@needs_linux
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


@needs_linux
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


@needs_linux
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_store_that_is_dropped_or_closed_leaves_no_open_file_and_no_wal(
    database: Path, is_dropped: bool
) -> None:
    client = create_client(database)
    pets = [add_pet(client)]
    assert wal_of(database).exists()
    if is_dropped:
        del client
        gc.collect()
    else:
        client.application.extensions["store"].close()
    assert not open_files(database.parent)
    assert list(database.parent.iterdir()) == [database]
    assert all_pets(create_client(database)) == pets
