#!/usr/bin/env python3
"""Copy the pets of a database, which may be in use, into a new file.

    copy_pets.py [--replace] [--keep N] SOURCE TARGET

This makes a backup, checks one, and restores one. It copies only pets, because anybody
may have written SOURCE. It overwrites no file.
"""

import argparse
import os
import re
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from storage import PET_JSON, SCHEMA_VERSION, PetStore  # noqa: E402

COLUMNS = "id, name, category_id, status"
BACKUP_NAME = re.compile(r"pets-[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}\.db")

# A signal is only noted: an exception could come in the middle of any step.
signals: list[int] = []


def files_beside(database: Path) -> list[Path]:
    """Return the files that SQLite has put next to a database."""
    paths = [Path(f"{database}{end}") for end in ("-wal", "-shm", "-journal")]
    return [path for path in paths if os.path.lexists(path)]


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. (Windows cannot do this.)"""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def copy_pets(source: Path, copy: Path) -> int:
    """Copy the pets into a new file, check all of them, and return their number."""
    # Opening a pipe, for example, may never end.
    if source.exists() and not source.is_file():
        raise ValueError("the source is not a file")
    uri = f"{source.as_uri()}?mode=ro"
    # If no program uses a file in WAL mode, SQLite would create a WAL, and leave it, or
    # fail if the folder is read-only.
    is_immutable = not files_beside(source)
    if is_immutable:
        uri += "&immutable=1"
    changed = source.stat().st_mtime_ns
    PetStore(str(copy))  # Its table refuses invalid values.
    with closing(sqlite3.connect(copy, isolation_level=None, uri=True)) as connection:
        # SQLite calls this while a statement runs, and stops if the result is not 0.
        connection.set_progress_handler(lambda: len(signals), 10_000)
        # In WAL mode, it could be read only in a folder that can be written.
        connection.execute("PRAGMA journal_mode = DELETE")
        # The schema of the source may not call a function that does harm.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("ATTACH ? AS source", [uri])
        with connection:
            connection.execute("BEGIN")
            check(connection)
            connection.execute(
                f"INSERT INTO main.pets ({COLUMNS}) SELECT {COLUMNS} FROM source.pets"
            )
        # Read each pet as the service does.
        number = sum(1 for _ in connection.execute(f"SELECT {PET_JSON} FROM main.pets"))
    if is_immutable and source.stat().st_mtime_ns != changed:
        raise ValueError("another program has changed the source; try again")
    return number


def check(connection: sqlite3.Connection) -> None:
    """Raise ValueError if the source is damaged or has another version."""
    [found] = connection.execute("PRAGMA source.quick_check(1)").fetchone()
    if found != "ok":
        raise ValueError(f"the source is damaged: {found}")
    [version] = connection.execute("PRAGMA source.user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):  # rqlite's backups have 0.
        raise ValueError(f"the user_version is {version}, and not {SCHEMA_VERSION}")


def put_in_place(copy: Path, target: Path, old: Path | None) -> None:
    """Link the copy to TARGET. If `old` is given, first move TARGET's files into it.

    At any moment, either TARGET or `old` has all previous pets.
    """
    if old is None:
        os.link(copy, target)  # It fails if TARGET exists.
        return
    old.mkdir()
    try:
        # The newest pets may be in the WAL, so it is linked first.
        for file in files_beside(target):
            os.link(file, old / file.name)
        if os.path.lexists(target):
            target.rename(old / target.name)
    except OSError:
        shutil.rmtree(old)  # It contains only second names.
        raise
    try:
        # Again, because a service that still runs may have just created them.
        for file in files_beside(target):
            file.replace(old / file.name)  # No effect if it is linked there.
            file.unlink(missing_ok=True)
        sync(old)
        os.link(copy, target)
    except OSError as error:
        raise OSError(f"{error}; the previous files are in {old}") from error


def remove_backups(newest: Path, keep: int) -> None:
    """Remove all backups but the `keep` that were written last."""
    others = [
        file
        for file in newest.parent.iterdir()
        if BACKUP_NAME.fullmatch(file.name) and file.is_file() and file != newest
    ]
    # The ctime: a backup that was copied back counts as new.
    others.sort(key=lambda file: file.lstat().st_ctime_ns, reverse=True)
    for file in others[max(keep - 1, 0) :]:
        file.unlink()


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line, with absolute paths."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replace", action="store_true", help="first move TARGET away")
    parser.add_argument("--keep", type=int, help="number of backups to keep in TARGET")
    parser.add_argument("SOURCE", type=os.path.realpath)
    parser.add_argument("TARGET", type=os.path.realpath, help="a new file, or a folder")
    arguments = parser.parse_args()
    if arguments.keep is not None and not os.path.isdir(arguments.TARGET):
        parser.error("--keep needs a folder as TARGET")
    return arguments


def one_line(text: str) -> str:
    """Replace line breaks and escape codes, which a hostile file may have."""
    return "".join(c if c.isprintable() else " " for c in text)


def main() -> None:
    """Copy, put the copy into its place, and say what was done."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP.
            signal.signal(getattr(signal, name), lambda n, _: signals.append(n))
    arguments = parse_arguments()
    source, target = Path(arguments.SOURCE), Path(arguments.TARGET)
    date = f"{datetime.now():%Y-%m-%dT%H%M%S}"
    if os.path.isdir(target) and not arguments.replace:
        target /= f"pets-{date}.db"
    exists = os.path.lexists(target) or bool(files_beside(target))
    old = target.with_name(f"old-{date}") if exists else None
    try:
        if exists and not arguments.replace:
            raise FileExistsError("the target or its WAL exists")
        with TemporaryDirectory(
            prefix="unfinished-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            copy = Path(folder, "pets.db")
            number = copy_pets(source, copy)
            if signals:
                raise InterruptedError("interrupted")
            # From here on, a signal comes too late.
            put_in_place(copy, target, old)
    except Exception as error:  # A hostile file may cause any.
        sys.exit(one_line(f"Nothing was copied: {error} (from {source} to {target})"))
    result = f"Pets copied to {target}: {number}."
    if old:
        result += f" The previous files are in {old}."
    try:
        sync(target.parent)
        if arguments.keep is not None:
            remove_backups(target, arguments.keep)
    except OSError as error:
        sys.exit(one_line(f"{result} But: {error}"))
    print(one_line(result))


if __name__ == "__main__":
    main()
