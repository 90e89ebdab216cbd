"""Starting the service: the settings, the refusals, and where it can be embedded."""

import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from app import StartError, create_app
from tests.checks import PET, add_pet
from tests.conftest import client_of, client_with_key
from tests.service import (
    AUTHORIZED,
    COMMAND,
    KEY,
    ROOT,
    copy_of_the_checkout,
    environment,
    run,
)


def refusal(**settings: object) -> str:
    """Return the one line that says why the application does not start."""
    with pytest.raises(StartError) as caught:
        create_app(settings)
    [line] = str(caught.value).splitlines()
    return line


# The keys.


@pytest.mark.parametrize("keys", ["", " ", " , ,", None])
def test_without_a_key_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, keys: str | None
) -> None:
    refused = (
        "PETSTORE_API_KEYS: it has no key; set it to one or more, separated by commas."
    )
    assert refusal(API_KEYS=keys, DATABASE=":memory:") == refused
    monkeypatch.setenv("PETSTORE_API_KEYS", keys or "")
    assert refusal(DATABASE=":memory:") == refused


@pytest.mark.parametrize("keys", [["k"], b"k", 7])
def test_keys_that_are_no_string_are_refused(keys: object) -> None:
    line = refusal(API_KEYS=keys, DATABASE=":memory:")
    assert line.startswith("PETSTORE_API_KEYS: it must be a string")


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ("secret\nsecret", 1),
        ("one, two, secret\rsecret", 3),
        ("one, ,secret\0", 2),
        ("secret\x1b[31m", 1),
        ("\ufeffsecret", 1),
        ("secret\ud800", 1),
    ],
)
def test_a_key_that_no_client_can_send_is_told_by_its_number(
    keys: str, number: int
) -> None:
    line = refusal(API_KEYS=keys, DATABASE=":memory:")
    assert line.startswith(f"PETSTORE_API_KEYS: key {number} has a character that no ")


# The database.


def not_a_database(path: Path) -> None:
    path.write_text("Dear diary, today I bought a dog." * 100)


def a_directory(path: Path) -> None:
    path.mkdir()


def no_folder(path: Path) -> None:
    path.parent.rmdir()


def a_newer_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


def the_file_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def another_table_of_pets(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY, breed TEXT)")
        connection.execute("PRAGMA user_version = 1")


def a_damaged_page(path: Path) -> None:
    add_pet(client_of(path), name="x" * 60_000)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xee" * 4096
    path.write_bytes(content)


CANNOT_OPEN = (
    r"unable to open database file "
    r"\(is it a file, is its folder there, may this user write to both\?\)\."
)
OTHER = "it is no pet store of this version: its user_version is"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (not_a_database, r"file is not a database\."),
        (a_directory, CANNOT_OPEN),
        (no_folder, CANNOT_OPEN),
        (a_newer_schema, rf"{OTHER} 2, not 1\."),
        (the_file_of_another_program, rf"{OTHER} 0, not 1\."),
        (another_table_of_pets, "no such column: name.*"),
        (a_damaged_page, r"it is damaged: \*\*\* in database main \*\*\* .*"),
    ],
)
def test_an_unusable_database_is_named_and_left_as_it_was(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    spoil(path)

    def contents() -> list[bytes]:
        files = (path, Path(f"{path}-wal"))
        return [file.read_bytes() for file in files if file.is_file()]

    before = contents()
    with pytest.raises(StartError, match=f"^PETSTORE_DATABASE: {path}: {reason}$"):
        client_of(path)
    # To look into a file in WAL mode, SQLite puts an empty WAL beside it.
    assert list(filter(None, contents())) == before


@pytest.mark.parametrize("path", ["pets\0.db", "pets\ud800.db", b"pets.db", 7])
def test_a_database_that_is_no_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(API_KEYS=KEY, DATABASE=path)
    assert line.startswith("PETSTORE_DATABASE: ")
    assert list(tmp_path.iterdir()) == []


def test_a_default_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (copy_of_the_checkout(tmp_path) / "instance").touch()
    line = line_of(["flask", "run"], tmp_path, PETSTORE_API_KEYS=KEY)
    assert line.startswith("Error: PETSTORE_DATABASE: it is not set, and its default ")
    assert f"{tmp_path}/instance" in line


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    line = refusal(API_KEYS=KEY, DATABASE=":memory:")
    assert "3.38 or newer is needed" in line


# What a program does that is refused.


def line_of(command: list[str], folder: Path, **settings: str) -> str:
    """Return the line with which a program ends that cannot start, with status 3."""
    settings |= {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0", "FLASK_RUN_PORT": "0"}
    ended = run(*command, folder=folder, **settings)
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if "PETSTORE_" in line]
    return line


@pytest.mark.parametrize("command", [COMMAND, ["flask", "run"]], ids=" ".join)
def test_a_program_ends_with_the_reason_alone(
    database: Path, command: list[str]
) -> None:
    not_a_database(database)
    for keys, named in [("", "API_KEYS: "), (KEY, f"DATABASE: {database}: ")]:
        line = line_of(
            command, ROOT, PETSTORE_API_KEYS=keys, PETSTORE_DATABASE=str(database)
        )
        assert line.startswith(f"Error: PETSTORE_{named}")


def test_python_app_py_says_how_it_is_started() -> None:
    ended = run("python", "app.py")
    [line] = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "flask run" in line


def test_an_embedding_program_may_catch_the_reason_and_go_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    try:
        app = create_app({"API_KEYS": "", "DATABASE": ":memory:"})
    except Exception as error:
        assert str(error).startswith("PETSTORE_API_KEYS: ")
        app = create_app({"API_KEYS": KEY, "DATABASE": ":memory:"})
    assert add_pet(client_with_key(app))["id"] == 1
    assert capfd.readouterr() == ("", "")


# Where it runs.


@pytest.mark.parametrize(
    "lack",
    [
        pytest.param("sys.modules['gunicorn'] = None", id="gunicorn"),
        pytest.param("del os.fork, os.register_at_fork", id="fork"),
    ],
)
def test_it_serves_without(database: Path, lack: str) -> None:
    program = f"""
import os, sys
{lack}
import app
client = app.create_app().test_client()
headers = {AUTHORIZED}
print(client.post("/v1/pets", json={PET}, headers=headers).status_code)
print(len(client.get("/v1/pets", headers=headers).get_json()))
"""
    settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": str(database)}
    ended = run("python", "-c", program, **settings)
    assert ended.stdout == "201\n1\n"
    assert ended.stderr == f"Made a new database: {database}\n"


def test_a_start_waits_for_another_that_writes_to_the_file(database: Path) -> None:
    pet = add_pet(client_of(database))
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN IMMEDIATE")
        assert pets_after(database, lambda: other.execute("COMMIT")) == [pet]


def pets_after(database: Path, release: Callable[[], object]) -> object:
    """Check that a start waits for `release`; return the pets that it finds then."""
    with ThreadPoolExecutor(1) as thread:
        start = thread.submit(client_of, database)
        with pytest.raises(TimeoutError):
            start.result(timeout=0.2)
        release()
        return start.result().get("/v1/pets").get_json()


OPENER = """
import sys, app
print("ready", flush=True)
for line in sys.stdin:
    app.create_app({"API_KEYS": "k", "DATABASE": line.rstrip()})
    print("open", flush=True)
"""


def test_processes_that_start_at_once_all_make_the_same_file(tmp_path: Path) -> None:
    with ExitStack() as stack:
        openers = [
            stack.enter_context(
                subprocess.Popen(
                    ["python", "-c", OPENER],
                    cwd=ROOT,
                    env=environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    bufsize=1,
                )
            )
            for _ in range(4)
        ]
        said = [opener.stdout.readline() for opener in openers]
        for number in range(5):
            for opener in openers:
                opener.stdin.write(f"{tmp_path}/{number}.db\n")
            said += [opener.stdout.readline() for opener in openers]
    assert said == ["ready\n"] * 4 + ["open\n"] * 20


def test_a_path_given_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "12345678901234567890, true")
    monkeypatch.setenv("PETSTORE_DATABASE", str(tmp_path / "from-environment.db"))
    # No setting of Flask's own.
    monkeypatch.setenv("PETSTORE_MAX_CONTENT_LENGTH", "10")
    create_app()
    client = create_app({"DATABASE": tmp_path / "given.db"}).test_client()
    files = {path.name for path in tmp_path.glob("*.db")}
    assert files == {"from-environment.db", "given.db"}
    for key in ("12345678901234567890", "true"):
        headers = {"Authorization": f"Bearer {key}"}
        response = client.post("/v1/pets", json=PET, headers=headers)
        assert response.status_code == 201


@pytest.mark.parametrize("settings", [{}, {"PETSTORE_DATABASE": ""}])
def test_the_database_is_in_the_instance_folder_unless_told_and_the_log_says_so(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    program = "import app; app.create_app(); app.create_app()"
    settings = {"PETSTORE_API_KEYS": KEY, **settings}
    folder = copy_of_the_checkout(tmp_path)
    ended = run("python", "-c", program, folder=folder, **settings)
    database = tmp_path / "instance" / "pets.db"
    assert database.exists()
    assert ended.stderr == f"Made a new database: {database}\n"


@pytest.mark.parametrize(
    ("prefix", "sent"), [("/a/b", "/a/b"), ("/ü >", "/%C3%BC%20%3E")]
)
def test_under_a_prefix_every_url_carries_it(
    client: FlaskClient, prefix: str, sent: str
) -> None:
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
