"""deploy/: backup, restore and upgrade, because a mistake there loses pets.

The scripts run as they are, in a clone of their own, while the service runs. As root,
they let `nobody` be the user of the service. .ci/attack.py lets this user attack.
"""

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from string import Template
from threading import Event

import pytest

from storage import SCHEMA_VERSION
from tests.helpers import KEY, NEW_PET, other_program
from tests.service import ROOT, TIMEOUT, Response, environment, request, run

IS_ROOT = os.geteuid() == 0
USER = "nobody" if IS_ROOT else getpass.getuser()
AS_USER = {"user": USER, "group": "nogroup", "extra_groups": []} if IS_ROOT else {}

# Like systemd with deploy/petstore.service: `start` waits until gunicorn says that it
# is ready, and fails if gunicorn ends instead.
SYSTEMCTL = Template("""#!$python -IS
import os, select, signal, socket, subprocess, sys
os.chdir($root)
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
        env={**$settings, **os.environ, "NOTIFY_SOCKET": name},
        stdout=open("log", "w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        umask=0o077,
        **$as_user,
    )
    print(process.pid, file=open("pid", "w"))
    ready, _, _ = select.select([notify, os.pidfd_open(process.pid)], [], [])
    sys.exit(notify not in ready)
""")


def python_for(user: str) -> str:
    """Return a Python that this user may run: ours may be in a folder of root."""
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3"]
    for python in candidates if IS_ROOT else []:
        if not run("runuser", "-u", user, "--", python, "--version").returncode:
            return python
    return candidates[0]


class Machine:
    """A server in a temporary folder, with a clone of this repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.origin = root / "origin"
        self.clone = root / "clone"
        # The scripts have to quote such paths.
        self.database = root / 'it\'s "data"' / "pets.db"
        self.backups = root / 'it\'s "backups"'
        self.programs = root / "bin"
        for folder in (self.database.parent, self.programs):
            folder.mkdir(parents=True)
        if IS_ROOT:
            shutil.chown(self.database.parent, USER)
        systemctl = SYSTEMCTL.substitute(
            python=sys.executable,
            root=repr(str(root)),
            settings={
                "PETSTORE_API_KEYS": KEY,
                "PETSTORE_DATABASE": str(self.database),
            },
            as_user=AS_USER,
        )
        self.add_program(self.programs / "systemctl", systemctl)
        python = python_for(USER)
        (self.programs / "python3").symlink_to(python)
        ignored = shutil.ignore_patterns(".git", ".venv", "instance", "tests")
        shutil.copytree(ROOT, self.origin, ignore=ignored)
        self.run("git", "init", "--quiet", str(self.origin))
        self.commit()
        self.run("git", "clone", "--quiet", str(self.origin), str(self.clone))
        # Ours may be in a folder that the user of the service may not enter.
        tools = shutil.ignore_patterns("pip*", "pygments*", "setuptools*", "*pytest*")
        packages = root / "packages"
        shutil.copytree(sysconfig.get_path("purelib"), packages, ignore=tools)
        for name, command in (
            ("gunicorn", f"PYTHONPATH={packages} exec {python} -m gunicorn"),
            ("pip", f"exec {sys.executable} -m pip"),
        ):
            path = self.clone / ".venv" / "bin" / name
            self.add_program(path, f'#!/bin/sh\n{command} "$@"\n')

    def add_program(self, path: Path, text: str) -> None:
        """Write a program."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a program. What it prints, errors included, is in `stdout`."""
        settings = {
            "PATH": f"{self.programs}{os.pathsep}{environment()['PATH']}",
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
        settings = {
            "PETSTORE_DATABASE": str(self.database),
            "PETSTORE_BACKUPS": str(self.backups),
            "PETSTORE_USER": USER,
            **settings,
        }
        process = self.run(command, *arguments, **settings)
        return f"{process.returncode}: {process.stdout.splitlines()[-1]}"

    def paste(self, line: str, after: str) -> str:
        """Run the command that a last line ends with, in another shell."""
        process = self.run("bash", "-c", line.partition(after)[2])
        assert process.returncode == 0, process.stdout
        return process.stdout.splitlines()[-1]

    def back_up(self) -> Path:
        """Make a backup, and return its path."""
        status, _, backup = self.deploy("backup").partition(": Backup: ")
        assert status.startswith("0"), status
        return Path(backup)

    def commit(self, repository: Path | None = None) -> None:
        """Commit what is in a repository, `origin` by default."""
        folder = str(repository or self.origin)
        git = ["git", "-C", folder, "-c", "user.name=A", "-c", "user.email=A"]
        self.run(*git, "add", "--all")
        assert self.run(*git, "commit", "--message", "Change").returncode == 0

    def version(self) -> str:
        """Return the commit of the clone, and `-dirty` if a file differs from it."""
        git = ["git", "-C", str(self.clone)]
        return self.run(*git, "describe", "--always", "--dirty").stdout.strip()

    def start(self) -> None:
        """Start the service."""
        process = self.run("systemctl", "start", "petstore")
        assert process.returncode == 0, self.log()

    def kill(self) -> None:
        """Kill every process of the service with SIGKILL."""
        pid = self.root / "pid"
        if pid.exists():
            with suppress(ProcessLookupError):
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
def machine() -> Iterator[Machine]:
    """Return a machine whose service runs before and after each test."""
    with tempfile.TemporaryDirectory() as name:
        # The user of the service must be able to open it.
        Path(name).chmod(0o755)
        machine = Machine(Path(name) / "machine")
        try:
            machine.start()
            machine.add("Rex")
            yield machine
        finally:
            machine.kill()


def names_in(database: Path) -> list[str]:
    """Return the names of the pets in a backup."""
    uri = f"{database.as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
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
    assert backup.stat().st_mode & 0o777 == 0o640


def test_a_backup_removes_its_old_ones_but_never_the_newest_seven(
    machine: Machine,
) -> None:
    def add_old(name: str) -> Path:
        file = machine.backups / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
        seconds = file.stat().st_mtime - 31 * 86400
        os.utime(file, (seconds, seconds))
        return file

    shutil.rmtree(machine.backups, ignore_errors=True)
    machine.backups.mkdir()
    foreign = [
        add_old("pets-before-migration.db"),
        add_old("pets-2020-01-01T000000.db.bak"),
        add_old("more/pets-2020-01-01T000000.db"),
    ]
    own = [add_old(f"pets-2020-01-0{day}T000000.db") for day in range(1, 9)]
    (machine.backups / "lock").touch()
    before = content(machine.backups)
    missing = str(machine.root / "missing.db")
    failed = machine.deploy("backup", PETSTORE_DATABASE=missing)
    assert failed == "1: Not backed up. No older backup was removed."
    assert content(machine.backups) == before
    backup = machine.back_up()
    kept = [*foreign, foreign[2].parent, *own[2:], backup, machine.backups / "lock"]
    assert content(machine.backups).keys() == {str(path) for path in kept}


@pytest.mark.parametrize("kind", ["folder", "pipe", "damaged"])
def test_a_database_that_cannot_be_read_is_not_backed_up(
    machine: Machine, kind: str
) -> None:
    path = machine.database.parent / "other.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(machine.back_up().read_bytes()[:5000])
    before = content(machine.root)
    failed = machine.deploy("backup", PETSTORE_DATABASE=str(path))
    assert failed == "1: Not backed up. No older backup was removed."
    assert content(machine.root).keys() == before.keys()
    path.rmdir() if kind == "folder" else path.unlink()


# restore


def test_a_restore_can_be_undone_even_after_a_crash(machine: Machine) -> None:
    pets = machine.pets()
    backup = machine.back_up()
    machine.add("Tom")
    machine.kill()
    # Tom is only in the write-ahead log.
    assert machine.database.with_name("pets.db-wal").stat().st_size
    other = machine.database.with_name("pets.db.before-cleanup")
    other.touch()
    restored = machine.deploy("restore", str(backup))
    assert restored.startswith("0: Restored. ")
    assert machine.calls() == ["stop petstore", "start petstore"]
    assert machine.pets() == pets
    assert machine.database.stat().st_mode & 0o777 == 0o600
    assert other.exists()
    machine.add("Ada")
    undone = machine.paste(restored, "To undo this: ")
    assert machine.pets() == [*pets, "Tom"]
    [old] = re.findall("The previous files are in (.+)[.] To undo", undone)
    assert names_in(Path(*shlex.split(old), "pets.db")) == [*pets, "Ada"]


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
    backup.write_bytes(b"")
    columns = "id INTEGER PRIMARY KEY, name TEXT, owner TEXT"
    with other_program(backup, f"CREATE TABLE pets ({columns})"):
        pass


def executed(*statements: str) -> Callable[[Path], None]:
    """Return a function that executes statements in a database."""

    def execute(database: Path) -> None:
        with other_program(database, *statements):
            pass

    return execute


def with_check(condition: str) -> Callable[[Path], None]:
    """Return a function that adds a CHECK to the table of a database."""
    check = f"CHECK ({condition} IS NOT NULL)".replace("'", "''")
    update = (
        f"UPDATE sqlite_schema SET sql = replace(sql, 'CHECK (', '{check} CHECK (')"
    )
    return executed("PRAGMA writable_schema = ON", update)


def changed(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return a function that changes the bytes of a backup."""
    return lambda backup: backup.write_bytes(change(backup.read_bytes()))


# The shell sqlite3 has these functions. A check by it would run the command.
PWNED = Path(tempfile.gettempdir(), "petstore-pwned")
HOSTILE = {
    "that runs a command": with_check(f"edit('x', 'id > {PWNED}; true')"),
    "that writes a file": with_check(f"writefile('{PWNED}', 'x')"),
    "that loads a library": with_check("load_extension('/tmp/x.so')"),
}
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
    "with a trigger": executed(
        "CREATE TRIGGER clear AFTER INSERT ON pets BEGIN DELETE FROM pets; END"
    ),
    "with a name that is not UTF-8": executed(
        "UPDATE pets SET name = CAST(x'ff' AS TEXT)"
    ),
    **HOSTILE,
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
    assert not PWNED.exists()
    machine.add("Ada")


def test_a_backup_that_the_service_may_not_read_is_refused(machine: Machine) -> None:
    backup = machine.back_up()
    backup.chmod(0)
    refused = machine.deploy("restore", str(backup))
    assert refused.startswith("1: Not restored. The service and its pets are as")
    assert machine.calls() == []


def test_a_checked_copy_replaces_no_file(machine: Machine) -> None:
    program = str(machine.clone / "deploy" / "checked-copy")
    backup, database = str(machine.back_up()), str(machine.database)
    pets = machine.pets()
    assert machine.run(program, backup, database).returncode == 1
    assert machine.run(program, database, database).returncode == 1
    assert machine.pets() == pets


def test_a_hostile_database_runs_no_command(machine: Machine) -> None:
    backup = machine.back_up()
    machine.run("systemctl", "stop", "petstore")
    for make_hostile in HOSTILE.values():
        make_hostile(machine.database)
    assert machine.deploy("backup").startswith("1: Not backed up. ")
    assert machine.deploy("upgrade", machine.version()).startswith("1: Not upgraded. ")
    assert machine.deploy("restore", str(backup)).startswith("0: Restored. ")
    assert not PWNED.exists()
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
    [backup] = re.findall("Backup: (.+)[.] To roll back", upgraded)
    assert names_in(Path(backup)) == pets
    nothing_new = machine.deploy("upgrade")
    assert nothing_new.startswith("0: Nothing new. ")
    assert machine.calls() == []
    # For example, after the script was killed.
    again = machine.paste(nothing_new, "To install it again: ")
    assert again.startswith("Upgraded to ")
    assert machine.calls() == ["restart petstore"]
    machine.paste(upgraded, "To roll back: ")
    assert title() == first_title
    assert machine.pets() == pets


def test_an_upgrade_keeps_commits_that_only_the_clone_has(machine: Machine) -> None:
    version = machine.version()
    (machine.clone / "README.md").write_text("Ours")
    machine.commit(machine.clone)
    ours = machine.version()
    (machine.origin / "README.md").write_text("Theirs")
    machine.commit()
    for arguments in ([], [version]):
        refused = machine.deploy("upgrade", *arguments)
        assert refused.startswith("1: Not upgraded. The service was not restarted;")
        assert machine.version() == ours
        assert machine.calls() == []
    machine.run("git", "-C", str(machine.clone), "tag", "ours")
    assert machine.deploy("upgrade").startswith("0: Upgraded to ")


def test_a_version_is_named_that_could_not_be_installed_again(machine: Machine) -> None:
    pip = machine.clone / ".venv" / "bin" / "pip"
    works = pip.read_text()
    pip.write_text("#!/bin/false\n")
    refused = machine.deploy("upgrade", machine.version())
    assert re.match("1: Not upgraded. .* but .venv may not be as it was: run ", refused)
    pip.write_text(works)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("app.py", "import a_module_that_is_missing"),
        # It starts, but refuses the pets that are there.
        (
            "storage.py",
            (ROOT / "storage.py").read_text() + "\n\nSCHEMA_VERSION += 1\n",
        ),
    ],
)
def test_a_version_that_cannot_serve_the_pets_is_not_installed(
    machine: Machine, name: str, text: str
) -> None:
    version = machine.version()
    before = (machine.origin / name).read_text()
    (machine.origin / name).write_text(text)
    machine.commit()
    refused = machine.deploy("upgrade")
    assert re.match("[1-9]: Not upgraded. The service was not restarted;", refused)
    assert machine.calls() == []
    assert machine.version() == version
    machine.add("Ada")
    (machine.origin / name).write_text(before)
    machine.commit()


# The documents.


@pytest.mark.parametrize("name", ["server.md", "cluster.md"])
def test_every_block_is_valid_shell(name: str) -> None:
    document = (ROOT / "docs" / name).read_text("utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```$", document, re.M | re.S):
        assert run("sh", "-n", "-c", block).stderr == ""
