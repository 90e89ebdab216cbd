"""Starting the service: the settings, the refusals, and where it can be embedded."""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from app import create_app
from tests.service import COMMAND, ROOT, environment

AUTHORIZED = {"Authorization": "Bearer k"}


def refusal(capsys: pytest.CaptureFixture[str], **settings: object) -> str:
    """Return the one line with which the start fails."""
    with pytest.raises(SystemExit) as exit_:
        create_app(settings)
    assert exit_.value.code == 3
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("keys", ["", " ", ",", " , ,"])
def test_without_a_key_nothing_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    for settings in ({"API_KEYS": keys}, {}):
        monkeypatch.setenv("PETSTORE_API_KEYS", keys)
        line = refusal(capsys, DATABASE=":memory:", **settings)
        assert "PETSTORE_API_KEYS" in line


def test_keys_in_a_list_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, API_KEYS=["k"], DATABASE=":memory:")
    assert "API_KEYS must be a string" in line


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
    app = create_app({"API_KEYS": "k", "DATABASE": path})
    app.test_client().post(
        "/v1/pets", json={"name": "x" * 60_000, "categoryId": 1}, headers=AUTHORIZED
    )
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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    reason: str,
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    spoil(path)

    def contents() -> list[bytes]:
        wal = Path(f"{path}-wal")
        return [file.read_bytes() for file in (path, wal) if file.is_file()]

    before = contents()
    line = refusal(capsys, API_KEYS="k", DATABASE=path)
    assert line.startswith(f"Animal Store Service: {path}: {reason}")
    # To look into a file in WAL mode, SQLite puts an empty WAL beside it.
    assert list(filter(None, contents())) == before


def test_an_old_sqlite_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    line = refusal(capsys, API_KEYS="k", DATABASE=":memory:")
    assert "3.38 or newer" in line


@pytest.mark.parametrize(
    "command",
    [COMMAND, ["flask", "run"], ["python", "-c", "import app; app.create_app()"]],
)
def test_the_program_ends_with_the_reason_and_no_traceback(
    database: Path, command: list[str]
) -> None:
    not_a_database(database)
    for keys, named in [("", "PETSTORE_API_KEYS"), ("k", str(database))]:
        run = subprocess.run(
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
        assert run.returncode != 0
        output = run.stdout + run.stderr
        assert "Traceback" not in output
        [line] = [line for line in output.splitlines() if named in line]
        assert line.startswith("Animal Store Service: ")


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
            for _ in range(8)
        ]
        said = [opener.stdout.readline() for opener in openers]
        for number in range(40):
            for opener in openers:
                opener.stdin.write(f"{tmp_path}/{number}.db\n")
            said += [opener.stdout.readline() for opener in openers]
    assert said == ["ready\n"] * 8 + ["open\n"] * 320


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


def test_the_database_is_in_the_instance_folder_unless_told(tmp_path: Path) -> None:
    for file in (*ROOT.glob("*.py"), ROOT / "openapi.json"):
        shutil.copy(file, tmp_path)
    for empty in ({}, {"PETSTORE_DATABASE": ""}):
        subprocess.run(
            ["python", "-c", "import app; app.create_app()"],
            cwd=tmp_path,
            env=environment(PETSTORE_API_KEYS="k", **empty),
            check=True,
        )
        assert (tmp_path / "instance" / "pets.db").exists()


@pytest.mark.parametrize(
    ("prefix", "sent"),
    [("/shop", "/shop"), ("/a/b", "/a/b"), ("/ü >", "/%C3%BC%20%3E")],
)
def test_under_a_prefix_every_url_carries_it(prefix: str, sent: str) -> None:
    app = create_app({"API_KEYS": "k", "DATABASE": ":memory:"})
    mount = prefix.encode().decode("latin-1")  # as WSGI spells a path
    client = Client(DispatcherMiddleware(Flask("outer"), {mount: app}))
    pet = {"name": "Rex", "categoryId": 1}
    pets = f"{prefix}/v1/pets"
    for number in (1, 2):
        created = client.post(pets, json=pet, headers=AUTHORIZED)
        assert created.headers["Location"] == f"{sent}/v1/pets/{number}"
    page = client.get(f"{pets}?limit=1", headers=AUTHORIZED)
    assert page.headers["Link"] == f'<{sent}/v1/pets?limit=1&after=1>; rel="next"'
    for number in (1, 9):
        pet = client.get(f"{pets}/{number}", headers=AUTHORIZED)
        assert pet.headers["Link"] == f'<{sent}/v1/pets>; rel="successor-version"'
    assert client.get(pets).status_code == 401
