"""The store: pets that got a 201, pets in memory, and the end of a store."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.helpers import (
    add_pet,
    all_pets,
    assert_unavailable,
    create_client,
    needs_linux,
    other_program,
    post_pet,
    wal_of,
)
from tests.service import TIMEOUT, run, serving, start_writers


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [file for file in files if file.startswith(str(folder))]


# Pets that got a 201.


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
    # The WAL may have a gap, so it is not copied. (SQLite copies none of a moved file.)
    moved = database.rename(database.with_name("moved.db"))
    before = wal_of(database).read_bytes()
    client.application.extensions["store"].close()
    assert wal_of(database).read_bytes() == before
    assert not open_files(database.parent)
    moved.rename(database)
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
