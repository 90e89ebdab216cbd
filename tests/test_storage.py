"""The store behind the operations: its file, its faults, memory, threads, forks."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import create_app
from tests.checks import add_pet, add_pets, assert_error
from tests.conftest import KEY, client_with_key

PET = {"json": {"name": "Rex", "categoryId": 1}}


def client_of(database: Path | str) -> FlaskClient:
    return client_with_key(create_app({"API_KEYS": KEY, "DATABASE": database}))


def test_pets_outlive_the_process(client: FlaskClient, database: Path) -> None:
    pet = add_pet(client)
    assert client_of(database).get("/v1/pets").get_json() == [pet]


def test_the_file_is_made_as_designed(client: FlaskClient, database: Path) -> None:
    add_pet(client)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT * FROM pets").fetchall() == [
            (1, "Rex", 1, "available")
        ]
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("UPDATE pets SET status = 'lost'")
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("UPDATE pets SET category_id = 'x'")


def test_the_id_of_a_removed_pet_is_not_used_again(
    client: FlaskClient, database: Path
) -> None:
    add_pets(client, "sold", "sold")
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DELETE FROM pets")
    assert add_pet(client)["id"] == 3


def test_when_the_ids_run_out_no_pet_is_taken(
    client: FlaskClient, database: Path
) -> None:
    add_pet(client)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("UPDATE sqlite_sequence SET seq = 9223372036854775806")
    assert add_pet(client)["id"] == 2**63 - 1
    assert_error(client.post("/v1/pets", **PET), 503, "storage_unavailable")
    assert len(client.get("/v1/pets").get_json()) == 2
    assert "Link" not in client.get("/v1/pets?limit=2").headers


def test_a_moved_file_takes_no_pet_until_it_is_back(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    database.rename(database.with_suffix(".away"))
    assert_error(client.post("/v1/pets", **PET), 503, "storage_unavailable")
    assert_error(client.get("/v1/pets"), 503, "storage_unavailable")
    assert not database.exists()
    database.with_suffix(".away").rename(database)
    pets.append(add_pet(client))
    assert client.get("/v1/pets").get_json() == pets


def test_a_restored_file_is_used_at_the_next_write(
    client: FlaskClient, database: Path
) -> None:
    backup = database.with_suffix(".backup")
    pets = [add_pet(client, name="kept")]
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", [str(backup)])
    add_pet(client, name="made after the backup")
    backup.rename(database)
    for companion in database.parent.glob("pets.db-*"):
        companion.unlink()
    pets.append(add_pet(client, name="made after the restore"))
    assert client.get("/v1/pets").get_json() == pets
    assert client_of(database).get("/v1/pets").get_json() == pets


def test_a_file_that_turns_corrupt_is_never_an_empty_list(
    client: FlaskClient, database: Path
) -> None:
    add_pets(client, *["sold"] * 100)
    reader = client_of(database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.write_bytes(os.urandom(database.stat().st_size))
    assert_error(reader.get("/v1/pets"), 503, "storage_unavailable")
    assert_error(reader.get("/v1/pets/1"), 503, "storage_unavailable")
    assert_error(reader.post("/v1/pets", **PET), 503, "storage_unavailable")
    assert_error(reader.get("/healthz"), 503, "storage_unavailable")


def test_an_emptied_file_takes_no_pet_and_keeps_its_wal(
    client: FlaskClient, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_pet(client)
    wal = database.with_name("pets.db-wal")
    content = wal.read_bytes()
    os.truncate(database, 0)
    assert_error(client.post("/v1/pets", **PET), 503, "storage_unavailable")
    assert_error(client.get("/healthz"), 503, "storage_unavailable")
    with pytest.raises(SystemExit):
        client_of(database)
    assert "it is empty, but" in capsys.readouterr().err
    assert wal.read_bytes() == content


def test_a_wal_that_is_removed_costs_no_pet(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    database.with_name("pets.db-wal").unlink()
    assert client.get("/healthz").status_code == 200
    pets.append(add_pet(client))
    assert client.get("/healthz").status_code == 200
    assert client_of(database).get("/v1/pets").get_json() == pets


def test_no_pet_is_taken_once_health_has_found_the_file_overwritten(
    client: FlaskClient, database: Path
) -> None:
    add_pet(client)
    for path in (database, database.with_name("pets.db-wal")):
        path.write_bytes(os.urandom(path.stat().st_size))
    assert_error(client.get("/healthz"), 503, "storage_unavailable")
    assert_error(client.post("/v1/pets", **PET), 503, "storage_unavailable")


def test_memory_is_one_store_for_all_threads() -> None:
    client = client_of(":memory:")

    def post(_: int) -> TestResponse:
        return client_with_key(client.application).post("/v1/pets", **PET)

    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(post, range(400))
        assert {answer.status_code for answer in answers} == {201}
    page = client.get("/v1/pets?limit=100&after=300").get_json()
    assert [pet["id"] for pet in page] == list(range(301, 401))


def test_memory_is_not_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = client_of(":memory:")
    add_pet(client)
    assert client.get("/healthz").status_code == 200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("names", [("a.db", "b.db"), (":memory:", ":memory:")])
def test_two_applications_do_not_touch_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = map(client_of, names)
    add_pets(one, "sold", "sold")
    assert add_pet(other)["id"] == 1
    assert len(one.get("/v1/pets").get_json()) == 2


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?b.db", "a#b.db", "é😀.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    add_pet(client_of(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


def test_a_fork_carries_no_connection_along(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    wal = database.with_name("pets.db-wal")
    assert wal.exists()
    child = os.fork()
    if child == 0:
        # SQLite removes this file when the last connection closes.
        closed = not wal.exists()
        add_pet(client, name="from the child")
        os._exit(0 if closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    pets.append({**pets[0], "id": 2, "name": "from the child"})
    assert client.get("/v1/pets").get_json() == pets
