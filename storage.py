"""The pets in SQLite: their SQL, which also renders their JSON.

`PetStore` gives its statements to a `Database`. There are three:

- `InMemory`, below, is the simplest one.
- `SqliteFile`, in sqlite_file.py, is a file on the disk.
- `Cluster`, in examples/rqlite.py, is several machines.
"""

import sqlite3
from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol

# A file has it as its user_version, a number that SQLite leaves to the application.
SCHEMA_VERSION = 1
# AUTOINCREMENT: the id of a deleted pet is never used again. STRICT: SQLite refuses a
# value that it cannot convert to the type of the column. IF NOT EXISTS: two machines of
# a `Cluster` may create the table at the same time.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT
"""
# SQLite adds the id to every index, so the pets of a status are in order of their ids,
# and ORDER BY id needs no sorting.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status)"

# SQLite renders the JSON: it is faster than json.dumps.
PET_JSON = (
    "json_object('id', id, 'name', name, 'categoryId', category_id, 'status', status)"
)
# Values are never part of the SQL: they are parameters (:name). The f-strings contain
# constants only.
INSERT_PET = f"""
    INSERT INTO pets (name, category_id, status)
    VALUES (:name, :category_id, :status)
    RETURNING id, {PET_JSON}
"""
SELECT_PET = f"SELECT {PET_JSON} FROM pets WHERE id = :id"
# One row more than the page has: it shows that another page follows.
SELECT_PAGE = f"""
    SELECT id, {PET_JSON} FROM pets
    WHERE id > :after
    ORDER BY id LIMIT :limit + 1
"""
SELECT_PAGE_OF_STATUS = f"""
    SELECT id, {PET_JSON} FROM pets
    WHERE status = :status AND id > :after
    ORDER BY id LIMIT :limit + 1
"""
# A probe: it fails if the table cannot be read.
READ_PROBE = "SELECT id FROM pets LIMIT 1"

Values = Mapping[str, object]
Rows = list[tuple[Any, ...]]


class StorageUnavailable(Exception):
    """The store cannot do what it was asked. The message says why."""


class Database(Protocol):
    """What `PetStore` needs: a database that executes SQLite's SQL.

    A protocol (typing.Protocol) lists methods. Any class that has them is a Database.
    It also keeps these promises (`SqliteFile` and `Cluster` say in which rare cases
    they do not):

    - Any number of threads may call the methods at once.
    - Texts are any strings that UTF-8 can encode, U+0000 included. Integers have up to
      64 bits. Both are returned exactly as they were given.
    - Pets become visible in the order of their ids. (In many databases, an id is given
      before the commit, so pet 8 may appear before pet 7. Then a client that asks for
      the pets after 8 never sees pet 7.)
    - If `write` returns, the changes are stored for good. If it raises an exception,
      nothing has changed.
    - If the database cannot answer, a method raises StorageUnavailable within about
      five seconds.
    """

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are stored."""


class PetStore:
    """The pets in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        """Return a page as a JSON array, and its last id if another page follows.

        The page has at most `limit` pets, ordered by id. Each id is larger than
        `after`. If `status` is not None, each pet has this status.
        """
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        # A value that the SQL does not name is ignored.
        values = {"limit": limit, "status": status, "after": after}
        rows = self._database.read(sql, values)
        page = rows[:limit]
        last_id = page[-1][0] if len(rows) > limit else None
        return "[" + ",\n".join([pet for _, pet in page]) + "]", last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        """Store a pet, and return its id and its JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        [(pet_id, pet)] = self._database.write(INSERT_PET, values)
        return pet_id, pet

    def get(self, pet_id: int) -> str | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if the database cannot answer a query."""
        self._database.read(READ_PROBE, {})


def require_sqlite() -> None:
    """Raise StorageUnavailable if SQLite is too old: json_object needs 3.38."""
    if sqlite3.sqlite_version_info < (3, 38):
        found = sqlite3.sqlite_version
        raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")


def connect(path: str, busy_timeout: float = 0) -> sqlite3.Connection:
    """Return a connection to SQLite, for one thread at a time.

    A statement waits up to `busy_timeout` seconds while another program has locked the
    file.
    """
    return sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,  # Each statement commits itself, unless BEGIN came first.
        check_same_thread=False,  # By default, only the thread that opened it may.
    )


class InMemory:
    """A Database in memory. Its pets are gone when the program ends."""

    def __init__(self) -> None:
        require_sqlite()
        self._lock = Lock()
        # Opened by the first request: until then, gunicorn may fork (copy the process),
        # and SQLite does not support open connections in the copy.
        self._connection: sqlite3.Connection | None = None

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement. One thread at a time executes one."""
        with self._lock:
            if self._connection is None:
                self._connection = connect(":memory:")
                self._connection.execute(CREATE_TABLE)
                self._connection.execute(CREATE_INDEX)
            return self._connection.execute(sql, values).fetchall()

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query. It needs the same lock and connection."""
        return self.write(sql, values)

    def close(self) -> None:
        """Forget the pets."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
