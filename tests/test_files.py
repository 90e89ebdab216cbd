"""The store while its files are moved, removed, replaced, damaged, or in use."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from tests.conftest import create_client
from tests.helpers import (
    add_pet,
    all_pets,
    assert_unavailable,
    connected,
    execute,
    intercept_statements,
    locked_by_another_program,
    pets_if_killed_now,
    post_pet,
    read_by_another_program,
    refuse_after_failed_rollback,
    wal_of,
)
from tests.process import TIMEOUT


def back_up(database: Path, copy: Path) -> Path:
    """Copy a database into a new file, as docs/server.md says, and return its path."""
    execute(database, f"VACUUM INTO '{copy}'")
    return copy


def create_other_store(database: Path) -> Path:
    """Create a store next to `database` with pet 7, and return its path."""
    source = database.with_suffix(".source")
    create_client(source)
    execute(source, "INSERT INTO pets VALUES (7, 'Tom', 1, 'sold')")
    return back_up(source, database.with_suffix(".other"))


TOM = {"id": 7, "name": "Tom", "categoryId": 1, "status": "sold"}


# Opening the files and adding a pet takes 13 statements. A fault is tried before and
# after each.
STEPS = range(2 * 13)


def post_pet_with_fault(
    client: FlaskClient, step: int, fault: Callable[[], object]
) -> TestResponse:
    """Send a pet, call `fault` at a step of the request, and return the response."""
    steps = count()

    def run_step(_: str) -> None:
        if next(steps) == step:
            fault()

    with intercept_statements(before=run_step, after=run_step):
        response = post_pet(client)
    assert next(steps) > step, f"step {step} was not reached"
    return response


def add_pets_with_fault(
    client: FlaskClient, step: int, fault: Callable[[], object]
) -> list[dict[str, Any]]:
    """Send two pets, and call `fault` at a step of the first request.

    Return the pets that were acknowledged.
    """
    responses = [post_pet_with_fault(client, step, fault), post_pet(client)]
    assert responses[-1].status_code == 201
    return [response.get_json() for response in responses if response.status_code < 400]


def test_every_step_is_tested(file_client: FlaskClient) -> None:
    statements: list[str] = []
    with intercept_statements(before=statements.append):
        add_pet(file_client)
    assert len(STEPS) == 2 * len(statements)


# Moved and removed.


def test_a_moved_file_is_used_again_when_it_is_back(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    moved = database.rename(database.with_suffix(".moved"))
    assert_unavailable(post_pet(file_client), file_client.get("/v1/pets"))
    assert not database.exists()
    assert pets_if_killed_now(moved) == pets
    moved.rename(database)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


def test_a_removed_file_is_not_created_again(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    database.unlink()
    for _ in range(2):
        assert_unavailable(post_pet(file_client), file_client.get("/v1/pets"))
    assert not database.exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_file_that_is_removed_at_any_step_is_not_created_again(
    file_client: FlaskClient, database: Path, step: int
) -> None:
    post_pet_with_fault(file_client, step, database.unlink)
    assert_unavailable(post_pet(file_client))
    assert not database.exists()


def test_a_create_fails_if_the_file_is_moved_while_it_waits(database: Path) -> None:
    moved = database.with_suffix(".moved")

    def move_before_begin(sql: str) -> None:
        if sql == "BEGIN IMMEDIATE" and not moved.exists():
            database.rename(moved)

    pets = [add_pet(create_client(database))]
    client = create_client(database)
    with intercept_statements(before=move_before_begin):
        assert_unavailable(post_pet(client))
    assert all_pets(create_client(moved)) == pets
    moved.rename(database)
    pets.append(add_pet(client))
    assert all_pets(client) == pets


def test_an_emptied_file_is_used_again_when_its_content_is_back(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(file_client)]
    content = database.read_bytes()
    os.truncate(database, 0)
    assert_unavailable(post_pet(file_client), file_client.get("/v1/pets"))
    assert caplog.messages[-1].endswith(
        "it is empty; move the database or a backup there"
    )
    database.write_bytes(content)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


# Replaced.


def test_another_store_replaces_the_old_one_and_is_not_mixed_with_it(
    file_client: FlaskClient, database: Path
) -> None:
    other, old = create_other_store(database), database.with_suffix(".old")
    old_pets = [add_pet(file_client, name="x" * 1000) for _ in range(10)]
    old.hardlink_to(database)
    other.replace(database)
    assert all_pets(file_client) == [TOM]
    pets = [TOM, add_pet(file_client)]
    assert all_pets(file_client) == pets
    assert pets_if_killed_now(database) == pets
    # The old file contains what was in its WAL.
    assert pets_if_killed_now(old) == old_pets


def test_a_store_replaces_a_file_whose_rollback_has_failed(database: Path) -> None:
    other = create_other_store(database)
    client = create_client(database)
    refuse_after_failed_rollback(client)
    other.replace(database)
    assert all_pets(client) == [TOM]


@pytest.mark.parametrize("is_requested_while_missing", [True, False])
def test_a_program_that_has_the_old_file_open_does_not_change_the_new_one(
    file_client: FlaskClient, database: Path, is_requested_while_missing: bool
) -> None:
    other, old = create_other_store(database), database.with_suffix(".old")
    old_pets = [add_pet(file_client, name="x" * 1000) for _ in range(10)]
    with connected(database, "SELECT * FROM pets") as program:
        database.rename(old)
        if is_requested_while_missing:
            assert_unavailable(file_client.get("/v1/pets"))
        other.replace(database)
        assert all_pets(file_client) == [TOM]
        program.execute("INSERT INTO pets VALUES (100, 'Old', 1, 'sold')")
        pets = [TOM, add_pet(file_client)]
        program.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert all_pets(file_client) == pets
        assert pets_if_killed_now(database) == pets
    assert pets_if_killed_now(old)[:10] == old_pets
    assert all_pets(create_client(database)) == pets


def test_the_old_file_stays_open_while_another_program_reads_it(
    file_client: FlaskClient,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.05)
    other, old = create_other_store(database), database.with_suffix(".old")
    old_pets = [add_pet(file_client)]
    with read_by_another_program(database):
        old_pets.append(add_pet(file_client))
        old.hardlink_to(database)
        other.replace(database)
        assert_unavailable(file_client.get("/v1/pets"), post_pet(file_client))
    assert "another program still reads the old files" in caplog.messages[-1]
    assert all_pets(file_client) == [TOM]
    assert pets_if_killed_now(old) == old_pets


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("Dear diary, " * 999),
        lambda path: execute(path, "PRAGMA user_version = 2"),
        lambda path: execute(path, "ALTER TABLE pets RENAME COLUMN name TO breed"),
    ],
    ids=["text", "newer version", "other columns"],
)
def test_a_file_that_is_not_a_pet_store_is_not_used(
    file_client: FlaskClient, database: Path, spoil: Callable[[Path], object]
) -> None:
    pets = [add_pet(file_client)]
    other, old = create_other_store(database), database.with_suffix(".old")
    spoil(other)
    content = other.read_bytes()
    old.hardlink_to(database)
    other.replace(database)
    for _ in range(2):
        assert_unavailable(post_pet(file_client), file_client.get("/v1/pets"))
    assert database.read_bytes() == content
    old.replace(database)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


@pytest.mark.parametrize("step", STEPS)
def test_no_pet_is_lost_if_another_store_is_moved_in_at_any_step(
    file_client: FlaskClient, database: Path, step: int
) -> None:
    other, old = create_other_store(database), database.with_suffix(".old")
    old_pet = add_pet(create_client(database))
    old.hardlink_to(database)
    pets = add_pets_with_fault(file_client, step, partial(other.replace, database))
    assert all_pets(file_client)[0] == TOM
    assert all_pets(file_client) == pets_if_killed_now(database)
    stored = pets_if_killed_now(old) + pets_if_killed_now(database)
    assert len(stored) == len([old_pet, TOM, *pets])
    assert all(pet in stored for pet in [old_pet, TOM, *pets])


# The WAL.


def test_no_pet_is_lost_if_the_wal_is_removed(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    wal_of(database).unlink()
    assert all_pets(file_client) == pets
    assert pets_if_killed_now(database) == pets
    for _ in range(2):
        wal_of(database).unlink()
        pets.append(add_pet(file_client))
    assert pets_if_killed_now(database) == pets
    assert all_pets(file_client) == pets


@pytest.mark.parametrize("step", STEPS)
def test_no_pet_is_lost_if_the_wal_is_removed_at_any_step(
    file_client: FlaskClient, database: Path, step: int
) -> None:
    pets = [add_pet(create_client(database))]
    remove_wal = partial(wal_of(database).unlink, missing_ok=True)
    pets += add_pets_with_fault(file_client, step, remove_wal)
    assert all_pets(file_client) == pets
    assert pets_if_killed_now(database) == pets


def test_reads_fail_early_during_a_write_if_the_files_have_to_be_opened(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite keeps this timeout for the connections that are opened now, so the write
    # waits for long. The second timeout is for the lock that the reads wait for.
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", TIMEOUT)
    client = create_client(database)
    pets = [add_pet(client)]
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.2)
    with ThreadPoolExecutor(17) as threads, locked_by_another_program(database):
        create = threads.submit(post_pet, client)
        assert not wait([create], 0.1).done
        wal_of(database).unlink()
        reads = [threads.submit(client.get, "/v1/pets") for _ in range(16)]
        assert_unavailable(*(read.result() for read in reads))
        assert not create.done()
    pets.append(create.result().get_json())
    assert all_pets(client) == pets


def test_a_read_does_not_wait_long_for_a_read_that_opens_the_files(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.2)
    is_opening, may_go_on = Event(), Event()

    def block(_: str) -> None:
        is_opening.set()
        may_go_on.wait(TIMEOUT)

    client = create_client(database)
    with ThreadPoolExecutor(2) as threads, intercept_statements(before=block):
        first = threads.submit(client.get, "/v1/pets")
        assert is_opening.wait(TIMEOUT)
        second = threads.submit(client.get, "/v1/pets")
        done, _ = wait([second], TIMEOUT / 2)
        may_go_on.set()
        assert done
        assert_unavailable(second.result())
        assert first.result().get_json() == []


# Damaged.


@pytest.mark.parametrize("is_restored_in_place", [True, False])
def test_a_damaged_file_is_refused_until_it_is_restored(
    file_client: FlaskClient, database: Path, is_restored_in_place: bool
) -> None:
    pets = [add_pet(file_client, name="x" * 1000) for _ in range(100)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    in_wal = [add_pet(file_client)]
    # This client has opened the file, but has not read most of its pages.
    client = create_client(database)
    assert client.get("/healthz").status_code == 200
    backup = shutil.copy(database, database.with_suffix(".backup"))
    database.write_bytes(os.urandom(database.stat().st_size))
    assert_unavailable(client.get("/v1/pets"), client.get("/v1/pets/1"))
    assert_unavailable(post_pet(client), client.get("/healthz"))
    if is_restored_in_place:
        database.write_bytes(backup.read_bytes())
        pets += in_wal
    else:
        backup.replace(database)
    assert all_pets(client) == pets
    pets.append(add_pet(client))
    assert pets_if_killed_now(database) == pets


@pytest.mark.parametrize("is_removed_first", [True, False])
def test_the_wal_of_a_truncated_file_is_not_applied_to_its_backup(
    file_client: FlaskClient, database: Path, is_removed_first: bool
) -> None:
    pets = [add_pet(file_client, name="x" * 1000) for _ in range(100)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    pets.append(add_pet(file_client))
    backup = back_up(database, database.with_suffix(".backup"))
    os.truncate(database, 4096)
    assert_unavailable(file_client.get("/v1/pets"), post_pet(file_client))
    if is_removed_first:
        # Many file systems give the inode of the removed file to the next one.
        database.unlink()
        assert_unavailable(file_client.get("/v1/pets"), post_pet(file_client))
        shutil.copy(backup, database)
    else:
        backup.replace(database)
    assert all_pets(file_client) == pets
    # SQLite would have applied the old WAL to the backup.
    assert Path(f"{wal_of(database)}-damaged").stat().st_size
    assert all_pets(create_client(database)) == pets


# In use.


def test_other_programs_may_checkpoint_back_up_and_read(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    pets.append(add_pet(file_client))
    with read_by_another_program(database):
        back_up(database, database.with_suffix(".backup"))
        pets.append(add_pet(file_client))
        assert all_pets(file_client) == pets
    assert all_pets(create_client(database.with_suffix(".backup"))) == pets[:2]


# Links.


@pytest.mark.parametrize("target", ["../empty.db", "../missing.db"])
def test_the_path_may_lead_over_links_to_an_empty_or_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder" / "pets.db").symlink_to(target)
    (tmp_path / "link").symlink_to("folder")
    monkeypatch.chdir(tmp_path)
    client = create_client("link/pets.db")
    # A relative path does not change with the working directory.
    monkeypatch.chdir("/")
    pets = [add_pet(client), add_pet(client)]
    file = tmp_path / "folder" / target
    assert pets_if_killed_now(file) == pets
    assert all_pets(client) == pets
    assert (tmp_path / "folder" / "pets.db").is_symlink()


def test_a_link_that_leads_to_another_file_opens_that_file(
    database: Path,
) -> None:
    first, second = database.with_suffix(".first"), create_other_store(database)
    pets = [add_pet(create_client(first))]
    database.symlink_to(first)
    client = create_client(database)
    pets.append(add_pet(client))
    database.unlink()
    database.symlink_to(second)
    assert all_pets(client) == [TOM]
    assert pets_if_killed_now(first) == pets
