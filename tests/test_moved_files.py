"""The file is removed, moved away, or replaced while the service runs."""

import signal
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
