"""Starting the service: the settings, the refusals, and where it can be embedded."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from app import StartError, create_app
from tests.checks import PET, add_pet
from tests.conftest import client_with_key
from tests.service import AUTHORIZED, COMMAND, KEY, ROOT, environment


def refusal(**settings: object) -> str:
    """Return the one line that says why the application does not start."""
    with pytest.raises(StartError) as caught:
        create_app(settings)
    assert caught.value.exit_code == 3
    [line] = str(caught.value).splitlines()
    assert line.startswith("Animal Store Service: ")
    return line


def copy_of_the_checkout(folder: Path) -> Path:
    """Copy what the service consists of to a folder, and return it."""
    for file in (*ROOT.glob("*.py"), ROOT / "openapi.json"):
        shutil.copy(file, folder)
    return folder


# The keys.


@pytest.mark.parametrize("keys", ["", " ", ",", " , ,"])
def test_without_a_key_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    assert "PETSTORE_API_KEYS" in refusal(API_KEYS=keys, DATABASE=":memory:")
    monkeypatch.setenv("PETSTORE_API_KEYS", keys)
    assert "PETSTORE_API_KEYS" in refusal(DATABASE=":memory:")


@pytest.mark.parametrize("keys", [["k"], None, b"k", 7])
def test_keys_that_are_no_string_are_refused(keys: object) -> None:
    line = refusal(API_KEYS=keys, DATABASE=":memory:")
    assert "API_KEYS must be a string" in line


@pytest.mark.parametrize(
    ("keys", "number", "character"),
    [
        ("secret\nsecret", 1, "U+000A"),
        ("one, two, secret\rsecret", 3, "U+000D"),
        ("one, ,secret\0", 2, "U+0000"),
        ("secret\x1b[31m", 1, "U+001B"),
        ("secret\x7f", 1, "U+007F"),
        ("\ufeffsecret", 1, "U+FEFF"),
        ("secret\ud800", 1, "U+D800"),
    ],
)
def test_a_key_that_no_client_can_send_is_told_by_its_number(
    keys: str, number: int, character: str
) -> None:
    line = refusal(API_KEYS=keys, DATABASE=":memory:")
    assert f"PETSTORE_API_KEYS: key {number} contains {character}" in line
    assert "secret" not in line


# The database.


@pytest.mark.parametrize(
    "path", [7, 0, False, True, b"pets.db", ["pets.db"], "pets\0.db", "pets\ud800.db"]
)
def test_a_database_that_is_no_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: object
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "PETSTORE_DATABASE" in refusal(API_KEYS=KEY, DATABASE=path)
    assert list(tmp_path.iterdir()) == []


def not_a_database(path: Path) -> None:
    path.write_text("Dear diary, today I bought a dog." * 100)


def a_directory(path: Path) -> None:
    path.mkdir()


def no_folder(path: Path) -> None:
    path.parent.rmdir()


def a_newer_schema(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


def a_newer_schema_killed_in_mid_write(path: Path) -> None:
    newer = path.with_suffix(".newer")
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY)")
        connection.execute("PRAGMA user_version = 2")
        for suffix in ("", "-wal"):
            shutil.copy(f"{newer}{suffix}", f"{path}{suffix}")


def the_file_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def another_table_of_pets(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE pets (id INTEGER PRIMARY KEY, breed TEXT)")
        connection.execute("PRAGMA user_version = 1")


def a_damaged_page(path: Path) -> None:
    app = create_app({"API_KEYS": KEY, "DATABASE": path})
    add_pet(client_with_key(app), name="x" * 60_000)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xee" * 4096
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (not_a_database, "file is not a database"),
        (a_directory, "unable to open database file"),
        (no_folder, "unable to open database file"),
        (a_newer_schema, "it is no pet store of this version: its user_version is 2"),
        (
            a_newer_schema_killed_in_mid_write,
            "it is no pet store of this version: its user_version is 2",
        ),
        (
            the_file_of_another_program,
            "it is no pet store of this version: its user_version is 0",
        ),
        (another_table_of_pets, "no such column"),
        (a_damaged_page, "it is damaged: *** in database main ***"),
    ],
)
def test_an_unusable_database_is_named_and_left_as_it_was(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    spoil(path)

    def contents() -> list[bytes]:
        wal = Path(f"{path}-wal")
        return [file.read_bytes() for file in (path, wal) if file.is_file()]

    before = contents()
    line = refusal(API_KEYS=KEY, DATABASE=path)
    assert line.startswith(f"Animal Store Service: {path}: {reason}")
    # To look into a file in WAL mode, SQLite puts an empty WAL beside it.
    assert list(filter(None, contents())) == before


def test_a_line_break_in_the_path_makes_no_second_line(tmp_path: Path) -> None:
    line = refusal(API_KEYS=KEY, DATABASE=tmp_path / "no\nfolder" / "pets.db")
    assert "folder" in line


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    line = refusal(API_KEYS=KEY, DATABASE=":memory:")
    assert "3.38 or newer" in line


# What a program does that is refused.


@pytest.mark.parametrize(
    "command",
    [COMMAND, [*COMMAND, "--preload"], [*COMMAND, "--check-config"], ["flask", "run"]],
    ids=" ".join,
)
def test_a_program_ends_with_the_reason_alone(
    database: Path, command: list[str]
) -> None:
    not_a_database(database)

    def run(keys: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment(
                GUNICORN_CMD_ARGS="--bind 127.0.0.1:0",
                FLASK_RUN_PORT="0",
                PETSTORE_API_KEYS=keys,
                PETSTORE_DATABASE=str(database),
            ),
            capture_output=True,
            text=True,
            timeout=10,
        )

    with ThreadPoolExecutor() as threads:
        runs = list(threads.map(run, ["", KEY]))
    for ended, named in zip(runs, ["PETSTORE_API_KEYS", str(database)], strict=True):
        assert ended.returncode == 3
        assert "Traceback" not in ended.stderr
        [line] = [line for line in ended.stderr.splitlines() if named in line]
        assert line.startswith(f"Animal Store Service: {named}")
        assert ended.stderr.count("Animal Store Service") == 1
        assert "Animal Store Service" not in ended.stdout


def test_an_embedding_program_may_catch_the_reason_and_go_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    try:
        app = create_app({"API_KEYS": "", "DATABASE": ":memory:"})
    except Exception:
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
    run = subprocess.run(
        ["python", "-c", program],
        cwd=ROOT,
        env=environment(PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=str(database)),
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("201\n1\n", "")


def test_a_start_waits_for_another_that_writes_to_the_file(database: Path) -> None:
    pet = add_pet(client_with_key(create_app({"API_KEYS": KEY, "DATABASE": database})))
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN IMMEDIATE")
        assert pets_after(database, lambda: other.execute("COMMIT")) == [pet]


def test_a_start_waits_for_another_that_makes_the_tables(tmp_path: Path) -> None:
    create_app({"API_KEYS": KEY, "DATABASE": tmp_path / "other.db"})
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        made = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
        ).fetchall()
    database = tmp_path / "pets.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("BEGIN IMMEDIATE")
        for (statement,) in made:
            other.execute(statement)
        other.execute("PRAGMA user_version = 1")
        assert pets_after(database, lambda: other.execute("COMMIT")) == []


def pets_after(database: Path, release: Callable[[], object]) -> object:
    """Check that a start waits for `release`; return the pets that it finds then."""
    settings = {"API_KEYS": KEY, "DATABASE": database}
    with ThreadPoolExecutor(1) as thread:
        start = thread.submit(create_app, settings)
        with pytest.raises(TimeoutError):
            start.result(timeout=0.2)
        release()
        return client_with_key(start.result()).get("/v1/pets").get_json()


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
                    text=True,
                    bufsize=1,
                )
            )
            for _ in range(4)
        ]
        said = [opener.stdout.readline() for opener in openers]
        for number in range(10):
            for opener in openers:
                opener.stdin.write(f"{tmp_path}/{number}.db\n")
            said += [opener.stdout.readline() for opener in openers]
    assert said == ["ready\n"] * 4 + ["open\n"] * 40


def test_a_path_given_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "k")
    monkeypatch.setenv("PETSTORE_DATABASE", str(tmp_path / "from-environment.db"))
    create_app()
    create_app({"DATABASE": tmp_path / "given.db"})
    assert {path.name for path in tmp_path.iterdir()} == {
        "from-environment.db",
        "given.db",
    }


def test_settings_are_plain_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "12345678901234567890, true")
    monkeypatch.setenv("PETSTORE_DATABASE", ":memory:")
    client = create_app().test_client()
    for key in ("12345678901234567890", "true"):
        headers = {"Authorization": f"Bearer {key}"}
        assert client.get("/v1/pets", headers=headers).status_code == 200


@pytest.mark.parametrize("settings", [{}, {"PETSTORE_DATABASE": ""}])
def test_the_database_is_in_the_instance_folder_unless_told(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    subprocess.run(
        ["python", "-c", "import app; app.create_app(); app.create_app()"],
        cwd=copy_of_the_checkout(tmp_path),
        env=environment(PETSTORE_API_KEYS=KEY, **settings),
        check=True,
    )
    assert (tmp_path / "instance" / "pets.db").exists()


@pytest.mark.parametrize(
    ("prefix", "sent"),
    [("/shop", "/shop"), ("/a/b", "/a/b"), ("/ü >", "/%C3%BC%20%3E")],
)
def test_under_a_prefix_every_url_carries_it(prefix: str, sent: str) -> None:
    app = create_app({"API_KEYS": KEY, "DATABASE": ":memory:"})
    mount = prefix.encode().decode("latin-1")  # as WSGI spells a path
    client = Client(DispatcherMiddleware(Flask("outer"), {mount: app}))
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
