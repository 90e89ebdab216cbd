"""Locks, full and read-only disks, and damage: what fails, and what goes on."""

import ctypes
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
def no_capabilities() -> Iterator[None]:
    """Take away what allows root to write to any file.

    https://man7.org/linux/man-pages/man2/capset.2.html
    """
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # The version, and this thread.
    # Those in effect, those permitted, those inherited. Then three for newer ones.
    capabilities = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, capabilities) == 0
    in_effect = capabilities[0]
    capabilities[0] = 0
    assert libc.capset(header, capabilities) == 0
    yield
    capabilities[0] = in_effect
    assert libc.capset(header, capabilities) == 0


def assert_refused(database: Path, error: str) -> None:
    """Check that the service does not start because it may not write."""
    with pytest.raises(StartError) as refusal:
        create_client(database)
    reason = f"{database}: {error}; {CHECK_ACCESS}"
    assert str(refusal.value) == f"PETSTORE_DATABASE: {reason}."


READ_ONLY = "attempt to write a readonly database"


@needs_linux
@pytest.mark.usefixtures("no_capabilities")
def test_a_read_only_file_is_503_and_refused_at_startup(database: Path) -> None:
    client = create_client(database)
    database.chmod(0o444)
    assert_unavailable(post_pet(client))
    assert all_pets(client) == []
    assert_refused(database, READ_ONLY)


@needs_linux
@pytest.mark.usefixtures("no_capabilities")
def test_a_refusal_names_the_files_that_became_read_only_too(database: Path) -> None:
    create_other_store(database).chmod(0o444)
    assert_refused(database, READ_ONLY)
    database.chmod(0o644)
    # SQLite has created this file with the permissions of the database.
    assert not Path(f"{database}-shm").stat().st_mode & 0o222
    assert_refused(database, READ_ONLY)
    for file in database.parent.iterdir():
        file.chmod(0o644)
    client = create_client(database)
    pet = add_pet(client)
    assert all_pets(client)[1:] == [pet]


@needs_linux
@pytest.mark.usefixtures("no_capabilities")
def test_a_folder_that_this_user_may_not_write_to_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "folder" / "pets.db"
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
    assert caplog.messages[-1].endswith(
        "is malformed; the disk may be failing; if not, restore a backup"
    )
    with pytest.raises(
        StartError,
        match="is malformed; the disk may be failing; if not, restore a backup",
    ):
        create_client(database)
