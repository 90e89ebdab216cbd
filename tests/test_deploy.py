"""deploy/: backup, restore and upgrade, because a mistake there loses pets.

The scripts run as they are, in a clone of their own, while the service runs.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import pytest

from storage import SCHEMA_VERSION
from tests.helpers import KEY, NEW_PET, other_program
from tests.service import ROOT, TIMEOUT, Response, environment, request, run

# Like systemd with deploy/petstore.service: `start` waits until gunicorn says that it
# is ready, and fails if gunicorn ends instead.
SYSTEMCTL = f"""#!{sys.executable} -IS
import os, select, signal, socket, subprocess, sys
os.chdir(os.environ["MACHINE"])
action = sys.argv[1]
print(*sys.argv[1:], file=open("calls", "a"))
if action != "start" and os.path.exists("pid"):
    pid = int(open("pid").read())
    os.remove("pid")
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    select.select([process], [], [])
if action != "stop":
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind("")
    name = notify.getsockname().decode().replace(chr(0), "@")
    process = subprocess.Popen(
        [".venv/bin/gunicorn", "--bind", "127.0.0.1:0", "app:create_app()"],
        cwd="clone",
        env={{**os.environ, "NOTIFY_SOCKET": name}},
        stdout=open("log", "w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    print(process.pid, file=open("pid", "w"))
    ready, _, _ = select.select([notify, os.pidfd_open(process.pid)], [], [])
    sys.exit(notify not in ready)
"""
# Used if the program is not installed.
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


class Machine:
    """A server in a temporary folder, with a clone of this repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.origin = root / "origin"
        self.clone = root / "clone"
        self.database = root / "data" / "pets.db"
        self.backups = root / "backups"
        self.programs = root / "bin"
        for folder in (self.database.parent, self.programs):
            folder.mkdir(parents=True)
        self.add_program("systemctl", SYSTEMCTL)
        if not shutil.which("sqlite3"):
            self.add_program("sqlite3", SQLITE3)
        ignored = shutil.ignore_patterns(".git", ".venv", "instance", "tests")
        shutil.copytree(ROOT, self.origin, ignore=ignored)
        self.run("git", "init", "--quiet", str(self.origin))
        self.commit()
        self.run("git", "clone", "--quiet", str(self.origin), str(self.clone))
        (self.clone / ".venv").symlink_to(sys.prefix)

    def add_program(self, name: str, text: str) -> None:
        """Add a program that the scripts find before the installed one."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def run(self, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a program. What it prints, errors included, is in `stdout`."""
        path = f"{self.programs}{os.pathsep}{environment()['PATH']}"
        settings = {
            "PATH": path,
            "MACHINE": str(self.root),
            "PETSTORE_API_KEYS": KEY,
            "PETSTORE_DATABASE": str(self.database),
            "PETSTORE_BACKUPS": str(self.backups),
            "PETSTORE_USER": str(os.getuid()),
            # The packages are installed already, and so is what they depend on.
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **settings,
        }
        return subprocess.run(
            command,
            cwd=self.root,
            env=environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )

    def deploy(self, script: str, *arguments: str, **settings: str) -> str:
        """Run a script of deploy/, and return its exit status and its last line."""
        (self.root / "calls").write_text("")
        command = str(self.clone / "deploy" / script)
        process = self.run(command, *arguments, **settings)
        return f"{process.returncode}: {process.stdout.splitlines()[-1]}"

    def back_up(self) -> Path:
        """Make a backup, and return its path."""
        status, _, backup = self.deploy("backup").rpartition(" ")
        assert status == "0: Backup:"
        return Path(backup)

    def commit(self) -> None:
        """Commit what is in `origin`."""
        git = ["git", "-C", str(self.origin), "-c", "user.name=A", "-c", "user.email=A"]
        self.run(*git, "add", "--all")
        assert self.run(*git, "commit", "--message", "Change").returncode == 0

    def version(self) -> str:
        """Return the commit of the clone, and `-dirty` if a file differs from it."""
        git = ["git", "-C", str(self.clone)]
        return self.run(*git, "describe", "--always", "--dirty").stdout

    def start(self) -> None:
        """Start the service."""
        process = self.run("systemctl", "start", "petstore")
        assert process.returncode == 0, self.log()

    def kill(self) -> None:
        """Kill every process of the service with SIGKILL."""
        pid = self.root / "pid"
        if pid.exists():
            os.killpg(int(pid.read_text()), signal.SIGKILL)
            pid.unlink()

    def calls(self) -> list[str]:
        """Return the calls of systemctl by the last script."""
        return (self.root / "calls").read_text().splitlines()

    def log(self) -> str:
        return (self.root / "log").read_text()

    def connect(self) -> HTTPConnection:
        [address] = re.findall(r"http://(127\.0\.0\.1:\d+)", self.log())
        return HTTPConnection(address, timeout=TIMEOUT)

    def request(self, method: str, path: str, body: object = None) -> Response:
        """Send one request with the key, and `body` as JSON."""
        with closing(self.connect()) as connection:
            return request(connection, method, path, body)

    def add(self, name: str) -> None:
        """Add a pet through the service."""
        response = self.request("POST", "/v1/pets", {**NEW_PET, "name": name})
        assert response.status == 201

    def pets(self) -> list[str]:
        """Return the names of the pets that the service has."""
        names: list[str] = []
        after = 0
        while page := self.request("GET", f"/v1/pets?after={after}").body:
            names += [pet["name"] for pet in page]
            after = page[-1]["id"]
        return names


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a machine whose service runs before and after each test."""
    machine = Machine(tmp_path_factory.mktemp("deploy") / "machine")
    try:
        machine.start()
        machine.add("Rex")
        yield machine
    finally:
        machine.kill()


def names_in(database: Path) -> list[str]:
    """Return the names of the pets in a file."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT name FROM pets ORDER BY id").fetchall()
    return [name for (name,) in rows]


def content(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder, by path."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


# backup


def test_a_backup_has_every_pet_that_was_added_before(machine: Machine) -> None:
    added = machine.pets()
    is_over = Event()

    def add_pets() -> None:
        with closing(machine.connect()) as connection:
            while not is_over.is_set():
                name = str(len(added))
                pet = {**NEW_PET, "name": name}
                assert request(connection, "POST", "/v1/pets", pet).status == 201
                added.append(name)

    with ThreadPoolExecutor(1) as thread:
        adding = thread.submit(add_pets)
        try:
            counts = [len(added)]
            for _ in range(5):
                backup = machine.back_up()
                names = names_in(backup)
                assert names == added[: len(names)]
                assert len(names) >= counts[-1]
                counts.append(len(added))
        finally:
            is_over.set()
        adding.result()
    assert counts[-1] > counts[0]
    assert backup.stat().st_mode & 0o777 == 0o600


def test_old_backups_are_removed_but_not_by_a_backup_that_fails(
    machine: Machine,
) -> None:
    machine.back_up()
    for name, days in (("pets-older.db", 31), ("pets-younger.db", 29)):
        file = machine.backups / name
        file.touch()
        seconds = file.stat().st_mtime - days * 86400
        os.utime(file, (seconds, seconds))
    before = content(machine.backups)
    missing = str(machine.root / "missing.db")
    failed = machine.deploy("backup", PETSTORE_DATABASE=missing)
    assert failed == "1: Not backed up. No older backup was removed."
    assert content(machine.backups) == before
    backup = machine.back_up()
    kept = before.keys() - {str(machine.backups / "pets-older.db")}
    assert content(machine.backups).keys() == kept | {str(backup)}


# restore


def test_a_restore_can_be_undone_even_after_a_crash(machine: Machine) -> None:
    pets = machine.pets()
    backup = machine.back_up()
    machine.add("Tom")
    machine.kill()
    # Tom is only in the write-ahead log.
    assert machine.database.with_name("pets.db-wal").stat().st_size
    restored = machine.deploy("restore", str(backup))
    assert restored.startswith("0: Restored. ")
    assert machine.calls() == ["stop petstore", "start petstore"]
    assert machine.pets() == pets
    assert machine.database.stat().st_mode & 0o777 == 0o600
    machine.add("Ada")
    undo = restored.partition("To undo this: ")[2].split()
    undone = machine.run(*undo)
    assert undone.returncode == 0
    assert machine.pets() == [*pets, "Tom"]
    [old] = re.findall("The previous files are in ([^ ]+)[.] ", undone.stdout)
    assert names_in(Path(old, "pets.db")) == [*pets, "Ada"]


def test_a_restore_says_if_the_service_does_not_start(machine: Machine) -> None:
    pets = machine.pets()
    backup = machine.back_up()
    machine.kill()
    machine.database.unlink()
    restored = machine.deploy("restore", str(backup), PETSTORE_API_KEYS="")
    assert restored.startswith("1: Restored, but the service does not start")
    machine.start()
    assert machine.pets() == pets


def with_other_columns(backup: Path) -> None:
    """Replace a backup with the pets of another program."""
    backup.unlink()
    columns = "id INTEGER PRIMARY KEY, name TEXT, owner TEXT"
    with other_program(backup, f"CREATE TABLE pets ({columns})"):
        pass


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a function that changes the bytes of a backup."""
    return lambda backup: backup.write_bytes(change(backup.read_bytes()))


BAD_BACKUPS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": changed(lambda data: b""),
    "text": changed(lambda data: b"Rex\n" * 1000),
    "cut short": changed(lambda data: data[: len(data) // 2]),
    "damaged": changed(lambda data: data[:4096] + b"\xff" * (len(data) - 4096)),
    "with an invalid pet": changed(
        lambda data: data[:4096] + data[4096:].replace(b"available", b"AVAILABLE")
    ),
    # The user_version is at byte 60 (sqlite.org/fileformat2.html).
    "of a newer version": changed(
        lambda data: data[:63] + bytes([SCHEMA_VERSION + 1]) + data[64:]
    ),
    "of another program": changed(lambda data: data.replace(b"pets", b"cars")),
    "with other columns": with_other_columns,
}


@pytest.mark.parametrize("spoil", BAD_BACKUPS.values(), ids=BAD_BACKUPS)
def test_a_bad_backup_is_refused_while_the_service_continues(
    machine: Machine, spoil: Callable[[Path], object]
) -> None:
    backup = machine.back_up()
    spoil(backup)
    before = content(machine.database.parent)
    refused = machine.deploy("restore", str(backup))
    assert re.match("[1-9].*: Not restored. The service and its pets are as", refused)
    assert content(machine.database.parent) == before
    assert machine.calls() == []
    machine.add("Ada")


# upgrade


def test_an_upgrade_can_be_rolled_back(machine: Machine) -> None:
    def title() -> str:
        return str(machine.request("GET", "/v1/openapi.json").body["info"]["title"])

    first_title = title()
    document = json.loads((machine.origin / "openapi.json").read_text())
    document["info"]["title"] = "Second version"
    (machine.origin / "openapi.json").write_text(json.dumps(document))
    machine.commit()
    pets = machine.pets()
    upgraded = machine.deploy("upgrade")
    assert upgraded.startswith("0: Upgraded to ")
    assert machine.calls() == ["restart petstore"]
    assert title() == "Second version"
    [backup] = re.findall("Backup: ([^ ]+)[.] ", upgraded)
    assert names_in(Path(backup)) == pets
    assert machine.deploy("upgrade").startswith("0: Nothing new. ")
    assert machine.calls() == []
    roll_back = upgraded.partition("To roll back: ")[2].split()
    assert machine.run(*roll_back).returncode == 0
    assert title() == first_title
    assert machine.pets() == pets


def test_a_version_that_cannot_start_is_not_installed(machine: Machine) -> None:
    version = machine.version()
    app = (machine.origin / "app.py").read_text()
    (machine.origin / "app.py").write_text("import a_module_that_is_missing")
    machine.commit()
    refused = machine.deploy("upgrade")
    assert re.match("[1-9]: Not upgraded. The service was not restarted;", refused)
    assert machine.calls() == []
    assert machine.version() == version
    machine.add("Ada")
    (machine.origin / "app.py").write_text(app)
    machine.commit()


# The documents.


@pytest.mark.parametrize("name", ["server.md", "cluster.md"])
def test_every_block_is_valid_shell(name: str) -> None:
    document = (ROOT / "docs" / name).read_text("utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```$", document, re.M | re.S):
        assert run("sh", "-n", "-c", block).stderr == ""
