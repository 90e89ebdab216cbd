"""deploy/copy_pets.py and the units that run it: a mistake there loses pets."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage import SCHEMA_VERSION
from tests.bad_sources import BAD_SOURCES, ENDLESS_VIEW, Spoil, executed
from tests.helpers import KEY, NEW_PET, needs_linux, open_store, other_program
from tests.service import ROOT, TIMEOUT, Service, environment, request, run, serving

PROGRAM = str(ROOT / "deploy" / "copy_pets.py")


def copy_pets(*arguments: object, through: tuple[str, ...] = ()) -> str:
    """Run the program, maybe through another one, and return the line that it says."""
    ended = run(*through, "python", PROGRAM, *map(str, arguments))
    [line] = (ended.stdout + ended.stderr).splitlines()
    assert line.isprintable()
    assert line.startswith(
        "Nothing was copied: " if ended.returncode else "Pets copied"
    )
    return line


def names_in(database: Path) -> list[str]:
    """Return the names of the pets in a file, or none if it is missing."""
    if not database.exists():
        return []
    with other_program(database) as program:
        rows = program.execute("SELECT name FROM pets ORDER BY id").fetchall()
    return [name for (name,) in rows]


def content(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder, by path."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Return the path of a backup with the pet Rex."""
    backup = tmp_path / "backup.db"
    open_store(backup, "Rex").close()
    with other_program(backup, "PRAGMA journal_mode = DELETE"):
        return backup


def create_target(folder: Path) -> Path:
    """Create a file as a killed service leaves it: the pet Tom is in the WAL."""
    folder.mkdir()
    store = open_store(folder / "used.db", "Tom")
    for end in ("", "-wal"):
        shutil.copy(folder / f"used.db{end}", folder / f"pets.db{end}")
    store.close()
    (folder / "used.db").unlink()
    return folder / "pets.db"


@contextmanager
def adding(service: Service) -> Iterator[tuple[list[str], list[Future[int]]]]:
    """Add pets in four threads during a `with` block, until a response is not 201."""
    added: list[str] = []
    is_over: list[bool] = []

    def add_pets(writer: int) -> int:
        with closing(service.connect()) as connection:
            status = 201
            while status == 201 and not is_over:
                pet = {**NEW_PET, "name": f"{writer} {len(added)}"}
                status = request(connection, "POST", "/v1/pets", pet).status
                added.extend([str(pet["name"])] * (status == 201))
        return status

    with ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(add_pets, number) for number in range(4)]
        try:
            yield added, writers
        finally:
            is_over.append(True)


# Into a new file.


@needs_linux
def test_a_backup_has_every_pet_that_was_added_before(
    database: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    with serving(database) as service, adding(service) as (added, _):
        for target in (folder / "1.db", folder / "2.db", folder / "3.db", folder):
            before = set(added)
            line = copy_pets(database, target)
            [file] = re.findall("Pets copied to (.+): ", line)
            names = names_in(Path(file))
            assert before <= set(names)
            assert line == f"Pets copied to {file}: {len(names)}."
            # Not in WAL mode (sqlite.org/fileformat2.html).
            assert Path(file).read_bytes()[18:20] == b"\1\1"
    assert re.fullmatch(r"pets-\d{4}-\d\d-\d\dT\d{6}\.db", Path(file).name)
    assert len([*folder.iterdir()]) == 4


def test_no_file_is_overwritten(backup: Path, tmp_path: Path) -> None:
    target = create_target(tmp_path / "target")
    only_wal = tmp_path / "other.db"
    shutil.copy(f"{target}-wal", f"{only_wal}-wal")
    before = content(tmp_path)
    for source, existing in ((backup, target), (target, target), (backup, only_wal)):
        assert ": the target or its WAL exists (" in copy_pets(source, existing)
        assert content(tmp_path) == before


@needs_linux
@pytest.mark.parametrize("spoil", BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_nothing_is_copied_from_a_bad_source(
    backup: Path, tmp_path: Path, spoil: Spoil
) -> None:
    spoil(backup)
    target = create_target(tmp_path / "target")
    before = content(tmp_path)
    line = copy_pets("--replace", backup, target)
    assert line.startswith("Nothing was copied: ")
    assert line.endswith(f" (from {backup} to {target})")
    assert content(tmp_path) == before


def test_only_pets_are_copied(backup: Path, tmp_path: Path) -> None:
    executed(
        "CREATE TRIGGER clear AFTER INSERT ON pets BEGIN DELETE FROM pets; END",
        "CREATE TABLE secrets AS SELECT 'secret'",
        "ALTER TABLE pets ADD COLUMN owner TEXT",
        "PRAGMA user_version = 0",  # As in a backup of rqlite.
    )(backup)
    copy = tmp_path / "copy.db"
    copy_pets(backup, copy)
    with other_program(copy) as program:
        rows = program.execute("SELECT name FROM sqlite_schema").fetchall()
        assert program.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert [name for (name,) in rows] == ["pets", "sqlite_sequence", "pets_by_status"]
    assert names_in(copy) == ["Rex"]


@needs_linux
def test_a_source_in_a_folder_that_is_read_only_can_be_copied(
    backup: Path, tmp_path: Path
) -> None:
    # Root may write everywhere, unless it gives up its capabilities.
    user = ("setpriv", "--bounding-set=-all") if os.geteuid() == 0 else ()
    with other_program(backup, "PRAGMA journal_mode = WAL"):  # As in one of rqlite.
        pass
    folder = tmp_path / "folder"
    folder.mkdir()
    source = backup.rename(folder / "backup.db")
    before = content(folder)
    copy = tmp_path / "copy.db"
    # A folder that can be written stays as it is, too.
    copy_pets(source, tmp_path / "other.db")
    assert content(folder) == before
    folder.chmod(0o555)
    copy_pets(source, copy, through=user)
    assert names_in(copy) == ["Rex"]
    assert "Permission denied" in copy_pets(copy, folder / "new.db", through=user)
    assert content(folder) == before
    source.chmod(0)
    assert "unable to open" in copy_pets(source, tmp_path / "new.db", through=user)
    folder.chmod(0o755)


@needs_linux
def test_nothing_is_copied_if_the_disk_is_full(backup: Path, tmp_path: Path) -> None:
    before = content(tmp_path)
    # No file may have more than 8 blocks.
    line = copy_pets(
        backup, tmp_path / "new.db", through=("sh", "-c", 'ulimit -f 8; "$@"', "sh")
    )
    assert "disk I/O error" in line
    assert content(tmp_path) == before


@needs_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_copy_that_would_never_end(
    backup: Path, tmp_path: Path, number: int
) -> None:
    ENDLESS_VIEW(backup)
    folder = tmp_path / "target"
    folder.mkdir()
    command = ["python", PROGRAM, str(backup), str(folder)]
    with subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not [*folder.glob("unfinished-*/pets.db")]:
                assert process.poll() is None
            process.send_signal(number)
            _, line = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
    assert process.returncode == 1
    assert line.startswith("Nothing was copied: interrupted (from ")
    assert [*folder.iterdir()] == []


# In the place of another file.


@pytest.mark.parametrize("is_missing", [False, True])
def test_all_files_of_the_previous_pets_are_kept(
    backup: Path, tmp_path: Path, is_missing: bool
) -> None:
    target = create_target(tmp_path / "target")
    if is_missing:
        # The new file must not get what is in the WAL.
        target.unlink()
    previous = {path.name: path.read_bytes() for path in target.parent.iterdir()}
    other = target.with_name("pets.db.before-cleanup")
    other.touch()
    line = copy_pets("--replace", backup, target)
    [old] = target.parent.glob("old-*")
    assert line == f"Pets copied to {target}: 1. The previous files are in {old}."
    assert {path.name: path.read_bytes() for path in old.iterdir()} == previous
    assert {*target.parent.iterdir()} == {target, other, old}
    assert names_in(target) == ["Rex"]


def test_a_folder_is_replaced_like_a_file(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "pets.db"
    target.mkdir()
    copy_pets("--replace", backup, target)
    assert names_in(target) == ["Rex"]
    assert [*tmp_path.glob("old-*/pets.db/")]


@needs_linux
def test_a_service_that_was_not_stopped_is_503_until_it_is_restarted(
    backup: Path, database: Path
) -> None:
    with serving(database) as service, adding(service) as (added, writers):
        while len(added) < 10:
            assert not any(writer.done() for writer in writers)
        copy_pets("--replace", backup, database)
        assert [writer.result(TIMEOUT) for writer in writers] == [503] * 4
        assert service.request("GET", "/v1/pets").status == 503
        service.stop()
    with serving(database) as service:
        [rex] = service.request("GET", "/v1/pets").body
        assert rex["name"] == "Rex"
    [old] = database.parent.glob("old-*/pets.db")
    assert set(added) <= set(names_in(old))


# Runs the program. At its nth change of a folder, the change fails, or a signal comes.
AT_CHANGE = """
import os, runpy, signal, sys
action, number, *sys.argv = sys.argv[1:]
changes = []

def hook(event, _):
    if event in ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        changes.append(event)
        if len(changes) == int(number):
            if action == "fail":
                raise OSError("no more changes")
            os.kill(os.getpid(), getattr(signal, action))

sys.addaudithook(hook)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@needs_linux
@pytest.mark.parametrize("action", ["SIGKILL", "fail"])
def test_no_pet_is_lost_if_a_replacement_is_interrupted(
    backup: Path, tmp_path: Path, action: str
) -> None:
    for number in range(1, 13):
        target = create_target(tmp_path / str(number))
        command = ["python", "-c", AT_CHANGE, action, str(number), PROGRAM]
        ended = run(*command, "--replace", str(backup), str(target))
        names = names_in(target)
        old = [names_in(old) for old in target.parent.glob("old-*/pets.db")]
        # Rex or nothing is at the target, or Tom still is: surely at the first change.
        assert (names, old) in ((["Rex"], [["Tom"]]), ([], [["Tom"]]), (["Tom"], []))
        assert names == ["Tom"] or number > 1
        if action != "SIGKILL":
            line = ended.stdout + ended.stderr
            assert line.startswith("Pets copied") == (names == ["Rex"])
            assert line.startswith("Nothing was copied: ") == (names != ["Rex"])
            is_moved = bool([*target.parent.glob("old-*")])
            assert ("previous files are in " in line) == is_moved == bool(old)
    assert ended.returncode == 0, "each change had its turn"


# Old backups.


def test_the_backups_that_were_written_last_are_kept(
    backup: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    names = [
        *["pets-before-migration.db", "pets-2020-01-01T000000.db.bak"],
        *["pets-2026-01-01T000000.db", "pets-2026-01-02T000000.db"],
        # This one was copied back from elsewhere.
        *["pets-2026-01-03T000000.db", "pets-2020-01-01T000000.db"],
    ]
    last = 0.0
    for name in names:
        file = folder / name
        file.touch()
        while file.stat().st_ctime <= last:
            os.utime(file, (0, 0))  # This sets the ctime, too.
        last = file.stat().st_ctime
    copy_pets("--keep", 3, tmp_path / "missing.db", folder)
    assert {file.name for file in folder.iterdir()} == {*names}
    new = Path(copy_pets("--keep", 3, backup, folder)[len("Pets copied to ") : -4])
    kept = {*names[:2], *names[4:], new.name}
    assert {file.name for file in folder.iterdir()} == kept
    new.unlink()
    new = Path(copy_pets("--keep", 0, backup, folder)[len("Pets copied to ") : -4])
    assert {file.name for file in folder.iterdir()} == {*names[:2], new.name}


# The units.


def run_unit(name: str, folder: Path, instance: str = "") -> int:
    """Run the line of a unit with the folders of a test, and return its exit status."""
    unit = (ROOT / "deploy" / name).read_text()
    [line] = re.findall("^ExecStart=(.+)$", unit, re.M)
    for path, replacement in {
        "/srv/petstore/.venv/bin/": "",
        "/srv/petstore": str(ROOT),
        "/var/lib/petstore": str(folder),
        "/var/backups/petstore": str(folder / "backups"),
        "%i": instance,
    }.items():
        line = line.replace(path, replacement)
    database = str(folder / "pets.db")
    command = line.split()
    return run(*command, PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=database).returncode


def test_the_units_back_up_and_restore(backup: Path, tmp_path: Path) -> None:
    database = backup.rename(tmp_path / "pets.db")
    (tmp_path / "backups").mkdir()
    assert run_unit("petstore-backup.service", tmp_path) == 0
    [made] = (tmp_path / "backups").iterdir()
    made = made.rename(made.with_name("made.db"))
    assert run_unit("petstore-nightly.service", tmp_path) == 0
    assert len([*(tmp_path / "backups").iterdir()]) == 2
    database.unlink()
    for name, status in (("missing.db", 1), ("..", 1), (made.name, 0)):
        assert run_unit("petstore-restore@.service", tmp_path, name) == status
    assert names_in(database) == ["Rex"]


@needs_linux
def test_the_check_fails_if_the_service_could_not_start(
    backup: Path, tmp_path: Path
) -> None:
    database = backup.rename(tmp_path / "pets.db")
    assert run_unit("petstore-check.service", tmp_path) == 0
    executed(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")(database)
    assert run_unit("petstore-check.service", tmp_path) == 1
