"""Files from which deploy/copy_pets.py must not copy anything.

Each function turns a good backup into one of them.
"""

import os
from collections.abc import Callable
from pathlib import Path

from storage import SCHEMA_VERSION
from tests.helpers import other_program

Spoil = Callable[[Path], object]


def executed(*statements: str) -> Spoil:
    """Return a function that executes statements in a database."""

    def execute(database: Path) -> None:
        with other_program(database, *statements):
            pass

    return execute


def changed(change: Callable[[bytes], bytes]) -> Spoil:
    """Return a function that changes the bytes of a file."""
    return lambda file: file.write_bytes(change(file.read_bytes()))


def with_pet(values: str, columns: str = "id, name, category_id, status") -> Spoil:
    """Return a function that replaces the table by one without rules."""
    return executed(
        "DROP TABLE pets",
        f"CREATE TABLE pets ({columns})",
        f"INSERT INTO pets VALUES ({values})",
    )


def with_view(view: str) -> Spoil:
    """Return a function that puts a view into the place of the table."""
    return executed("ALTER TABLE pets RENAME TO others", f"CREATE VIEW pets AS {view}")


def folder(file: Path) -> None:
    """Replace a file by a folder."""
    file.unlink()
    file.mkdir()


def pipe(file: Path) -> None:
    """Replace a file by a named pipe, from which nobody can read to the end."""
    file.unlink()
    os.mkfifo(file)


ENDLESS_VIEW = with_view(
    "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) "
    "SELECT n AS id, 'Rex' AS name, 1 AS category_id, 'sold' AS status FROM numbers "
    "WHERE n < 0"
)
BAD_SOURCES: dict[str, Spoil] = {
    "missing": Path.unlink,
    "a folder": folder,
    "a pipe": pipe,
    "empty": changed(lambda data: b""),
    "text": changed(lambda data: b"Rex\n" * 1000),
    "cut short": changed(lambda data: data[: len(data) // 2]),
    # Page 1 has the schema. Page 2 has the pets, and the last one their index.
    "with a damaged table": changed(
        lambda data: data[:4096] + b"\xff" * 4096 + data[8192:]
    ),
    "with a damaged index": changed(lambda data: data[:-4096] + b"\xff" * 4096),
    # The user_version is at byte 60 (sqlite.org/fileformat2.html).
    "of a newer version": changed(
        lambda data: data[:63] + bytes([SCHEMA_VERSION + 1]) + data[64:]
    ),
    "in UTF-16": changed(lambda data: data[:59] + b"\2" + data[60:]),
    "of another program": executed("ALTER TABLE pets RENAME TO cars"),
    "with other columns": with_pet("1, 'Rex', 'Ada'", "id, name, owner"),
    "with a status of its own": with_pet("1, 'Rex', 1, 'lost'"),
    "with NULL as a name": with_pet("1, NULL, 1, 'sold'"),
    "with a blob as a name": with_pet("1, x'52', 1, 'sold'"),
    "with a name that is not UTF-8": with_pet("1, CAST(x'ff' AS TEXT), 1, 'sold'"),
    "with a fraction as a category": with_pet("1, 'Rex', 1.5, 'sold'"),
    "with a word as an id": with_pet("'one', 'Rex', 1, 'sold'"),
    "with each id twice": with_view(
        "SELECT * FROM others UNION ALL SELECT * FROM others"
    ),
    # The schema of a file that is not trusted may not use these.
    "that loads a library": with_view(
        "SELECT id, load_extension('x') AS name, category_id, status FROM others"
    ),
    "that uses a module of SQLite": executed(
        "DROP TABLE pets",
        "CREATE VIRTUAL TABLE names USING fts5(name)",
        "INSERT INTO names VALUES ('Rex')",
        "CREATE VIEW pets AS "
        "SELECT rowid AS id, name, 1 AS category_id, 'sold' AS status FROM names",
    ),
    "with a name that forges a line": with_view(
        'SELECT * FROM "x\nPets copied: 17\x1b[2K\u2028"'
    ),
}
