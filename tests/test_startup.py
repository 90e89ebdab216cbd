"""Startup: the settings, the files that are refused, the commands, and embedding."""

import multiprocessing
import os
import runpy
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import storage
from app import StartError, create_app
from tests.conftest import create_client
from tests.helpers import (
    NEW_PET,
    add_pet,
    all_pets,
    connected,
    copy_as_if_killed,
    execute,
    locked_by_another_program,
    wal_of,
)
from tests.process import AUTHORIZED, COMMAND, KEY, LOOPBACK, ROOT, TIMEOUT, run


def get_refusal(**settings: object) -> str:
    """Return the one line that says why the application does not start."""
    with pytest.raises(StartError) as error:
        create_app(settings)
    [line] = str(error.value).splitlines()
    return line


def read_files(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each file in a folder, and None for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


# The settings.


NO_KEY = "it has no key; set it to one or more, separated by commas"
NOT_A_STRING = "it must be a string of keys, separated by commas"
NOT_PRINTABLE = "has a character that is not printable, such as a line break; "
NOT_PRINTABLE += "separate keys by commas"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [(keys, NO_KEY) for keys in (None, "", " ", " , ,")]
    + [(["k"], NOT_A_STRING), ("\ufeffa", f"key 1 {NOT_PRINTABLE}")]
    + [
        (f"k, ,a{character}b", f"key 2 {NOT_PRINTABLE}")
        for character in "\r\n\0\x1b\ud800"
    ],
)
def test_unusable_keys_are_refused(keys: object, reason: str) -> None:
    line = get_refusal(API_KEYS=keys, DATABASE=":memory:")
    assert line == f"PETSTORE_API_KEYS: {reason}."


@pytest.mark.parametrize("path", ["pets\0.db", "pets\ud800.db", b"pets.db", 7])
def test_a_database_must_be_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object
) -> None:
    monkeypatch.chdir(tmp_path)
    line = get_refusal(API_KEYS=KEY, DATABASE=path)
    assert line.startswith("PETSTORE_DATABASE: ")
    assert read_files(tmp_path) == {}


def test_the_config_argument_overrides_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "1234567890, true")
    monkeypatch.setenv("PETSTORE_DATABASE", str(tmp_path / "from-environment.db"))
    # This is not a setting of the service.
    monkeypatch.setenv("PETSTORE_MAX_CONTENT_LENGTH", "10")
    create_app()
    client = create_app({"DATABASE": tmp_path / "from-mapping.db"}).test_client()
    created = {path.name for path in tmp_path.glob("*.db")}
    assert created == {"from-environment.db", "from-mapping.db"}
    for key in ("1234567890", "true"):
        headers = {"Authorization": f"Bearer {key}"}
        response = client.post("/v1/pets", json=NEW_PET, headers=headers)
        assert response.status_code == 201


# Files that are refused.


def create_wal_database(path: Path, version: int) -> None:
    """Create another program's database, as kill -9 leaves it: with a WAL."""
    statements = [
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE pets (id INTEGER PRIMARY KEY, breed TEXT)",
        f"PRAGMA user_version = {version}",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "INSERT INTO pets (breed) VALUES ('Collie')",
    ]
    source = path.parent.parent / "source.db"
    with connected(source, *statements):
        shutil.copy(source, path)
        shutil.copy(wal_of(source), wal_of(path))


def create_text_with_journal(path: Path) -> None:
    """Create a file that is not a database, next to the journal of a transaction."""
    source = path.parent.parent / "source.db"
    with connected(source, "PRAGMA synchronous = OFF", "BEGIN", PETS):
        shutil.copy(f"{source}-journal", f"{path}-journal")
    path.write_text("Dear diary" * 999)


def damage_last_page(path: Path) -> None:
    add_pet(create_client(path), name="x" * 60_000)
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(path.read_bytes()[:-4096] + b"\xee" * 4096)


PETS = "CREATE TABLE pets (id INTEGER PRIMARY KEY, breed TEXT)"
VERSION_1, VERSION_2 = "PRAGMA user_version = 1", "PRAGMA user_version = 2"
NOT_A_DATABASE = r"file is not a database; restore a backup, or choose another file\."
CANNOT_OPEN = (
    "unable to open database file; its folder must exist, and this user must be "
    r"allowed to write to the folder and the file\."
)
NOT_A_STORE = (
    r"it is not a pet store of this version \({}\); choose another file, or upgrade "
    r"this one\."
)
OTHER_VERSION = NOT_A_STORE.format("its user_version is {}, not 1")


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (lambda path: path.write_text("Dear diary" * 999), NOT_A_DATABASE),
        (create_text_with_journal, NOT_A_DATABASE),
        (Path.mkdir, r"it is a folder; choose a file in it\."),
        (lambda path: path.parent.rmdir(), CANNOT_OPEN),
        (lambda path: execute(path, VERSION_2), OTHER_VERSION.format(2)),
        (lambda path: execute(path, PETS), OTHER_VERSION.format(0)),
        (lambda path: create_wal_database(path, 0), OTHER_VERSION.format(0)),
        (
            lambda path: execute(path, PETS, VERSION_1),
            NOT_A_STORE.format("no such column: name"),
        ),
    ],
    ids=[
        "text",
        "text with a journal",
        "folder",
        "missing folder",
        "newer version",
        "another program",
        "another program with a WAL",
        "other columns",
    ],
)
def test_a_file_that_is_not_a_pet_store_is_refused_and_not_changed(
    tmp_path: Path, create: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    create(path)
    files = read_files(tmp_path)
    with pytest.raises(StartError, match=f"^PETSTORE_DATABASE: {path}: {reason}$"):
        create_client(path)
    assert read_files(tmp_path) == files


def test_the_wal_of_another_program_is_not_changed_even_if_its_version_is_1(
    tmp_path: Path,
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    create_wal_database(path, 1)
    files = path.read_bytes(), wal_of(path).read_bytes()
    with pytest.raises(StartError, match=NOT_A_STORE.format("no such column: name")):
        create_client(path)
    assert (path.read_bytes(), wal_of(path).read_bytes()) == files


def test_a_damaged_file_is_refused_and_not_changed(database: Path) -> None:
    damage_last_page(database)
    content = database.read_bytes()
    reason = r"it is damaged \(\*\*\* in database main .+\); restore a backup\."
    with pytest.raises(StartError, match=f"^PETSTORE_DATABASE: {database}: {reason}$"):
        create_client(database)
    assert database.read_bytes() == content


def test_a_file_that_this_user_may_not_write_to_is_refused(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_client(database)
    # The user root may write to every file.
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    line = get_refusal(API_KEYS=KEY, DATABASE=database)
    reason = "this user may not write to it; change its owner or its mode"
    assert line == f"PETSTORE_DATABASE: {database}: {reason}."


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_missing_or_empty_file_with_a_wal_is_refused_and_not_changed(
    tmp_path: Path, file_client: FlaskClient, database: Path, is_empty: bool
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    pets = [add_pet(file_client)]
    shutil.copy(wal_of(database), wal_of(path))
    if is_empty:
        path.touch()
    files = read_files(path.parent)
    line = get_refusal(API_KEYS=KEY, DATABASE=path)
    assert f"{path}: it is missing or empty, but {path}-wal contains changes" in line
    assert read_files(path.parent) == files
    shutil.copy(database, path)
    assert all_pets(create_client(path)) == pets


def test_a_file_system_that_does_not_support_wal_is_refused(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_without_wal(path: str, **options: Any) -> sqlite3.Connection:
        # This VFS of SQLite has no shared memory, like some file systems.
        return connect(f"{path}&vfs=unix-dotfile", **options)

    monkeypatch.setattr(sqlite3, "connect", connect_without_wal)
    line = get_refusal(API_KEYS=KEY, DATABASE=database)
    assert line.endswith(
        "db: its file system does not support WAL mode; use a local disk."
    )


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 38, 0))
    create_client(":memory:")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    line = get_refusal(API_KEYS=KEY, DATABASE=":memory:")
    reason = f"SQLite is {sqlite3.sqlite_version}, but 3.38 or newer is needed"
    assert line == f"PETSTORE_DATABASE: {reason}."


# Files that are opened.


def test_a_store_with_the_earlier_index_is_opened_as_it_is(database: Path) -> None:
    # Earlier versions of the service created an index of status and id.
    statements = [
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE pets (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, "
        "category_id INTEGER NOT NULL, status TEXT NOT NULL "
        "CHECK (status IN ('available', 'pending', 'sold'))) STRICT",
        "CREATE INDEX pets_by_status ON pets (status, id)",
        "PRAGMA user_version = 1",
        "INSERT INTO pets VALUES (3, 'Tom', 1, 'sold')",
    ]
    execute(database, *statements)
    schema = execute(database, "SELECT sql FROM sqlite_schema")
    client = create_client(database)
    pets = [{"id": 3, "name": "Tom", "categoryId": 1, "status": "sold"}]
    assert all_pets(client) == client.get("/v1/pets?status=sold").get_json() == pets
    assert add_pet(client)["id"] == 4
    assert execute(database, "SELECT sql FROM sqlite_schema") == schema


def test_a_store_with_an_interrupted_transaction_is_opened(
    database: Path,
) -> None:
    client = create_client(database)
    pets = [add_pet(client)]
    copy = copy_as_if_killed(database)
    # The transaction is larger than the cache, so SQLite writes to the file before the
    # COMMIT.
    delete = ["PRAGMA journal_mode = DELETE", "PRAGMA cache_size = 1", "BEGIN"]
    delete += ["DELETE FROM pets", "CREATE TABLE a AS SELECT zeroblob(1e6)"]
    killed = copy.with_name("killed.db")
    with connected(copy, *delete):
        for suffix in ("", "-journal"):
            shutil.copy(f"{copy}{suffix}", f"{killed}{suffix}")
    assert all_pets(create_client(killed)) == pets


def test_a_store_that_was_killed_in_a_checkpoint_is_opened(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client, name="x" * 10_000) for _ in range(10)]
    copy = copy_as_if_killed(database)
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    # A checkpoint copies page 1 first. Page 1 has the new number of pages, but the file
    # is still shorter.
    with copy.open("r+b") as file:
        file.write(database.read_bytes()[:4096])
    assert all_pets(create_client(copy)) == pets


def test_a_file_whose_creation_was_killed_is_created_again(
    tmp_path: Path, database: Path
) -> None:
    source = tmp_path / "source.db"
    # Without syncs, SQLite completes the journal before the COMMIT, so the copy of the
    # journal is valid.
    create = ["PRAGMA synchronous = OFF", "BEGIN", storage.CREATE_TABLE]
    create += [storage.CREATE_INDEX, "PRAGMA user_version = 1"]
    with connected(source, *create) as connection:
        shutil.copy(f"{source}-journal", f"{database}-journal")
        connection.execute("COMMIT")
        shutil.copy(source, database)
    client = create_client(database)
    assert all_pets(client) == []
    assert add_pet(client)["id"] == 1


def create_backup(path: Path) -> None:
    """Create a store with the journal mode of a backup.

    A program that reads this file blocks the change to WAL mode.
    """
    create_client(path)
    execute(path, "PRAGMA journal_mode = DELETE")


in_use = pytest.mark.parametrize(
    ("create", "use"),
    [
        (create_backup, ["BEGIN EXCLUSIVE"]),
        (create_backup, ["BEGIN IMMEDIATE"]),
        (create_backup, ["BEGIN", "SELECT * FROM pets"]),
        (Path.touch, ["BEGIN IMMEDIATE"]),
    ],
)


@in_use
def test_startup_waits_for_programs_that_use_a_new_or_restored_file(
    database: Path, create: Callable[[Path], object], use: Sequence[str]
) -> None:
    create(database)
    with (
        ThreadPoolExecutor(1) as threads,
        connected(database, *use) as other,
    ):
        startup = threads.submit(create_client, database)
        assert not wait([startup], 0.15).done
        other.execute("COMMIT")
        assert all_pets(startup.result()) == []


@in_use
def test_startup_does_not_wait_forever(
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    create: Callable[[Path], object],
    use: Sequence[str],
) -> None:
    create(database)
    monkeypatch.setattr(storage, "STARTUP_TIMEOUT", 0.1)
    with ThreadPoolExecutor(1) as threads, connected(database, *use):
        startup = threads.submit(create_client, database)
        wait([startup], TIMEOUT)
    with pytest.raises(StartError, match=f"{database}: database is locked; "):
        startup.result()


def test_startup_does_not_wait_for_a_write_to_a_store(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "STARTUP_TIMEOUT", 0.1)
    # When a store is closed, it waits this long for the lock.
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.1)
    pets = [add_pet(file_client)]
    with locked_by_another_program(database):
        assert all_pets(create_client(database)) == pets


# Newer Pythons warn if a process with threads forks.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_several_processes_may_create_the_same_file_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(10) for _ in range(4)]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(4, fork) as processes:
        added = list(processes.map(add_pet_to, paths))
    assert sorted(added) == sorted([1, 2, 3, 4] * 10)


def add_pet_to(path: Path) -> int:
    return add_pet(create_client(path))["id"]


# The commands.


@pytest.mark.parametrize(
    ("command", "status"),
    [(COMMAND, 3), ([*COMMAND, "--preload"], 1), (["flask", "run"], 3)],
)
def test_a_command_that_cannot_start_ends_with_one_line(
    checkout: Path, command: list[str], status: int
) -> None:
    (checkout / "instance").touch()
    ended = run(*command, folder=checkout, PETSTORE_API_KEYS=KEY, **LOOPBACK)
    # gunicorn starts a worker again after most other statuses.
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "PETSTORE_" in line]
    assert line == (
        "Error: PETSTORE_DATABASE: it is not set, and the default folder cannot be "
        f"created: [Errno 17] File exists: '{checkout}/instance'; set it to a path."
    )


def test_python_app_py_names_the_commands() -> None:
    with pytest.raises(SystemExit, match="^Start it with: flask run, or gunicorn "):
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")


def test_the_default_database_is_in_the_instance_folder_and_logged_once(
    checkout: Path,
) -> None:
    program = "import app; app.create_app(); app.create_app()"
    settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": ""}
    ended = run("python", "-c", program, folder=checkout, **settings)
    database = checkout / "instance" / "pets.db"
    assert database.exists()
    assert ended.stderr == f"Created a new database: {database}\n"


# As on Windows.
WITHOUT_GUNICORN_AND_FORK = f"""
import os, sys
sys.modules["gunicorn"] = None
del os.fork, os.register_at_fork
import app
client = app.create_app().test_client()
print(client.post("/v1/pets", json={NEW_PET}, headers={AUTHORIZED}).text, end="")
"""


def test_the_service_needs_neither_gunicorn_nor_fork() -> None:
    settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": ":memory:"}
    ended = run("python", "-c", WITHOUT_GUNICORN_AND_FORK, **settings)
    assert (ended.stdout[:8], ended.stderr) == ('{"id":1,', "")


# Embedding.


def test_every_url_has_the_prefix(client: FlaskClient) -> None:
    prefix, sent = "/ü >/b", "/%C3%BC%20%3E/b"
    mount = prefix.encode().decode("latin-1")  # WSGI's encoding of a path
    client = Client(DispatcherMiddleware(Flask("outer"), {mount: client.application}))
    pets = f"{prefix}/v1/pets"
    for number in (1, 2):
        created = client.post(pets, json=NEW_PET, headers=AUTHORIZED)
        assert created.headers["Location"] == f"{sent}/v1/pets/{number}"
    page = client.get(f"{pets}?limit=1", headers=AUTHORIZED)
    assert page.headers["Link"] == f'<{sent}/v1/pets?limit=1&after=1>; rel="next"'
    for number in (1, 9):
        pet = client.get(f"{pets}/{number}", headers=AUTHORIZED)
        assert pet.headers["Link"] == f'<{sent}/v1/pets>; rel="successor-version"'
    missing = client.get(f"{prefix}/missing")
    assert f" {sent}/v1/openapi.json " in missing.get_json()["message"]
    document = client.get(f"{prefix}/v1/openapi.json").get_json()
    assert document["servers"] == [{"url": f"{sent}/v1"}]
    # A redirect would lead to the host in the request, which the client chooses.
    for path in (prefix, f"{prefix}/"):
        assert client.get(path).status_code == 200
