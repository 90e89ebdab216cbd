"""deploy/: installations, backups, restores, and the units."""

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from shutil import copytree, which
from subprocess import CompletedProcess

import pytest

from sqlite_file import SqliteFile
from tests.helpers import is_in_wal_mode, open_store, other_program
from tests.service import (
    ROOT,
    TIMEOUT,
    add_pets,
    run,
    serving,
    start_writers,
)

BACKUP = str(ROOT / "deploy" / "backup")
# What the scripts run as root on a server. Here, they run without root and systemd.
STUBS = {
    "chown": "",
    "systemctl": """
        case $1 in
            show) cat "$0.$3" ;;
            --quiet) test -e "$0.is-active"; exit ;;
            *) echo "$*" >> "$0.log" ;;
        esac""",
    # Like systemd, it obeys WorkingDirectory=.
    "systemd-run": """
        while :; do
            case $1 in
                -p)
                    case $2 in WorkingDirectory=*) cd "${2#*=}" ;; esac
                    shift 2
                    ;;
                -*) shift ;;
                *) exec "$@" ;;
            esac
        done""",
    "sleep": "",
}


@pytest.fixture(autouse=True)
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the scripts find the stubs first."""
    folder = tmp_path / "stubs"
    folder.mkdir()
    for name, script in STUBS.items():
        write_stub(folder / name, script)
    (folder / "systemctl.log").touch()
    for name, text in {
        "MainPID": "0\n",  # As for a service that is stopped.
        "Environment": "Environment=PETSTORE_DATABASE=/var/lib/petstore/pets.db\n",
    }.items():
        (folder / f"systemctl.{name}").write_text(text)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def write_stub(file: Path, script: str) -> None:
    """Write a shell script that can be run."""
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def copy_deploy(copies: Path, root: Path) -> None:
    """Copy deploy/. The scripts use the folders etc, srv and var of this root."""
    copytree(ROOT / "deploy", copies)
    for script in copies.iterdir():
        if not script.suffix:
            text = script.read_text()
            script.write_text(re.sub("/(etc|srv|var)/", rf"{root}/\1/", text))


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """Return a copy of deploy/ whose scripts take the folder of the test for /."""
    for name in ("etc/nginx/conf.d", "srv/petstore", "var/lib/petstore"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc" / "petstore.env").write_text("PETSTORE_API_KEYS=k\n")
    copy_deploy(tmp_path / "deploy", tmp_path)
    return tmp_path / "deploy"


@pytest.fixture
def restore(deploy: Path) -> str:
    """Return the path of the script."""
    return str(deploy / "restore")


def systemctl_log(stubs: Path) -> list[str]:
    """Return the arguments of each systemctl that has changed something."""
    return (stubs / "systemctl.log").read_text().splitlines()


RESTARTED = [
    "stop petstore petstore.socket",
    "stop petstore-restore*",
    "start petstore",
]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during a `with` block, as another script does."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def names_in(database: Path) -> list[str]:
    """Return the names of the pets in a file."""
    with other_program(database) as program:
        rows = program.execute("SELECT name FROM pets ORDER BY id").fetchall()
    return [name for (name,) in rows]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file in a folder. (SQLite makes pets.db-shm again.)"""
    return {
        file.name: b"" if file.name.endswith("-shm") else file.read_bytes()
        for file in folder.iterdir()
        if file.is_file()
    }


def create_used(folder: Path) -> Path:
    """Create a file as a killed service leaves it: the pet Tom is in the WAL.

    His id is 2000, and pet 2500 was deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = open_store(folder / "pets.db", "Tom")
    store.write("UPDATE pets SET id = 2000", {})
    store.write("UPDATE sqlite_sequence SET seq = 2500", {})
    files = {file: file.read_bytes() for file in folder.iterdir()}
    store.close()
    for file, data in files.items():
        file.write_bytes(data)
    return folder / "pets.db"


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Return the path of a file as a killed service leaves it, with the pet Tom."""
    return create_used(tmp_path / "var" / "lib" / "petstore")


@pytest.fixture
def rex(tmp_path: Path) -> Path:
    """Return the path of a backup with 1,000 pets called Rex."""
    backup = tmp_path / "rex.db"
    open_store(backup, "Rex").close()
    with other_program(backup, "PRAGMA journal_mode = DELETE", "BEGIN") as program:
        program.executemany(
            "INSERT INTO pets VALUES (?, 'Rex', 1, 'sold')",
            [(pet_id,) for pet_id in range(2, 1001)],
        )
        program.commit()
    return backup


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """Return an empty folder."""
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


def test_a_backup_has_every_pet_that_was_acknowledged_before(
    database: Path, backups: Path
) -> None:
    names: list[str] = []

    def back_up() -> None:
        acknowledged = set(names)
        ended = run(BACKUP, str(database), str(backups))
        [file] = backups.iterdir()
        stored = names_in(file)
        assert acknowledged <= set(stored)
        line = f"Copied {database} to {file}: {len(stored)} pets.\n"
        assert (ended.stdout, ended.stderr) == (line, "")
        assert not is_in_wal_mode(file)
        assert file.stat().st_mode & 0o077 == 0  # Only for its user.
        file.unlink()

    with ThreadPoolExecutor(8) as threads, serving(database) as service:
        start_writers(threads, service, names, 10)
        for _ in range(5):
            back_up()
        service.kill()
    # Now the newest pets are only in the WAL.
    back_up()


def test_the_thirty_backups_that_were_written_last_are_kept(
    rex: Path, backups: Path
) -> None:
    others = ["pets-before-migration.db", "pets-2020-01-01T000000 copy.db"]
    others.append("unfinished.db.keep")
    old = [f"pets-2026-01-{day:02}T000000.db" for day in range(1, 32)]
    # This one was copied back from elsewhere.
    returned = "pets-2020-01-01T000000.db"
    last = 0
    for name in [*others, *old, returned]:
        file = backups / name
        file.touch()
        while file.stat().st_ctime_ns <= last:
            os.utime(file, (0, 0))  # This sets the ctime to now.
        last = file.stat().st_ctime_ns
    assert run(BACKUP, "missing.db", str(backups)).returncode != 0
    assert {*contents(backups)} == {*others, *old, returned}
    assert run(BACKUP, str(rex), str(backups)).returncode == 0
    [new] = {*contents(backups)} - {*others, *old, returned}
    assert re.fullmatch(r"pets-\d{4}-\d\d-\d\dT\d{6}\.db", new)
    assert {*contents(backups)} == {*others, *old[3:], returned, new}


def test_a_new_backup_stays_if_the_clock_was_ahead(
    rex: Path, backups: Path, stubs: Path
) -> None:
    for day in range(1, 32):
        (backups / f"pets-2026-01-{day:02}T000000.db").touch()
    # The others seem to be newer.
    write_stub(stubs / "ls", f'exec {which("ls")} -r "$@"')
    copied = run(BACKUP, str(rex), str(backups)).stdout
    [new] = re.findall(f"{backups}/(.*): 1000 pets", copied)
    assert (backups / new).exists()
    assert len(contents(backups)) == 30


def test_one_backup_runs_at_a_time(rex: Path, backups: Path) -> None:
    with locked(backups):
        ended = run(BACKUP, str(rex), str(backups))
    assert (ended.returncode, ended.stderr) == (1, "Another backup runs.\n")
    assert contents(backups) == {}


def cut_short(data: bytes) -> bytes:
    """Return the first half of a file."""
    return data[: len(data) // 2]


def damage_a_page(data: bytes) -> bytes:
    """Return a file whose fourth page is not one of SQLite."""
    return data[: 3 * 4096] + b"\xff" * 4096 + data[4 * 4096 :]


def lose_half_of_the_pages(data: bytes) -> bytes:
    """Return a file whose table of pets refers to half of its pages only.

    Page 2 is the root of the table. Its fifth byte is the number of the pages that it
    refers to (sqlite.org/fileformat2.html, "B-tree Pages").
    """
    position = 4096 + 4
    half = bytes([data[position] // 2])
    return data[:position] + half + data[position + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "text": lambda data: b"Rex\n" * 1000,
    "cut short": cut_short,
    "another program": lambda data: data.replace(b"pets", b"cars"),
    "damaged page": damage_a_page,
    "lost pages": lose_half_of_the_pages,
}


@pytest.mark.parametrize("damage", ["missing", *DAMAGE])
def test_a_bad_file_is_refused_and_nothing_changes(
    rex: Path, used: Path, backups: Path, stubs: Path, restore: str, damage: str
) -> None:
    if damage == "missing":
        rex.unlink()
    else:
        rex.write_bytes(DAMAGE[damage](rex.read_bytes()))
    before = contents(used.parent)
    for command in ([BACKUP, str(rex), str(backups)], [restore, str(rex)]):
        ended = run(*command)
        assert ended.returncode != 0
        assert ended.stderr
    assert contents(used.parent) == before
    assert [*backups.iterdir(), *used.parent.glob("old-*")] == []
    # The running service may have the only copy of the pets.
    assert systemctl_log(stubs) == []


def full(blocks: int) -> list[str]:
    """Return a command before which no file may have more blocks of 512 bytes."""
    return ["sh", "-c", f'trap "" XFSZ; ulimit -f {blocks}; exec "$@"', "sh"]


@pytest.mark.parametrize("script", ["backup", "restore"])
def test_nothing_changes_if_the_disk_is_full(
    rex: Path, used: Path, stubs: Path, deploy: Path, script: str
) -> None:
    before = contents(used.parent)
    command = [str(deploy / script), str(rex)]
    if script == "backup":
        command.append(str(used.parent))
    assert "I/O error" in run(*full(8), *command).stderr
    assert contents(used.parent) == before
    assert systemctl_log(stubs) == []


@pytest.mark.parametrize("damage", ["", "missing", "empty", "text"])
def test_a_restore_keeps_all_previous_files_and_can_be_undone(
    rex: Path, used: Path, stubs: Path, restore: str, damage: str
) -> None:
    Path(f"{used}-journal").touch()
    # What an operator keeps here.
    names = ("restored.db.old", "unfinished.db.old", "pets.db-june")
    others = {used.with_name(name) for name in names}
    for file in others:
        file.mkdir()
    if damage == "missing":
        used.unlink()
    elif damage:
        used.write_bytes(DAMAGE[damage](b""))
    previous = contents(used.parent)
    ended = run(restore, str(rex))
    [old] = used.parent.glob("old-*")
    said = [f"{rex} has 1000 pets, with ids up to 1000.", f"{used} was replaced."]
    said.append(f"The previous files are in {old}")
    lines = ended.stdout.splitlines()
    assert lines[:3] == said
    assert ("INSERT OR IGNORE" in ended.stdout) == (damage in {"", "text"})
    warning = f"{used} is damaged: new pets may get ids that its pets have.\n"
    assert (warning in ended.stderr) == (damage == "text")
    warning = f"{used} is missing: new pets may get ids of pets that the backup"
    assert (warning in ended.stderr) == (damage in {"missing", "empty"})
    assert systemctl_log(stubs) == RESTARTED
    assert contents(old) == previous
    assert {*used.parent.iterdir()} == {used, old, *others}
    assert set(names_in(used)) == {"Rex"}
    undone = run(restore, str(old / "pets.db"))
    assert (undone.returncode == 0) == (not damage)
    assert set(names_in(used)) == ({"Rex"} if damage else {"Tom"})


def add_pet(database: Path, name: str) -> None:
    """Add a pet as the service does."""
    open_store(database, name).close()


def last_id(database: Path) -> int:
    """Return the largest id of a pet."""
    with other_program(database) as program:
        return int(program.execute("SELECT max(id) FROM pets").fetchone()[0])


@pytest.mark.parametrize("backup", ["rex", "empty"])
def test_the_pets_that_a_restore_has_removed_can_be_added_again(
    rex: Path, used: Path, restore: str, backup: str
) -> None:
    # Another program's table, which has last ids, too.
    other = "CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT)"
    with other_program(used, other, "INSERT INTO other VALUES (9)"):
        pass
    ended = run(restore, str(rex) if backup == "rex" else "empty")
    add_pet(used, "Kim")
    assert last_id(used) == 2501
    command = ended.stdout.splitlines()[-1]
    assert [run("sh", "-c", command).stdout for _ in range(2)] == ["1\n", "0\n"]
    assert names_in(used)[-2:] == ["Tom", "Kim"]


@pytest.mark.parametrize("name", ["restored.db", "unfinished.db"])
def test_a_backup_with_the_name_of_a_copy_is_refused(
    rex: Path, used: Path, restore: str, name: str
) -> None:
    backup = rex.rename(used.with_name(name))
    before = contents(used.parent)
    ended = run(restore, str(backup))
    assert ended.returncode != 0
    assert ended.stderr.startswith(f"Rename {backup} first.\n")
    assert contents(used.parent) == before


def test_the_settings_of_the_shell_of_sqlite_change_nothing(
    rex: Path, used: Path, backups: Path, stubs: Path, restore: str
) -> None:
    # As with `.headers on` in ~/.sqliterc. (sqlite3 looks for it in root's own folder.)
    write_stub(
        stubs / "sqlite3",
        f"""case $1 in -init) ;; *) set -- -cmd '.headers on' "$@" ;; esac
        exec {which("sqlite3")} "$@\"""",
    )
    for command in ([BACKUP, str(rex), str(backups)], [restore, str(rex)]):
        ended = run(*command)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert re.search("(: | has )1000 pets", ended.stdout)


def test_a_backup_without_pets_is_not_restored(
    tmp_path: Path, used: Path, restore: str
) -> None:
    SqliteFile(str(tmp_path / "empty.db")).close()
    before = contents(used.parent)
    ended = run(restore, str(tmp_path / "empty.db"))
    assert f"{tmp_path}/empty.db has no pets.\n" in ended.stderr
    assert contents(used.parent) == before


@pytest.mark.parametrize("missing", [False, True], ids=["pets", "no file"])
def test_an_empty_store_keeps_the_previous_files(
    used: Path, restore: str, missing: bool
) -> None:
    if missing:
        for file in used.parent.iterdir():
            file.unlink()
    previous = contents(used.parent)
    assert run(restore, "empty").returncode == 0
    assert [contents(old) for old in used.parent.glob("old-*")] == (
        [previous] if previous else []
    )
    add_pet(used, "first")  # The service accepts the file.
    assert names_in(used) == ["first"]


def test_a_file_that_gets_no_second_name_is_moved(
    rex: Path, used: Path, stubs: Path, restore: str
) -> None:
    previous = contents(used.parent)
    write_stub(stubs / "ln", "exit 1")  # As for a file of another user.
    assert run(restore, str(rex)).returncode == 0
    [old] = used.parent.glob("old-*")
    assert contents(old) == previous


@pytest.mark.parametrize("failing", ["mkdir", "sync", "sync, ln"])
def test_nothing_changes_if_the_second_half_of_a_restore_fails(
    rex: Path, used: Path, stubs: Path, restore: str, failing: str
) -> None:
    previous = contents(used.parent)
    # `sync` of the new folder. Without `ln`, the files have been moved there before.
    script = 'case $1 in old-*) exit 1 ;; esac; exec {} "$@"'
    for name in failing.split(", "):
        write_stub(stubs / name, script.format(which(name)))
    if "ln" in failing:
        write_stub(stubs / "ln", "exit 1")
    ended = run(restore, str(rex))
    assert ended.returncode != 0
    assert "Nothing has changed.\n" in ended.stderr
    assert systemctl_log(stubs) == RESTARTED
    assert contents(used.parent) == previous
    assert [*used.parent.glob("old-*")] == []


@pytest.mark.parametrize("reason", ["a lock", "a full disk"])
def test_nothing_changes_if_the_last_id_is_not_known(
    rex: Path, used: Path, restore: str, reason: str
) -> None:
    copy, swap = ([restore, str(rex), str(used), half] for half in ("copy", "swap"))
    before = contents(used.parent)
    assert run(*copy).returncode == 0
    if reason == "a lock":
        lock = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN IMMEDIATE")
        with other_program(used, *lock):
            ended = run(*swap)
        assert "pets.db cannot be read, is locked, or the disk is full." in ended.stderr
    else:
        ended = run(*full(0), *swap)
        assert contents(used.parent) == before
    assert ended.returncode != 0
    assert ended.stderr.endswith("Nothing has changed.\n")
    assert [*used.parent.glob("old-*"), *used.parent.glob("restored*")] == []
    assert names_in(used) == ["Tom"]
    assert [run(*half).returncode for half in (copy, swap)] == [0, 0]
    add_pet(used, "Kim")
    assert last_id(used) == 2501


def test_a_restore_goes_on_after_signals_and_starts_the_service(
    rex: Path, used: Path, stubs: Path, restore: str
) -> None:
    # Sent to the script while it stops the service, and to its second half.
    kill = "kill -HUP $PPID; kill -INT $PPID; kill -TERM $PPID"
    write_stub(
        stubs / "systemctl", STUBS["systemctl"] + f"\n[ $1 = show ] || {{ {kill}; }}"
    )
    write_stub(stubs / "mkdir", f'{kill}; exec {which("mkdir")} "$@"')
    assert run(restore, str(rex)).returncode == 0
    assert systemctl_log(stubs) == RESTARTED
    # Under systemd, the second half is no child of the script.
    for half in ("copy", "swap"):
        assert run(restore, str(rex), str(used), half).returncode == 0
    assert set(names_in(used)) == {"Rex"}


def test_a_restore_fails_if_the_service_does_not_start(
    rex: Path, used: Path, stubs: Path, restore: str
) -> None:
    write_stub(stubs / "systemctl", STUBS["systemctl"] + '\n[ "$1" != start ]')
    assert run(restore, str(rex)).returncode == 1
    assert set(names_in(used)) == {"Rex"}


def test_two_backups_are_not_restored(rex: Path, used: Path, restore: str) -> None:
    for others in ([str(rex)], [str(rex), str(rex)]):
        ended = run(restore, str(rex), *others)  # As if a pattern had matched them.
        assert (ended.returncode, ended.stderr) == (1, "Write one backup.\n")
    assert names_in(used) == ["Tom"]


@pytest.mark.parametrize("failing", ["stop", "start"])
def test_a_restore_succeeds_although_systemctl_fails_once(
    rex: Path, used: Path, stubs: Path, restore: str, failing: str
) -> None:
    # As during `systemctl daemon-reexec`.
    fail = (
        f'[ $1 != {failing} ] || [ -e "$0.failed" ] || {{ touch "$0.failed"; exit 1; }}'
    )
    write_stub(stubs / "systemctl", f"{STUBS['systemctl']}\n{fail}")
    assert run(restore, str(rex)).returncode == 0
    log = systemctl_log(stubs)
    assert [action for action, _ in groupby(log)] == RESTARTED
    assert len(log) == len(RESTARTED) + 1
    assert set(names_in(used)) == {"Rex"}


def test_the_pets_of_a_cluster_are_not_restored(
    rex: Path, used: Path, stubs: Path, deploy: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "etc" / "petstore.env"
    for text, reason in (
        ("RQLITE_NODES=127.0.0.1:4001\n", "The pets are in a cluster."),
        (None, "petstore.env: No such file or directory"),
    ):
        settings.unlink()
        if text:
            settings.write_text(text)
        ended = run(str(deploy / "restore"), str(rex))
        assert ended.returncode != 0
        assert reason in ended.stderr
        settings.touch()
    assert names_in(used) == ["Tom"]
    assert systemctl_log(stubs) == []


def remove(database: Path) -> None:
    """Remove the file."""
    database.unlink()


def replace(database: Path) -> None:
    """Move another store over the file."""
    open_store(database.with_name("other.db"), "Tom").close()
    database.with_name("other.db").rename(database)


def move(database: Path) -> None:
    """Give the file another name."""
    database.rename(database.with_name("moved"))


def move_all(database: Path) -> None:
    """Move the file, its WAL and `pets.db-shm` into another folder."""
    folder = database.with_name("moved")
    folder.mkdir()
    for file in database.parent.glob("pets.db*"):
        file.rename(folder / file.name)


@pytest.mark.parametrize("change", [remove, replace, move, move_all])
def test_a_file_that_is_not_at_its_path_is_rescued_from_the_running_service(
    rex: Path,
    tmp_path: Path,
    stubs: Path,
    deploy: Path,
    change: Callable[[Path], None],
) -> None:
    restore, copies = f"{deploy}/restore", tmp_path / "copies"
    rescue = [f"{deploy}/rescue", str(copies)]
    database = tmp_path / "var" / "lib" / "petstore" / "pets.db"
    copies.mkdir()
    with serving(database) as service:
        (stubs / "systemctl.MainPID").write_text(f"{service.process.pid}\n")
        add_pets(service, 3)
        ended = run(*rescue)
        assert ended.stderr == (
            "The service has no database open that is not at its path.\n"
        )
        change(database)
        # No other file counts as a copy of the open one, whatever its name is.
        (tmp_path / "rescue-xyz").mkdir()
        for backup in (rex, rex.rename(tmp_path / "rescue-xyz" / "pets.db")):
            ended = run(restore, str(backup))
            assert ended.returncode != 0
            assert f"First, run:\n    {rescue[0]} /srv\n" in ended.stderr
        assert systemctl_log(stubs) == []
        for blocks in (8, 64):  # The second one is enough for pets.db, not for the WAL.
            ended = run(*full(blocks), *rescue)
            assert ended.returncode != 0
            assert ended.stderr.endswith(
                "Do not stop the service: it may have the only copy of the pets.\n"
            )
            assert [*copies.iterdir()] == []
        ended = run(*rescue)
        [copy] = copies.glob("*/pets.db")
        assert ended.stdout == (
            f"The copy has 3 pets. Go on with:\n    {restore} '{copy}'\n"
        )
        assert run(restore, str(copy)).returncode == 0
    assert names_in(database) == ["Rex"] * 3
    ended = run(*rescue)  # The service is gone.
    assert (ended.returncode != 0, ended.stdout) == (True, "")


@pytest.mark.parametrize(
    ("failing", "pid", "returncode"),
    [("systemctl", "", 2), ("pgrep", "1", 1), ("pgrep", "0", 0)],
)
def test_nothing_is_restored_unless_rescue_knows_what_the_service_has_open(
    rex: Path,
    used: Path,
    stubs: Path,
    restore: str,
    failing: str,
    pid: str,
    returncode: int,
) -> None:
    (stubs / "systemctl.MainPID").write_text(f"{pid}\n")
    fail_to_show = '[ "$1" != show ] || exit 2'
    write_stub(stubs / failing, "exit 2" if failing == "pgrep" else fail_to_show)
    # With 0, the service is stopped, so there is nothing to look for.
    assert run(restore, str(rex)).returncode == returncode
    assert (names_in(used) == ["Tom"]) == (returncode != 0)


def test_all_refuse_a_folder_of_another_user(
    rex: Path, backups: Path, deploy: Path
) -> None:
    folder = Path("/")
    if os.geteuid() == 0:
        folder = backups
        os.chown(folder, 65_534, -1)
    for command, owner in (
        ([BACKUP, str(rex), str(folder)], f"the user that owns {folder}."),
        (
            [f"{deploy}/restore", str(rex), f"{folder}/x", "copy"],
            f"the user that owns {folder}.",
        ),
        ([f"{deploy}/rescue", str(folder)], "a folder that belongs to"),
    ):
        ended = run(*command)
        assert ended.returncode != 0
        assert owner in ended.stderr
    assert [*backups.iterdir()] == []


# bash reads a file with this line before it runs a script. The line kills the script
# before one of its commands (-T: those of functions, too).
KILL = "set -T; trap '((number-- > 0)) || kill -9 $$' DEBUG"


def run_killed(folder: Path, number: int, *command: str) -> int:
    """Kill a script before its command of this number, if it has so many.

    Return its exit status, which is -9 if it was killed.
    """
    (folder / "kill").write_text(KILL)
    kill = ["env", f"BASH_ENV={folder}/kill", f"number={number}", "bash"]
    return run(*kill, *command).returncode


def test_no_pet_is_lost_if_a_restore_is_killed(
    rex: Path, tmp_path: Path, restore: str
) -> None:
    states: list[set[str]] = []
    returncode = -9
    while returncode == -9:
        used = create_used(tmp_path / f"folder {len(states)}")
        copy, swap = ([restore, str(rex), str(used), half] for half in ("copy", "swap"))
        assert run(*copy).returncode == 0
        returncode = run_killed(tmp_path, len(states), *swap)
        # If the file is missing, the service does not start.
        states.append(set(names_in(used)) if used.exists() else {"missing"})
        assert run(*copy).returncode == 0
        ended = run(*swap)
        assert ended.returncode == 0
        assert set(names_in(used)) == {"Rex"}
        old = [names_in(file) for file in used.parent.glob("old-*/pets.db")]
        assert old.count(["Tom"]) == 1
        add_pet(used, "Kim")
        assert last_id(used) == 2501
        # The pets of the newest of the previous files can be added again.
        added = run("sh", "-c", ended.stdout.splitlines()[-1]).stdout
        assert added == ("0\n" if states[-1] == {"Rex"} else "1\n")
    assert [name for name, _ in groupby(states)] == [{"Tom"}, {"missing"}, {"Rex"}]


def test_the_second_names_that_a_killed_restore_has_left_are_removed(
    rex: Path, used: Path, restore: str
) -> None:
    old = used.with_name("old-1")
    old.mkdir()
    for file in used.parent.glob("pets.db*"):
        (old / file.name).hardlink_to(file)
    assert run(restore, str(rex), str(used), "copy").returncode == 0
    assert not old.exists()
    assert names_in(used) == ["Tom"]


def test_a_service_that_was_not_stopped_is_503_until_it_is_restarted(
    rex: Path, tmp_path: Path, restore: str
) -> None:
    database = tmp_path / "var" / "lib" / "petstore" / "pets.db"
    names: list[str] = []
    with ThreadPoolExecutor(8) as threads, serving(database) as service:
        writers = start_writers(threads, service, names, 10)
        run(restore, str(rex))
        assert [writer.result(TIMEOUT) for writer in writers] == [503] * 8
        assert service.request("GET", "/healthz").status == 503
        service.stop()
    assert set(names_in(database)) == {"Rex"}
    [old] = database.parent.glob("old-*/pets.db")
    assert set(names) <= set(names_in(old))


# A proxy. test_nginx.py tests nginx.conf.


@pytest.fixture
def proxy(stubs: Path, deploy: Path) -> str:
    """Return the path of the script. nginx and certbot are stubs."""
    for program in ("certbot", "nginx", "curl"):
        write_stub(stubs / program, "")
    return str(deploy / "proxy")


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Return the folder of nginx's files."""
    return tmp_path / "etc" / "nginx" / "conf.d"


HOST = ("store.example", "admin@store.example")
NGINX_CONF = (ROOT / "deploy" / "nginx.conf").read_text()


def expected_conf(prefix: str = "") -> str:
    """Return what a file for this prefix contains."""
    conf = NGINX_CONF.replace("pets.example", HOST[0]).replace("PREFIX", prefix)
    return conf.replace("petstore;", "petstore/;") if prefix else conf


@pytest.mark.parametrize(
    ("failing", "script", "reloads"),
    [
        ("certbot", "exit 1", 0),
        ("nginx", "exit 1", 1),
        ("curl", "exit 1", 2),
        ("curl", "kill -INT $PPID", 2),  # As Ctrl-C does.
    ],
)
@pytest.mark.parametrize("previous", [None, "# The previous file."])
def test_nginx_goes_on_as_before_if_a_proxy_cannot_be_set_up(
    sites: Path,
    stubs: Path,
    proxy: str,
    failing: str,
    script: str,
    reloads: int,
    previous: str | None,
) -> None:
    before = {"petstore.conf.old": "# A file of the operator."}
    if previous:
        before["petstore.conf"] = previous
    for name, text in before.items():
        (sites / name).write_text(text)
    write_stub(stubs / failing, script)
    assert run(proxy, *HOST, VERSION_CONTROL="numbered").returncode == 1
    left = {file.name: file.read_text() for file in sites.glob("petstore.conf*")}
    # nginx accepts an empty file.
    assert left in (before, {**before, "petstore.conf": previous or ""})
    log = systemctl_log(stubs)
    assert log == ["start nginx", *["reload nginx"] * reloads]


def test_one_proxy_is_set_up_at_a_time(sites: Path, stubs: Path, proxy: str) -> None:
    with locked(sites):
        ended = run(proxy, *HOST)
    assert (ended.returncode, ended.stderr) == (1, "Another proxy is being set up.\n")
    assert systemctl_log(stubs) == []


@pytest.mark.parametrize("prefix", ["", "/store"])
def test_a_proxy_can_be_set_up_again(
    sites: Path, stubs: Path, proxy: str, prefix: str
) -> None:
    if prefix:
        (stubs / "systemctl.Environment").write_text(
            f"Environment=PETSTORE_DATABASE=/x SCRIPT_NAME={prefix}\n"
        )
    for program in ("certbot", "curl"):
        write_stub(stubs / program, f'echo "$*" > {stubs}/{program}.log')
    for _ in range(2):
        assert run(proxy, *HOST).returncode == 0
        [file] = sites.glob("petstore.conf*")
        assert file.read_text() == expected_conf(prefix)
    # The proxy of a company's network would not find this machine.
    asked = f"--noproxy * --connect-to ::127.0.0.1: https://{HOST[0]}{prefix}/healthz\n"
    assert (stubs / "curl.log").read_text().endswith(asked)
    # Otherwise, certbot may choose another name.
    assert f"--cert-name {HOST[0]} " in (stubs / "certbot.log").read_text()


def test_a_proxy_needs_a_host_and_an_address(proxy: str) -> None:
    for arguments in ([], [HOST[0]]):
        ended = run(proxy, *arguments)
        assert ended.returncode != 0
        assert "proxy HOST EMAIL" in ended.stderr


@pytest.mark.parametrize("is_first", [True, False])
def test_a_proxy_that_was_killed_can_be_set_up_or_taken_back(
    sites: Path, stubs: Path, proxy: str, is_first: bool
) -> None:
    conf = sites / "petstore.conf"
    previous = "" if is_first else "# The previous file."
    number = 0
    was_killed = True
    while was_killed:
        for file in sites.glob("petstore.conf*"):
            file.unlink()
        if previous:
            conf.write_text(previous)
        was_killed = run_killed(stubs, number, proxy, *HOST) == -9
        number += 1
        write_stub(stubs / "nginx", "exit 1")
        assert run(proxy, *HOST).returncode == 1
        assert conf.read_text() == (previous if was_killed else expected_conf())
        write_stub(stubs / "nginx", "")
        assert run(proxy, *HOST).returncode == 0
        assert conf.read_text() == expected_conf()
    assert number > 11


@pytest.mark.parametrize("drop_ins", ["", "examples/systemd"])
def test_systemd_accepts_the_units(tmp_path: Path, drop_ins: str) -> None:
    # Links: the path of the clone may have a space, which a unit would have to quote.
    (tmp_path / "clone").symlink_to(ROOT)
    (tmp_path / "venv").symlink_to(sys.prefix)
    folders = [ROOT / "deploy", *([ROOT / drop_ins] if drop_ins else [])]
    for folder in folders:
        copytree(folder, tmp_path, dirs_exist_ok=True)
    units = [file for file in tmp_path.glob("petstore*") if file.is_file()]
    for file in [*units, *tmp_path.glob("petstore*.d/*")]:
        text = file.read_text()
        text = text.replace("/srv/petstore/current/.venv", f"{tmp_path}/venv")
        file.write_text(text.replace("/srv/petstore/current", f"{tmp_path}/clone"))
    ended = run("systemd-analyze", "verify", *map(str, units))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_backup_of_a_cluster_asks_the_first_node(
    tmp_path: Path, stubs: Path, rex: Path, backups: Path
) -> None:
    write_stub(stubs / "curl", f'echo "$2" > {stubs}/url && cp "{rex}" "$4"')
    (tmp_path / "clone").symlink_to(ROOT)
    folder = ROOT / "examples" / "systemd" / "petstore-backup.service.d"
    [command] = re.findall(
        "^ExecStart=(.+)$", (folder / "rqlite.conf").read_text(), re.M
    )
    for old, new in {
        "$$": "$",  # As systemd does.
        "%%": "%",
        "/tmp/": f"{tmp_path}/",
        "/srv/petstore/current": f"{tmp_path}/clone",
        "/var/backups/petstore": str(backups),
    }.items():
        command = command.replace(old, new)
    ended = run("sh", "-c", command, RQLITE_NODES="127.0.0.1:4001,b:1,c:1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(contents(backups)) == 1
    assert (stubs / "url").read_text() == "http://127.0.0.1:4001/db/backup?vacuum\n"


# Installations. An environment of Python is a folder with three stubs.


ENVIRONMENT = """
    folder=$(echo "$*" | sed 's/.*-m venv //')
    mkdir -p "$folder/bin"
    cp {stubs}/python {stubs}/gunicorn "$folder/bin"
"""
# As pip, it fails if a requirement is missing. It notes what it has installed.
PYTHON = """
    for file; do :; done
    ! grep missing "$file" || exit 1
    cp "$file" "${0%/bin/python}/installed"
"""
# It runs in the folder of a release, and notes that it was checked.
GUNICORN = """
    test -s "$PETSTORE_DATABASE" && test ! -e does-not-start && touch .venv/checked
"""
CURL = """
    test ! -e {folder}/srv/petstore/current/does-not-answer
"""
MAKE_BACKUP = """
    cd {backups}
    test "$*" != "start petstore-backup" || echo A backup. > "pets-$(ls | wc -l).db"
"""


class Server:
    """A folder that its deploy/install takes for the root of a server."""

    def __init__(self, folder: Path, stubs: Path) -> None:
        self.folder = folder
        self.stubs = stubs
        self.petstore = folder / "srv" / "petstore"
        self.keys = folder / "etc" / "petstore.env"
        self.database = folder / "var" / "lib" / "petstore" / "pets.db"
        self.remote = folder / "remote"
        backups = folder / "var" / "backups" / "petstore"
        for new in ("etc/systemd/system", "srv", "var/lib", "var/tmp", backups):
            (folder / new).mkdir(parents=True)
        for name, script in {
            "make-environment": ENVIRONMENT.replace("{stubs}", str(stubs)),
            "python": PYTHON,
            "gunicorn": GUNICORN,
            "curl": CURL.replace("{folder}", str(folder)),
            "id": "",
            "install": 'test "$1" = -d',
            "systemctl": STUBS["systemctl"]
            + MAKE_BACKUP.replace("{backups}", str(backups)),
        }.items():
            write_stub(stubs / name, script)
        copy_deploy(self.remote / "deploy", folder)
        install = self.remote / "deploy" / "install"
        python, stub = "/usr/bin/python3 ", f"{stubs}/make-environment "
        assert python in install.read_text()
        install.write_text(install.read_text().replace(python, stub))
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Developer")
        self.git("config", "user.email", "developer@git.example")
        self.first = self.commit(**{"requirements.txt": "flask==1"})
        run("git", "clone", "-q", str(self.remote), str(self.petstore / "repository"))

    def git(self, *arguments: str) -> str:
        """Run git in the remote repository, and return what it prints."""
        ended = run("git", *arguments, folder=self.remote)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def commit(self, *files: str, **contents: str) -> str:
        """Commit files, empty or with contents. Return the first digits of its hash."""
        for name in ("does-not-start", "does-not-answer"):
            (self.remote / name).unlink(missing_ok=True)
        for name, text in {**dict.fromkeys(files, ""), **contents}.items():
            (self.remote / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "Change")
        return self.git("rev-parse", "--short=12", "HEAD").strip()

    def install(self, *commit: str, by: str = "repository") -> CompletedProcess[str]:
        """Install a commit, or the newest one, by the script in a folder."""
        return run(f"{self.petstore}/{by}/deploy/install", *commit)

    def running(self) -> str:
        """Return the commit that runs."""
        return os.readlink(self.petstore / "current").partition("-")[2]

    def restarts(self) -> int:
        """Return how often the service was restarted."""
        return systemctl_log(self.stubs).count("restart petstore")

    def backups(self) -> int:
        """Return how many backups were made."""
        return systemctl_log(self.stubs).count("start petstore-backup")

    def releases(self) -> set[str]:
        """Return the names of the releases."""
        return {folder.name for folder in self.petstore.glob("releases/*")}


@pytest.fixture
def server(tmp_path: Path, stubs: Path) -> Server:
    """Return a server with a clone. Nothing is installed."""
    return Server(tmp_path, stubs)


def test_an_installation_keeps_the_keys_and_the_pets(server: Server) -> None:
    server.petstore.chmod(0o700)  # As after `umask 077`.
    ended = server.install()
    assert (ended.returncode, ended.stderr) == (0, "")
    last = f"The service runs releases/1-{server.first}, and answers."
    assert ended.stdout.splitlines()[-1] == last
    assert server.petstore.stat().st_mode & 0o777 == 0o755
    units = server.folder / "etc" / "systemd" / "system"
    assert contents(units) == {
        file.name: file.read_bytes() for file in (ROOT / "deploy").glob("petstore*")
    }
    keys, folder = server.keys, server.database.parent
    assert re.fullmatch(r"PETSTORE_API_KEYS=[\w-]{43}\n", keys.read_text())
    assert [keys.stat().st_mode & 0o77, folder.stat().st_mode & 0o77] == [0, 0]
    add_pet(server.database, "Rex")
    before = contents(folder), keys.read_text()
    assert server.install().returncode == 0
    assert (contents(folder), keys.read_text()) == before
    server.database.unlink()  # Its pets are missing.
    keys.unlink()
    restarts = server.restarts()
    ended = server.install()
    assert ended.returncode == 1
    assert "pets.db is missing or empty." in ended.stderr
    assert contents(folder) == {}
    assert server.restarts() == restarts


def test_a_missing_folder_of_pets_is_made_only_the_first_time(server: Server) -> None:
    server.install()
    server.database.unlink()
    server.database.parent.rmdir()
    # Even if the release that runs was removed.
    (server.petstore / "current").unlink()
    (server.petstore / "current").symlink_to("releases/0-0")
    assert server.install().returncode == 1
    assert not server.database.exists()


def test_the_keys_may_be_copied_before_the_first_installation(server: Server) -> None:
    server.keys.write_text("PETSTORE_API_KEYS=k\n")
    assert server.install().returncode == 0
    assert server.keys.read_text() == "PETSTORE_API_KEYS=k\n"
    assert server.database.exists()


def break_requirements(server: Server) -> None:
    server.commit(**{"requirements.txt": "missing"})


def break_start(server: Server) -> None:
    server.commit("does-not-start")


def break_remote(server: Server) -> None:
    server.remote.rename(server.remote.with_name("moved"))


def interrupt(server: Server) -> None:
    server.commit()
    write_stub(server.stubs / "python", "kill -INT $PPID")  # As Ctrl-C does.


def end(server: Server) -> None:
    server.commit()
    write_stub(server.stubs / "python", "kill -TERM $PPID")


def fill_disk(server: Server) -> None:
    server.commit()
    write_stub(server.stubs / "tar", "echo 'a: No space\nb: No space' >&2; exit 2")


def make_no_backup(server: Server) -> None:
    server.commit()
    write_stub(server.stubs / "systemctl", STUBS["systemctl"])


def remove_pets(server: Server) -> None:
    server.commit()
    server.database.unlink()


def lock(server: Server) -> None:
    # Another program holds the lock.
    write_stub(server.stubs / "flock", "exit 1")


@pytest.mark.parametrize(
    ("break_something", "reason"),
    [
        (break_requirements, ""),
        (break_start, " does not start.\n"),
        (break_remote, "does not appear to be a git repository"),
        (interrupt, ""),
        (end, ""),
        (fill_disk, "a: No space\nNothing has changed"),
        (make_no_backup, "There is no new backup."),
        (remove_pets, "pets.db is missing or empty. See docs/server.md."),
        (lock, "Another installation or a restore runs."),
    ],
)
def test_an_upgrade_that_fails_changes_nothing(
    server: Server, break_something: Callable[[Server], None], reason: str
) -> None:
    server.install()
    restarts, units = server.restarts(), contents(server.folder / "etc/systemd/system")
    break_something(server)
    for _ in range(2):
        ended = server.install()
        assert ended.returncode != 0
        assert reason in ended.stderr
        assert ended.stderr.endswith("Nothing has changed for the service.\n")
        assert "The service runs" not in ended.stdout
        assert server.running() == server.first
        assert server.restarts() == restarts
        assert server.releases() == {f"1-{server.first}"}
    assert contents(server.folder / "etc/systemd/system") == units
    if break_something in (break_requirements, break_start):
        good = server.commit(**{"requirements.txt": "flask==2"})
        assert server.install().returncode == 0
        assert server.running() == good


@pytest.mark.parametrize("name", ["0123456", "", "..", "9-0123456789ab", "-x"])
def test_an_unknown_commit_is_refused(server: Server, name: str) -> None:
    server.install()
    # What a killed installation has left is never used, but removed.
    (server.petstore / "releases" / "9-0123456789ab").mkdir()
    ended = server.install(name)
    assert ended.returncode != 0
    reason = f"'{name}' is no release that has answered, and no commit of the clone."
    assert reason in ended.stderr
    assert server.running() == server.first
    assert server.releases() == {f"1-{server.first}"}


def test_a_release_that_has_not_answered_is_unknown(server: Server) -> None:
    commit = server.commit("does-not-answer")
    assert server.install().returncode == 1
    assert "is no release that has" in server.install(f"1-{commit}").stderr


def test_a_release_is_tried_with_a_backup_of_the_same_second(server: Server) -> None:
    server.install()
    replace_backup = """
        cd {backups}
        echo A backup. > new && mv --backup=numbered new pets-1.db"""
    folder = server.folder / "var" / "backups" / "petstore"
    with (server.stubs / "systemctl").open("a") as file:
        file.write(replace_backup.replace("{backups}", str(folder)))
    for _ in range(2):
        commit = server.commit()
        assert server.install().returncode == 0
        assert server.running() == commit


def test_the_newest_commit_is_found_after_a_force_push_and_with_another_branch(
    server: Server,
) -> None:
    server.install()
    server.git("commit", "--quiet", "--amend", "--message", "Another one")
    server.git("branch", "--move", "trunk")
    commit = server.commit()
    assert server.install().returncode == 0
    assert server.running() == commit


def test_a_cluster_needs_no_file(server: Server) -> None:
    server.install()
    server.database.unlink()
    assert server.install().returncode != 0
    with server.keys.open("a") as file:
        file.write("RQLITE_NODES=127.0.0.1:4001\n")
    assert server.install().returncode == 0


def test_a_commit_that_does_not_answer_is_replaced_by_the_last_that_did(
    server: Server,
) -> None:
    server.install()
    broken = server.commit("does-not-answer", **{"deploy/petstore.service": "broken"})
    goes_on = f"The service goes on with releases/1-{server.first}.\n"
    for by in ("repository", "current"):
        ended = server.install(by=by)
        assert ended.returncode == 1
        assert ended.stderr == (
            f"releases/2-{broken} cannot be run, or does not answer. "
            f"See: journalctl -u petstore\n{goes_on}"
        )
        assert server.running() == server.first
        assert server.releases() == {f"1-{server.first}"}
    units = contents(server.folder / "etc" / "systemd" / "system")
    assert units["petstore.service"] != b"broken"
    assert server.restarts() == 5
    # As after a crash in between.
    (server.petstore / "current").unlink()
    (server.petstore / "current").symlink_to("releases/2-0123456")
    server.commit("does-not-start")
    ended = server.install()
    assert "The service goes back to" in ended.stderr
    assert (server.running(), server.restarts()) == (server.first, 6)
    # systemctl fails twice, as during `systemctl daemon-reexec`.
    fail = f"""
        test "$1" != restart || test $(ls {server.folder}/failed | wc -l) = 2 ||
            {{ mktemp -p {server.folder}/failed; exit 1; }}"""
    (server.folder / "failed").mkdir()
    with (server.stubs / "systemctl").open("a") as file:
        file.write(fail)
    server.commit()
    ended = server.install()
    assert (ended.returncode, ended.stderr.endswith(goes_on)) == (1, True)
    assert server.running() == server.first


def test_an_upgrade_goes_on_after_signals_once_it_restarts_the_service(
    server: Server,
) -> None:
    server.install()
    commit = server.commit()
    kill = "kill -HUP $PPID; kill -INT $PPID; kill -TERM $PPID"
    write_stub(server.stubs / "curl", kill)
    assert server.install().returncode == 0
    assert server.running() == commit


def test_one_can_go_back_to_the_five_newest_releases(server: Server) -> None:
    server.install()
    ways = []
    commits = [server.first]
    for number in range(2, 8):
        files = {"requirements.txt": f"flask=={number}"}
        if number == 7:
            files["deploy/nginx.conf"] = "# new"
        commits.append(server.commit(**files))
        ended = server.install(by="current")
        assert ("Set up the proxy again." in ended.stdout) == (number == 7)
        ways.append(ended.stdout.splitlines()[-1])
    names = [f"{number}-{commit}" for number, commit in enumerate(commits, 1)]
    assert server.releases() == {*names[-5:]}
    # Without the network, and without the clone.
    server.remote.rename(server.remote.with_name("moved"))
    write_stub(server.stubs / "python", "exit 1")
    clone = server.petstore / "repository"
    clone.rename(clone.with_name("elsewhere"))
    backups = server.backups()
    for way, commit in reversed([*zip(ways, commits, strict=False)][-4:]):
        assert run("sh", "-c", way).returncode == 0
        assert server.running() == commit
        requirements = (server.petstore / "current/.venv/installed").read_text()
        assert requirements == f"flask=={commits.index(commit) + 1}"
    assert server.install(f"{names[-1]}/", by="current").returncode == 0
    assert server.releases() == {*names[-5:]}
    assert server.backups() == backups
    assert server.install(names[1], by="current").returncode != 0  # It is gone.
    assert server.running() == commits[-1]


def test_a_release_that_was_removed_in_part_is_unknown(server: Server) -> None:
    for _ in range(6):
        server.commit()
        assert server.install().returncode == 0
    oldest = min(server.releases())
    write_stub(server.stubs / "rm", f'[ "$1" != -r ] && exec {which("rm")} "$@"')
    server.commit()
    assert server.install().returncode != 0
    assert oldest in server.releases()
    (server.stubs / "rm").unlink()
    assert "is no release" in server.install(oldest).stderr


def test_the_files_of_an_operator_stay(server: Server) -> None:
    server.install()
    names = ["notes", "202611280930/notes", "repository/notes"]
    names += [
        "petstore-old/deploy/install",
        "next",
        "releases/x/answered",
        "releases/2026-11/notes",
        "releases/1-x/notes",
    ]
    files = [server.petstore / name for name in names]
    files.append(server.petstore / "releases" / f"1-{server.first}" / "notes")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("My notes.")
    (server.petstore / "repository" / "requirements.txt").write_text("missing")
    for _ in range(4):
        commit = server.commit()
        assert server.install().returncode == 0
        assert server.running() == commit
    assert all(file.read_text() == "My notes." for file in files)


def test_install_current_makes_a_new_release_of_the_same_commit(server: Server) -> None:
    server.install()
    before = server.petstore / "releases" / f"1-{server.first}" / ".venv"
    write_stub(before / "bin" / "python", "exit 1")  # As after an upgrade of Debian.
    files = contents(before / "bin")
    server.commit("does-not-start")  # The newest commit is of no use.
    assert server.install("current", by="current").returncode == 0
    assert os.readlink(server.petstore / "current") == f"releases/2-{server.first}"
    assert (server.petstore / "current" / ".venv" / "installed").exists()
    assert contents(before / "bin") == files


@pytest.mark.parametrize("broken", [[], ["does-not-answer"]])
def test_a_commit_of_the_layout_before_releases_is_a_way_back(
    server: Server, broken: list[str]
) -> None:
    server.install()
    (server.petstore / "releases" / f"1-{server.first}").rename(
        server.petstore / server.first
    )
    for name in ("current", "answered"):
        (server.petstore / name).unlink()
    (server.petstore / "current").symlink_to(server.first)
    commit = server.commit(*broken)
    ended = server.install(by="current")
    assert (server.backups(), ended.returncode) == (1, len(broken))
    if broken:
        assert f"The service goes on with {server.first}.\n" in ended.stderr
    else:
        assert server.running() == commit
        way = f"{server.petstore}/{server.first}/deploy/install {server.first}"
        assert ended.stdout.endswith(f"To go back:\n    {way}\n")
    assert (server.petstore / server.first / "answered").exists()


def test_a_release_is_tried_if_an_older_version_runs_without_current(
    server: Server,
) -> None:
    server.install()
    for name in ("current", "answered"):
        (server.petstore / name).unlink()
    (server.stubs / "systemctl.is-active").touch()
    server.commit("does-not-start")
    ended = server.install()
    assert ended.returncode == 1
    assert ended.stderr.endswith("Nothing has changed for the service.\n")


@pytest.mark.parametrize("broken", [[], ["does-not-answer"]])
def test_an_installation_that_was_killed_can_be_run_again(
    server: Server, broken: list[str]
) -> None:
    server.install()
    script = str(server.petstore / "repository" / "deploy" / "install")
    states: list[bool] = []
    returncode = -9
    while returncode == -9:
        commit = server.commit(*broken)
        returncode = run_killed(server.folder, len(states), script)
        states.append(server.running() == commit)
        # A commit that was not checked never runs, not even after a restart.
        if states[-1]:
            assert (server.petstore / "current/.venv/checked").exists()
        ended = server.install()
        assert ended.returncode == len(broken)
        assert server.running() == (server.first if broken else commit)
        assert (server.petstore / "current/answered").exists()
        if not broken:
            releases = server.petstore.glob("releases/*")
            assert all((release / "answered").exists() for release in releases)
    assert [state for state, _ in groupby(states)] == (
        [False, True, False] if broken else [False, True]
    )


def test_a_restore_and_an_installation_exclude_each_other(
    rex: Path, used: Path, stubs: Path, restore: str, tmp_path: Path
) -> None:
    with locked(tmp_path / "srv" / "petstore"):
        ended = run(restore, str(rex))
    assert ended.returncode != 0
    assert ended.stderr.startswith("An installation or another restore runs.\n")
    assert systemctl_log(stubs) == []
