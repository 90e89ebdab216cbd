"""docs/server.md: its blocks do what it says, and its figures are those of the code."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from configparser import RawConfigParser
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from gunicorn.config import Config

from app import create_app
from schemas import MAX_BODY_BYTES
from storage import SCHEMA_VERSION, PetStore
from tests.process import COMMAND, ROOT, run, serving

DOCUMENT = (ROOT / "docs" / "server.md").read_text("utf-8")
# What the blocks write, by path.
FILES = dict(re.findall(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", DOCUMENT, re.M | re.S))
UNIT = RawConfigParser()
UNIT.optionxform = str  # type: ignore[assignment, method-assign]
UNIT.read_string(FILES["/etc/systemd/system/petstore.service"])
NGINX = FILES["/etc/nginx/conf.d/petstore.conf"]

# Used instead of the program sqlite3, which may not be installed.
SQLITE3 = f"""#!{sys.executable} -IS
import sqlite3, sys
*options, path, statement = sys.argv[1:]
mode = {{(): "rwc", ("-readonly",): "ro"}}[tuple(options)]
try:
    connection = sqlite3.connect(f"file:{{path}}?mode={{mode}}", uri=True)
    for row in connection.execute(statement):
        print(*row, sep="|")
except sqlite3.Error as error:
    raise SystemExit(f"Error: {{error}}")
"""


def section(title: str) -> str:
    """Return the text below a heading, up to the next heading."""
    _, text = re.split(rf"^##+ {re.escape(title)}$", DOCUMENT, flags=re.M)
    return re.split(r"^##+ ", text, flags=re.M)[0]


def blocks(text: str) -> list[str]:
    """Return the shell blocks of a part of the document."""
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


class Machine:
    """A server whose root folder is a temporary folder.

    It runs the document's blocks with their paths below that folder. Programs that
    would change the real machine only log that they were called.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backups = root / "var/backups/petstore"
        self.database = root / "var/lib/petstore/pets.db"
        for file in [self.database, *(root / path[1:] for path in FILES)]:
            file.parent.mkdir(parents=True, exist_ok=True)
        self.programs = root / "bin"
        self.programs.mkdir()
        self.add_program("sqlite3", SQLITE3)
        self.add_program("date", f"#!/bin/sh\ncat {root}/time")
        for name in ("chown", "nginx", "sync", "systemctl", "systemd-analyze"):
            self.add_program(name, f"#!/bin/sh\necho {name} $* >> {root}/calls")

    def add_program(self, name: str, text: str) -> None:
        """Add a program that the blocks find before the installed one."""
        file = self.programs / name
        file.write_text(text)
        file.chmod(0o755)

    def set_time(self, text: str) -> None:
        """Set what `date` prints."""
        (self.root / "time").write_text(text)

    def run(self, block: str) -> subprocess.CompletedProcess[str]:
        """Run a block of the document."""
        script = re.sub(r"(?=/(etc|srv|usr/local|var)/)", str(self.root), block)
        python = Path(sys.executable).parent
        path = os.pathsep.join([str(self.programs), str(python), os.environ["PATH"]])
        return run("sh", "-c", script, folder=self.root, PATH=path)

    def calls(self, *programs: str) -> list[str]:
        """Return the calls of these programs, in order."""
        log = self.root / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(programs)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def add_pets(database: Path, *names: str) -> None:
    """Add pets to a database, and close it."""
    store = PetStore(str(database))
    for name in names:
        store.add(name=name, category_id=1, status="sold")


def pets_in(database: Path) -> list[str]:
    """Return the names of the pets in a database."""
    page, _ = PetStore(str(database)).list_page(limit=100, status=None, after=0)
    return [pet["name"] for pet in json.loads(page)]


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# The document as a whole.


def test_every_block_is_valid_shell() -> None:
    for block in blocks(DOCUMENT):
        assert not run("sh", "-n", "-c", block).stderr


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!https:)(.*?)\)", DOCUMENT):
        file, _, anchor = target.partition("#")
        text = (ROOT / "docs" / (file or "server.md")).read_text("utf-8")
        headings = re.findall(r"^##+ (.*)$", text, re.M)
        anchors = [
            re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-")
            for heading in headings
        ]
        assert not anchor or anchor in anchors


# Install, proxy, keys.


def test_the_unit_starts_what_the_procfile_does() -> None:
    program, *options = shlex.split(UNIT["Service"]["ExecStart"])
    bound = ["--bind", "127.0.0.1:8000"]
    assert [Path(program).name, *options] == [COMMAND[0], *bound, *COMMAND[1:]]


def test_nginx_passes_requests_to_the_address_in_the_unit() -> None:
    [address] = re.findall(r"server ([\d.:]+);", NGINX)
    assert f"--bind {address} " in UNIT["Service"]["ExecStart"]


def test_nginx_passes_on_every_body_that_the_service_accepts() -> None:
    [size] = re.findall(r"client_max_body_size (\d+)k;", NGINX)
    assert int(size) * 1024 > MAX_BODY_BYTES
    assert f"{MAX_BODY_BYTES:,} bytes" in section("Proxy")


def test_nginx_closes_idle_connections_before_gunicorn_does() -> None:
    [seconds] = re.findall(r"keepalive_timeout (\d+)s;", NGINX)
    keepalive = Config().keepalive
    assert int(seconds) < keepalive
    assert f"shorter than the {keepalive} seconds" in section("Proxy")


def test_a_prefix_is_set_and_removed(machine: Machine) -> None:
    config = machine.root / "etc/nginx/conf.d/petstore.conf"
    config.write_text(NGINX)
    setting, removing = blocks(section("Under a prefix"))
    assert machine.run(setting).returncode == 0
    assert config.read_text() == NGINX.replace("location / {", "location /store/ {")
    drop_ins = machine.root / "etc/systemd/system/petstore.service.d"
    assert content(drop_ins) == {
        "prefix.conf": b"[Service]\nEnvironment=SCRIPT_NAME=/store\n"
    }
    assert machine.run(removing).returncode == 0
    assert config.read_text() == NGINX
    assert content(drop_ins) == {}
    restart = ["systemctl daemon-reload", "systemctl restart petstore"]
    assert machine.calls("systemctl") == [*restart, "systemctl reload nginx"] * 2


def test_a_key_is_made_and_replaced(machine: Machine) -> None:
    env_file = machine.root / "etc/petstore.env"

    def keys() -> list[str]:
        name, value = env_file.read_text().strip().split("=", 1)
        assert name == "PETSTORE_API_KEYS"
        return value.split(",")

    def statuses(*keys_sent: str) -> list[int]:
        config = {"API_KEYS": ",".join(keys()), "DATABASE": ":memory:"}
        client = create_app(config).test_client()
        headers = [{"Authorization": f"Bearer {key}"} for key in keys_sent]
        return [client.get("/v1/pets", headers=h).status_code for h in headers]

    [make] = [block for block in blocks(section("Install")) if "secrets" in block]
    machine.run(make)
    assert env_file.stat().st_mode & 0o777 == 0o600
    [old] = keys()
    add, remove = blocks(section("Keys"))
    machine.run(add)
    new, _ = keys()
    assert statuses(new, old) == [200, 200]
    machine.run(remove)
    assert keys() == [new]
    assert statuses(new, old) == [200, 401]
    assert env_file.stat().st_mode & 0o777 == 0o600
    assert machine.calls("systemctl") == ["systemctl restart petstore"] * 2


def test_the_health_check_prints_what_is_shown(client: FlaskClient) -> None:
    assert f"`{client.get('/healthz').text.strip()}`" in section("Install")


def test_gunicorn_runs_the_service_from_any_folder(tmp_path: Path) -> None:
    [block] = blocks(section("Outside systemd"))
    command = block.replace("/srv/petstore/.venv/bin/", "")
    command = command.replace("/srv/petstore", str(ROOT)).strip()
    settings = {"PETSTORE_DATABASE": ":memory:", "GUNICORN_CMD_ARGS": "--check-config"}
    ended = run("sh", "-c", command, folder=tmp_path, **settings)
    assert (ended.returncode, ended.stderr) == (0, "")


# Backup and restore.


@pytest.fixture
def backed_up(machine: Machine) -> Machine:
    """A machine with a backup of the pet Rex, made by the document's blocks."""
    add_pets(machine.database, "Rex")
    write, make = blocks(section("Backup"))
    machine.run(write)
    machine.set_time("2026-11-20T120000")
    assert machine.run(make).returncode == 0
    return machine


@pytest.fixture
def restorable(backed_up: Machine) -> Machine:
    """The same machine with the restore script, and with the pet Tom added since."""
    backed_up.run(blocks(section("Restore"))[0])
    backed_up.set_time("2026-11-20T121500")
    add_pets(backed_up.database, "Tom")
    return backed_up


def restore(machine: Machine) -> subprocess.CompletedProcess[str]:
    return machine.run(blocks(section("Restore"))[2])


def undo(machine: Machine) -> subprocess.CompletedProcess[str]:
    machine.set_time("2026-11-20T123000")
    return machine.run(blocks(section("Undo a restore"))[0])


def test_a_backup_has_the_pets_of_the_running_service(backed_up: Machine) -> None:
    store = PetStore(str(backed_up.database))
    store.add(name="Tom", category_id=1, status="sold")
    backed_up.set_time("2026-11-20T120100")
    assert backed_up.run(blocks(section("Backup"))[1]).returncode == 0
    store.check()
    first, second = sorted(backed_up.backups.iterdir())
    assert pets_in(first) == ["Rex"]
    assert second.stat().st_mode & 0o777 == 0o600
    assert pets_in(second) == ["Rex", "Tom"]


def test_old_backups_are_removed_after_a_new_one(backed_up: Machine) -> None:
    [days] = re.findall(r"more than (\d+) days old", section("Backup"))
    for name, age in (("pets-older.db", 1), ("pets-younger.db", -1)):
        file = backed_up.backups / name
        file.touch()
        seconds = file.stat().st_mtime - (int(days) + age) * 86400
        os.utime(file, (seconds, seconds))
    before = content(backed_up.backups)
    make = blocks(section("Backup"))[1]
    backed_up.database.rename(backed_up.root / "moved.db")
    backed_up.run(make)
    assert content(backed_up.backups) == before
    (backed_up.root / "moved.db").rename(backed_up.database)
    backed_up.run(make)
    assert content(backed_up.backups).keys() == before.keys() - {"pets-older.db"}


def test_a_restore_replaces_the_pets(restorable: Machine) -> None:
    ended = restore(restorable)
    assert ended.stdout.startswith("The backup is restored.")
    calls = ["systemctl stop petstore", "systemctl start petstore"]
    assert restorable.calls("systemctl") == calls
    [chown] = restorable.calls("chown")
    assert chown.startswith("chown petstore:petstore ")
    assert restorable.database.stat().st_mode & 0o777 == 0o600
    assert pets_in(restorable.database) == ["Rex"]


def test_a_restore_is_undone(restorable: Machine) -> None:
    restore(restorable)
    add_pets(restorable.database, "Ada")
    assert undo(restorable).returncode == 0
    assert pets_in(restorable.database) == ["Rex", "Tom"]
    replaced = restorable.database.parent / "old-2026-11-20T123000" / "pets.db"
    assert pets_in(replaced) == ["Rex", "Ada"]


def test_an_undone_restore_has_what_was_only_in_the_wal(restorable: Machine) -> None:
    with serving(restorable.database) as service:
        service.request("POST", "/v1/pets", {"name": "Ada", "categoryId": 1})
        service.kill()
    assert restorable.database.with_name("pets.db-wal").stat().st_size
    assert restore(restorable).returncode == 0
    assert pets_in(restorable.database) == ["Rex"]
    assert undo(restorable).returncode == 0
    assert pets_in(restorable.database) == ["Rex", "Tom", "Ada"]


def test_a_missing_database_is_restored(restorable: Machine) -> None:
    restorable.database.unlink()
    assert restore(restorable).returncode == 0
    assert pets_in(restorable.database) == ["Rex"]


def with_version(backup: bytes, version: int) -> bytes:
    """Return a database with another user_version (sqlite.org/fileformat2.html)."""
    return backup[:60] + version.to_bytes(4, "big") + backup[64:]


BAD_BACKUPS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda backup: None,
    "text": lambda backup: b"Rex\n" * 1000,
    "truncated": lambda backup: backup[: len(backup) // 2],
    "empty": lambda backup: b"",
    "damaged": lambda backup: backup[:4096] + b"\xff" * (len(backup) - 4096),
    "with an invalid pet": lambda backup: (
        backup[:4096] + backup[4096:].replace(b"sold", b"gold")
    ),
    "of another version": lambda backup: with_version(backup, SCHEMA_VERSION + 1),
    "of another program": lambda backup: backup.replace(b"pets", b"cars"),
}


@pytest.mark.parametrize("make_bad", BAD_BACKUPS.values(), ids=BAD_BACKUPS.keys())
def test_a_bad_backup_is_refused_before_the_service_is_stopped(
    restorable: Machine, make_bad: Callable[[bytes], bytes | None]
) -> None:
    [backup] = restorable.backups.iterdir()
    bad = make_bad(backup.read_bytes())
    backup.unlink()
    if bad is not None:
        backup.write_bytes(bad)
    store = PetStore(str(restorable.database))
    store.check()
    before = content(restorable.database.parent)
    ended = restore(restorable)
    assert ended.returncode == 1
    assert ended.stderr.endswith("Nothing has changed.\n")
    assert restorable.calls("systemctl") == []
    assert content(restorable.database.parent) == before
    assert store.get(2)


# Figures.


@pytest.mark.parametrize(
    ("file", "constant", "sentence"),
    [
        ("storage.py", "WRITE_TIMEOUT", "Writes wait for {} to 6 seconds"),
        ("storage.py", "MAX_WAITING_WRITES", "if at most {} are queued"),
        ("storage.py", "BUSY_TIMEOUT", "and up to {} seconds if more are queued"),
        ("storage.py", "SCHEMA_VERSION", "or is not a backup of version {}."),
        ("storage.py", "SCHEMA_VERSION", '"PRAGMA user_version")" = {} &&'),
        ("gunicorn.conf.py", "threads", "all {} threads"),
        ("gunicorn.conf.py", "READ_TIMEOUT", "{} seconds after a request has begun"),
        ("gunicorn.conf.py", "READ_TIMEOUT", "up to {} seconds for half a request"),
        ("gunicorn.conf.py", "CLOSE_TIMEOUT", "After {} seconds, the service closes"),
        ("gunicorn.conf.py", "CLOSE_TIMEOUT", "up to {} for a response that"),
    ],
)
def test_figures_are_those_of_the_code(file: str, constant: str, sentence: str) -> None:
    source = (ROOT / file).read_text("utf-8")
    [value] = re.findall(rf"^{constant}(?:: \w+)? = ([\d.]+)$", source, re.M)
    assert sentence.format(f"{float(value):g}") in DOCUMENT


def test_the_log_has_lines_like_the_one_shown(database: Path) -> None:
    [line] = re.findall(r"^```text\n(.*)\n```$", section("Log"), re.M)
    with serving(database) as service:
        service.request("GET", "/v1/pets?limit=20")
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line)).replace("Nov", r"\w+")
        assert service.wait_for_log(pattern)
