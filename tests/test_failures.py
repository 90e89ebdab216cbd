"""Locks, full and read-only disks, and damage: what fails, and what goes on."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app import StartError
from sqlite_file import CHECK_ACCESS
from tests.helpers import (
    add_pet,
    all_pets,
    assert_unavailable,
    create_client,
    create_other_store,
    is_in_wal_mode,
    needs_linux,
    other_program,
    post_pet,
    wal_of,
)


def test_reads_continue_and_writes_are_503_while_another_program_holds_the_lock(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(client)]
    with ThreadPoolExecutor(32) as threads:
        with other_program(database, "BEGIN IMMEDIATE"):
            creates = [threads.submit(post_pet, client) for _ in range(32)]
            lists = []
            while not all(create.done() for create in creates):
                lists.append(all_pets(client))
        assert lists == [pets] * len(lists)
        # One or two if they waited for the writes.
        assert len(lists) > 10
        assert_unavailable(*(create.result() for create in creates))
    assert caplog.messages[-1].endswith("database is locked; another program uses it")
    pets.append(add_pet(client))
    assert all_pets(client) == pets


@needs_linux
def test_the_file_has_a_wal_even_if_another_program_has_changed_the_mode(
    client: FlaskClient, database: Path
) -> None:
    with other_program(database, "PRAGMA journal_mode = DELETE"):
        pets = [add_pet(client)]
        assert all_pets(client) == pets
    assert is_in_wal_mode(database)
    wal_of(database).unlink()
    assert_unavailable(post_pet(client), client.get("/v1/pets"))


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
def test_writes_are_503_while_the_disk_is_full(
    client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(client)]
    # No file can grow, as on a full disk.
    with limited("RLIMIT_FSIZE", wal_of(database).stat().st_size):
        assert_unavailable(post_pet(client, name="x" * 60_000))
        assert all_pets(client) == pets
    assert "disk I/O error; the disk may be full or failing" in caplog.messages[-1]
    pets.append(add_pet(client))
    assert all_pets(client) == pets


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
    reason = f"attempt to write a readonly database; {CHECK_ACCESS}."
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


def test_a_damaged_schema_is_503_and_refused_at_startup(database: Path) -> None:
    create_other_store(database)
    client = create_client(database)
    # SQLite's error quotes the name of the table, which is not UTF-8 now.
    content = database.read_bytes()
    assert content.count(b"tablepetspets") == 1
    database.write_bytes(content.replace(b"tablepetspets", b"tablep\xfctspets"))
    assert_unavailable(client.get("/v1/pets"), post_pet(client))
    with pytest.raises(StartError, match=": it is damaged; the disk may be failing"):
        create_client(database)


def test_a_damaged_file_is_503_and_refused_at_startup(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_other_store(database)
    client = create_client(database)
    # Page 1 has the schema, and the other pages have the pets.
    content = database.read_bytes()
    database.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert_unavailable(client.get("/v1/pets"), post_pet(client))
    assert caplog.messages[-1].endswith(
        "is malformed; the disk may be failing; if not, restore a backup"
    )
    with pytest.raises(
        StartError,
        match="is malformed; the disk may be failing; if not, restore a backup",
    ):
        create_client(database)
