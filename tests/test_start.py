"""Starting the service: the settings, the refusals, and where it can be embedded."""

import multiprocessing
import os
import runpy
import sqlite3
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from app import StartError, create_app
from tests.checks import PET, add_pet, execute
from tests.conftest import client_of
from tests.service import AUTHORIZED, COMMAND, KEY, LOOPBACK, ROOT, run


def refusal(**settings: object) -> str:
    """Return the one line that says why the application does not start."""
    with pytest.raises(StartError) as refused:
        create_app(settings)
    [line] = str(refused.value).splitlines()
    return line


# The settings.


NO_KEY = "it has no key; set it to one or more, separated by commas"
NO_STRING = "it must be a string of keys, separated by commas"
NO_TEXT = "has a character that no client can send; separate keys by commas"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [(keys, NO_KEY) for keys in (None, "", " ", " , ,")]
    + [(["k"], NO_STRING), ("\ufeffa", f"key 1 {NO_TEXT}")]
    + [(f"k, ,a{character}b", f"key 2 {NO_TEXT}") for character in "\r\n\0\x1b\ud800"],
)
def test_keys_that_let_nobody_in_are_refused(keys: object, reason: str) -> None:
    line = refusal(API_KEYS=keys, DATABASE=":memory:")
    assert line == f"PETSTORE_API_KEYS: {reason}."


@pytest.mark.parametrize("path", ["pets\0.db", "pets\ud800.db", b"pets.db", 7])
def test_a_database_that_is_no_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(API_KEYS=KEY, DATABASE=path).startswith("PETSTORE_DATABASE: ")
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_gives_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "1234567890, true")
    monkeypatch.setenv("PETSTORE_DATABASE", str(tmp_path / "from-environment.db"))
    # This one is not of ours, and none of Flask's.
    monkeypatch.setenv("PETSTORE_MAX_CONTENT_LENGTH", "10")
    create_app()
    client = create_app({"DATABASE": tmp_path / "given.db"}).test_client()
    made = {path.name for path in tmp_path.glob("*.db")}
    assert made == {"from-environment.db", "given.db"}
    for key in ("1234567890", "true"):
        headers = {"Authorization": f"Bearer {key}"}
        assert client.post("/v1/pets", json=PET, headers=headers).status_code == 201


# The database.


def damage_its_last_page(path: Path) -> None:
    add_pet(client_of(path), name="x" * 60_000)
    execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(path.read_bytes()[:-4096] + b"\xee" * 4096)


PETS = "CREATE TABLE pets (id INTEGER PRIMARY KEY, breed TEXT)"
HINT = r"\(is it a file, is its folder there, may this user write to both\?\)\."
CANNOT_OPEN = f"unable to open database file {HINT}"
OTHER = "it is no pet store of this version: its user_version is"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_text("Dear diary" * 999), r"file is not a database\."),
        (Path.mkdir, CANNOT_OPEN),
        (lambda path: path.parent.rmdir(), CANNOT_OPEN),
        (lambda path: execute(path, "PRAGMA user_version = 2"), rf"{OTHER} 2, not 1\."),
        (lambda path: execute(path, "CREATE TABLE a (b)"), rf"{OTHER} 0, not 1\."),
        (lambda path: execute(path, PETS, "PRAGMA user_version = 1"), "no such column"),
        (damage_its_last_page, r"it is damaged: \*\*\* in database main \*\*\* "),
    ],
)
def test_an_unusable_database_is_named_and_left_as_it_was(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    spoil(path)
    content = path.read_bytes() if path.is_file() else None
    with pytest.raises(StartError, match=f"^PETSTORE_DATABASE: {path}: {reason}"):
        client_of(path)
    assert (path.read_bytes() if path.is_file() else None) == content


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 38, 0))
    client_of(":memory:")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    line = refusal(API_KEYS=KEY, DATABASE=":memory:")
    reason = f"SQLite is {sqlite3.sqlite_version}, 3.38 or newer is needed"
    assert line == f"PETSTORE_DATABASE: {reason}."


def test_a_file_that_this_user_may_not_write_to_is_refused(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of(database)
    # Whoever runs the tests as root may write to every file.
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    line = refusal(API_KEYS=KEY, DATABASE=database)
    assert line == f"PETSTORE_DATABASE: {database}: this user may not write to it."


# Newer Pythons warn of every fork of a process that has threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_processes_that_start_at_once_all_make_the_same_file(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(10) for _ in range(4)]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(4, fork) as processes:
        added = list(processes.map(add_pet_to, paths))
    assert sorted(added) == sorted([1, 2, 3, 4] * 10)


def add_pet_to(path: Path) -> int:
    return add_pet(client_of(path))["id"]


# The programs.


@pytest.mark.parametrize("command", [COMMAND, ["flask", "run"]], ids=" ".join)
def test_a_program_that_cannot_start_ends_with_the_reason_alone(
    checkout: Path, command: list[str]
) -> None:
    (checkout / "instance").touch()
    ended = run(*command, folder=checkout, PETSTORE_API_KEYS=KEY, **LOOPBACK)
    # At most other statuses, gunicorn would start its worker over and over.
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "PETSTORE_" in line]
    assert line == (
        "Error: PETSTORE_DATABASE: it is not set, and its default cannot be made: "
        f"[Errno 17] File exists: '{checkout}/instance'; set it to a path."
    )


def test_python_app_py_says_how_it_is_started() -> None:
    with pytest.raises(SystemExit, match="^Start it with: flask run, or gunicorn "):
        runpy.run_path(str(ROOT / "app.py"), run_name="__main__")


def test_the_database_is_in_the_instance_folder_unless_told_and_the_log_says_so(
    checkout: Path,
) -> None:
    program = "import app; app.create_app(); app.create_app()"
    settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": ""}
    ended = run("python", "-c", program, folder=checkout, **settings)
    database = checkout / "instance" / "pets.db"
    assert database.exists()
    assert ended.stderr == f"Made a new database: {database}\n"


# As on Windows.
WITHOUT_GUNICORN_AND_FORK = f"""
import os, sys
sys.modules["gunicorn"] = None
del os.fork, os.register_at_fork
import app
client = app.create_app().test_client()
print(client.post("/v1/pets", json={PET}, headers={AUTHORIZED}).text, end="")
"""


def test_it_serves_without_gunicorn_and_without_forks() -> None:
    settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": ":memory:"}
    ended = run("python", "-c", WITHOUT_GUNICORN_AND_FORK, **settings)
    assert (ended.stdout[:8], ended.stderr) == ('{"id":1,', "")


def test_under_a_prefix_every_url_carries_it(client: FlaskClient) -> None:
    prefix, sent = "/ü >/b", "/%C3%BC%20%3E/b"
    mount = prefix.encode().decode("latin-1")  # as WSGI spells a path
    client = Client(DispatcherMiddleware(Flask("outer"), {mount: client.application}))
    pets = f"{prefix}/v1/pets"
    for number in (1, 2):
        created = client.post(pets, json=PET, headers=AUTHORIZED)
        assert created.headers["Location"] == f"{sent}/v1/pets/{number}"
    page = client.get(f"{pets}?limit=1", headers=AUTHORIZED)
    assert page.headers["Link"] == f'<{sent}/v1/pets?limit=1&after=1>; rel="next"'
    for number in (1, 9):
        pet = client.get(f"{pets}/{number}", headers=AUTHORIZED)
        assert pet.headers["Link"] == f'<{sent}/v1/pets>; rel="successor-version"'
    nothing = client.get(f"{prefix}/nothing")
    assert f" {sent}/v1/openapi.json " in nothing.get_json()["message"]
    document = client.get(f"{prefix}/v1/openapi.json").get_json()
    assert document["servers"] == [{"url": f"{sent}/v1"}]
    # The page is there without a redirect, which would lead to any Host that was sent.
    for path in (prefix, f"{prefix}/"):
        assert client.get(path).status_code == 200
