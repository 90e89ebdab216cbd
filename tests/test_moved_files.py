"""The file is removed, moved away, or replaced while the service runs."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from tests.helpers import (
    NEW_PET,
    add_pet,
    all_pets,
    assert_unavailable,
    create_client,
    create_other_store,
    needs_linux,
    other_program,
    post_pet,
)
from tests.service import FLASK, GUNICORN, serving


@needs_linux
@pytest.mark.parametrize("is_used_before", [True, False])
@pytest.mark.parametrize("successor", ["none", "other store", "link to the file"])
def test_a_moved_file_is_503_until_it_is_back(
    client: FlaskClient,
    database: Path,
    is_used_before: bool,
    successor: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pets = [add_pet(client)] if is_used_before else []
    moved = database.rename(database.with_name("moved.db"))
    if successor == "other store":
        create_other_store(database.with_name("other.db")).rename(database)
    elif successor == "link to the file":
        database.symlink_to(moved)
    for _ in range(2):
        assert_unavailable(post_pet(client), client.get("/healthz"))
        assert_unavailable(client.get("/v1/pets"), client.get("/v1/pets/1"))
    assert caplog.messages[-1].endswith(
        "the file was moved, removed or replaced; see docs/server.md before "
        "you restart the service"
    )
    assert database.exists() == (successor != "none")
    moved.replace(database)
    pets.append(add_pet(client))
    assert all_pets(client) == pets
    # Moved again. The copy has no WAL.
    database.rename(moved)
    assert_unavailable(post_pet(client))
    copy = shutil.copy(moved, database.with_name("copy.db"))
    assert all_pets(create_client(copy)) == pets


@needs_linux
def test_the_file_that_a_link_leads_to_may_not_be_replaced(
    database: Path, tmp_path: Path
) -> None:
    target = create_other_store(tmp_path / "target.db")
    database.symlink_to(target)
    client = create_client(database)
    pets = [*all_pets(client), add_pet(client)]
    other = create_other_store(tmp_path / "other.db")
    moved = target.rename(tmp_path / "moved.db")
    other.rename(target)
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


LOOK = "SELECT * FROM sqlite_schema"
ADD_ADA = "INSERT INTO pets (name, category_id, status) VALUES ('Ada', 1, 'sold')"


@needs_linux
@pytest.mark.parametrize(
    ("command", "number", "refused", "successor", "options", "statement"),
    [
        (GUNICORN, signal.SIGKILL, "GET", ["Tom"], "", LOOK),
        (GUNICORN, signal.SIGKILL, "POST", ["Tom"], "?mode=ro", LOOK),
        (GUNICORN, signal.SIGKILL, "POST", [], "", LOOK),
        (GUNICORN, signal.SIGTERM, "GET", ["Tom", "Ada"], "", ADD_ADA),
        (GUNICORN, signal.SIGTERM, "POST", ["Tom", "Ada"], "", ADD_ADA),
        (FLASK, signal.SIGKILL, "POST", ["Tom"], "", LOOK),
        (FLASK, signal.SIGINT, "GET", [], "", LOOK),
    ],
)
def test_after_a_refused_request_nothing_takes_pets_from_the_moved_file(
    database: Path,
    command: list[str],
    number: int,
    refused: str,
    successor: list[str],
    options: str,
    statement: str,
) -> None:
    moved, other = database.with_name("moved.db"), database.with_name("other.db")
    create_other_store(other)
    with serving(database, command) as service:
        pets = [service.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        assert service.request("GET", "/v1/pets").body == pets
        database.rename(moved)
        if successor:
            other.rename(database)
        assert service.request(refused, "/v1/pets", NEW_PET).status == 503
        # SQLite lets this program use the WAL of the moved file, by its name.
        with other_program(f"{database.as_uri()}{options}", statement):
            for method in ("GET", "POST"):
                assert service.request(method, "/v1/pets", NEW_PET).status == 503
        service.kill() if number == signal.SIGKILL else service.stop(number)
    assert all_pets(create_client(moved)) == pets
    assert [pet["name"] for pet in all_pets(create_client(database))] == successor


@needs_linux
@pytest.mark.parametrize("is_opened", [True, False])
def test_a_file_that_is_back_is_used_at_once_or_after_a_restart(
    database: Path, is_opened: bool
) -> None:
    moved, other = database.with_name("moved.db"), database.with_name("other.db")
    create_other_store(other)
    with serving(database) as service:
        pets = [service.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        database.rename(moved)
        other.rename(database)
        assert service.request("POST", "/v1/pets", NEW_PET).status == 503
        if is_opened:
            # At its end, SQLite removes the WAL: for it, the WAL is that of this file.
            with other_program(database, LOOK):
                pass
        moved.replace(database)
        added = service.request("POST", "/v1/pets", NEW_PET)
        assert added.status == (503 if is_opened else 201)
        service.stop()
    pets += [] if is_opened else [added.body]
    assert all_pets(create_client(database)) == pets


@needs_linux
def test_a_program_that_reads_the_moved_file_delays_no_refusal(database: Path) -> None:
    with (
        serving(database) as service,
        ThreadPoolExecutor(16) as threads,
        other_program(database, "BEGIN", "SELECT * FROM pets") as program,
    ):
        assert service.request("POST", "/v1/pets", NEW_PET).status == 201
        assert program.execute("SELECT * FROM pets").fetchall() == []
        assert service.request("GET", "/healthz").status == 200
        database.rename(database.with_name("moved.db"))
        paths = ["/healthz"] * 16
        refusals = threads.map(lambda path: service.request("GET", path), paths)
        assert [refusal.status for refusal in refusals] == [503] * 16


@needs_linux
def test_a_service_that_has_only_read_copies_the_wal_of_a_killed_one(
    database: Path,
) -> None:
    with serving(database) as killed, other_program(database, LOOK):
        pets = [killed.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        killed.kill()
        # The other program has the WAL open, so SQLite does not copy it at startup.
        with serving(database) as service:
            assert service.request("GET", "/v1/pets").body == pets
            moved = database.rename(database.with_name("moved.db"))
            service.stop()
    assert all_pets(create_client(moved)) == pets


@needs_linux
@pytest.mark.parametrize("suffixes", [["-wal"], ["-shm"], ["-wal", "-shm"]])
def test_a_removed_wal_or_shm_is_503_and_a_restart_keeps_every_pet(
    database: Path, suffixes: list[str]
) -> None:
    with serving(database) as service:
        pets = [service.request("POST", "/v1/pets", NEW_PET).body for _ in range(3)]
        for suffix in suffixes:
            Path(f"{database}{suffix}").unlink()
        assert service.request("POST", "/v1/pets", NEW_PET).status == 503
        for path in ("/v1/pets", "/healthz"):
            assert service.request("GET", path).status == 503
        assert f"{database}{suffixes[0]}: the file was moved, removed" in service.log()
        assert service.stop() == 0
    assert all_pets(create_client(database)) == pets
