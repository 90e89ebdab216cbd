"""docs/server.md: its backup and its restore, because a mistake there loses pets."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import SCHEMA_VERSION
from tests.helpers import NEW_PET, add_pet, all_pets, create_client
from tests.service import ROOT, run, serving

DOCUMENT = (ROOT / "docs" / "server.md").read_text("utf-8")
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


def blocks(title: str) -> list[str]:
    """Return the shell blocks below a heading, with the lines of their heredocs."""
    section = DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)


WRITE_SCRIPT, BACK_UP, _ = blocks("Backup")
[RESTORE] = blocks("Restore")


def test_every_block_is_valid_shell() -> None:
    for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, re.M | re.S):
        assert run("sh", "-n", "-c", block).stderr == ""


class Machine:
    """A server whose root folder is a temporary folder, with the pet Rex.

    `systemctl` and `chown` only log that they were called.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backups = root / "var/backups/petstore"
        self.database = root / "var/lib/petstore/pets.db"
        self.programs = root / "bin"
        for folder in (self.database.parent, root / "usr/local/sbin", self.programs):
            folder.mkdir(parents=True)
        self.add_program("sqlite3", SQLITE3)
        for name in ("chown", "systemctl"):
            self.add_program(name, f"#!/bin/sh\necho {name} $* >> {root}/calls")
        self.add("Rex")
        assert self.run(WRITE_SCRIPT).returncode == 0
        self.back_up("2026-11-20T120000")

    def add_program(self, name: str, text: str) -> None:
        """Add a program that the blocks find before the installed one."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def run(self, block: str, now: str = "") -> subprocess.CompletedProcess[str]:
        """Run a block of the document below the root folder. `date` prints `now`."""
        self.add_program("date", f"#!/bin/sh\necho {now}")
        script = re.sub(r"(?=/(usr/local|var)/)", str(self.root), block)
        programs = str(Path(sys.executable).parent)
        script = script.replace("/srv/petstore/.venv/bin", programs)
        script = script.replace("/srv/petstore", str(ROOT))
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return run("sh", "-c", script, folder=self.root, PATH=path)

    def back_up(self, now: str) -> None:
        assert self.run(BACK_UP, now).returncode == 0

    def restore(
        self, backup: str = "/var/backups/petstore/pets-2026-11-20T120000.db"
    ) -> subprocess.CompletedProcess[str]:
        """Restore a backup. The old files are then in old-1, or old-2."""
        number = len(list(self.database.parent.glob("old-*"))) + 1
        return self.run(re.sub("^backup=.*", f"backup={backup}", RESTORE), str(number))

    def calls(self) -> list[str]:
        """Return the calls of systemctl and chown, in order."""
        log = self.root / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def add(self, name: str) -> None:
        add_pet(create_client(self.database), name=name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def pets_in(database: Path) -> list[str]:
    """Return the names of the pets in a database."""
    return [pet["name"] for pet in all_pets(create_client(database))]


def content(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_a_backup_has_the_pets_of_the_running_service(machine: Machine) -> None:
    client = create_client(machine.database)
    add_pet(client, name="Tom")
    machine.back_up("2026-11-20T120100")
    first, second = sorted(machine.backups.iterdir())
    assert pets_in(first) == ["Rex"]
    assert second.stat().st_mode & 0o777 == 0o600
    assert pets_in(second) == ["Rex", "Tom"]
    assert client.get("/healthz").status_code == 200


def test_old_backups_are_removed_but_not_by_a_backup_that_fails(
    machine: Machine,
) -> None:
    [days] = re.findall(r"more than (\d+) days old", DOCUMENT)
    for name, age in (("pets-older.db", 1), ("pets-younger.db", -1)):
        file = machine.backups / name
        file.touch()
        seconds = file.stat().st_mtime - (int(days) + age) * 86400
        os.utime(file, (seconds, seconds))
    before = content(machine.backups)
    moved = machine.database.rename(machine.root / "moved.db")
    machine.run(BACK_UP)
    assert content(machine.backups) == before
    moved.rename(machine.database)
    machine.back_up("2026-11-20T120000")
    assert content(machine.backups).keys() == before.keys() - {"pets-older.db"}


def test_a_restore_replaces_the_pets_and_can_be_undone(machine: Machine) -> None:
    machine.add("Tom")
    assert machine.restore().stdout == "Restored.\n"
    chown, *systemctl = machine.calls()
    assert chown == "chown petstore:petstore new.db"
    assert systemctl == ["systemctl stop petstore", "systemctl start petstore"]
    assert machine.database.stat().st_mode & 0o777 == 0o600
    assert pets_in(machine.database) == ["Rex"]
    machine.add("Ada")
    machine.restore("/var/lib/petstore/old-1/pets.db")
    assert pets_in(machine.database) == ["Rex", "Tom"]
    assert pets_in(machine.database.parent / "old-2" / "pets.db") == ["Rex", "Ada"]


def test_undoing_a_restore_brings_back_what_was_only_in_the_wal(
    machine: Machine,
) -> None:
    with serving(machine.database) as service:
        service.request("POST", "/v1/pets", {**NEW_PET, "name": "Ada"})
        service.kill()
    assert machine.database.with_name("pets.db-wal").stat().st_size
    assert machine.restore().stdout == "Restored.\n"
    assert pets_in(machine.database) == ["Rex"]
    machine.restore("/var/lib/petstore/old-1/pets.db")
    assert pets_in(machine.database) == ["Rex", "Ada"]


def test_a_missing_database_is_restored(machine: Machine) -> None:
    machine.database.unlink()
    assert machine.restore().stdout == "Restored.\n"
    assert pets_in(machine.database) == ["Rex"]


BAD_BACKUPS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda backup: None,
    "text": lambda backup: b"Rex\n" * 1000,
    "truncated": lambda backup: backup[: len(backup) // 2],
    "empty": lambda backup: b"",
    "damaged": lambda backup: backup[:4096] + b"\xff" * (len(backup) - 4096),
    "with an invalid pet": lambda backup: (
        backup[:4096] + backup[4096:].replace(b"available", b"AVAILABLE")
    ),
    # The user_version is at byte 60 (sqlite.org/fileformat2.html).
    "of another version": lambda backup: (
        backup[:63] + bytes([SCHEMA_VERSION + 1]) + backup[64:]
    ),
    "of another program": lambda backup: backup.replace(b"pets", b"cars"),
}


@pytest.mark.parametrize("spoil", BAD_BACKUPS.values(), ids=BAD_BACKUPS)
def test_a_bad_backup_is_refused_before_the_service_is_stopped(
    machine: Machine, spoil: Callable[[bytes], bytes | None]
) -> None:
    [backup] = machine.backups.iterdir()
    bad = spoil(backup.read_bytes())
    backup.unlink()
    if bad is not None:
        backup.write_bytes(bad)
    before = content(machine.database.parent)
    assert machine.restore().returncode != 0
    assert machine.calls() == []
    after = content(machine.database.parent)
    after.pop("new.db", None)
    assert after == before
