"""The pets in SQLite: all SQL of the service, and nothing of HTTP.

The file is in WAL mode (sqlite.org/wal.html): SQLite appends each commit to a second
file, the write-ahead log (WAL), for example `pets.db-wal`. Later, in a checkpoint, it
copies the WAL into `pets.db`.

The operating system first keeps in memory what a program writes to a file. A sync waits
until the file is on the disk. Without a sync, a loss of power may undo a commit.
"""

import os
import sqlite3
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from threading import Lock
from typing import Any

# The user_version of the file, a number that SQLite leaves to the application.
SCHEMA_VERSION = 1
# AUTOINCREMENT: the id of a deleted pet is never used again. STRICT: SQLite refuses a
# value of another type. IF NOT EXISTS: in examples/rqlite.py, two processes may create
# the table at the same time.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT
"""
# SQLite adds the id to every index, so the pets of a status are in order of their ids.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status)"

# SQLite renders the JSON of 100 pets in half the time that json.dumps takes.
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
# A probe tests whether the table can be used. This one fails if it cannot be read.
READ_PROBE = "SELECT id FROM pets LIMIT 1"
# This one adds no pet (WHERE false). It fails if the file is read-only, or if the table
# has other columns: INSERT without names needs a value for each column.
WRITE_PROBE = """
    INSERT INTO pets SELECT id, name, category_id, status FROM pets WHERE false
"""

# SQLite's name for a database without a file.
IN_MEMORY = ":memory:"

# Seconds to wait while another program has locked the file.
BUSY_TIMEOUT = 2.0

CHECK_ACCESS = (
    "it must be a file in an existing folder, and this user must be allowed to write "
    "to the file and to the folder"
)
# SQLite's result codes (sqlite.org/rescode.html) that do not mean a bug, each with its
# cause or with what to do.
HINTS = {
    sqlite3.SQLITE_BUSY: "another program uses it",
    sqlite3.SQLITE_PROTOCOL: "another program uses it",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "the disk may be full or failing",
    sqlite3.SQLITE_CORRUPT: "restore a backup",
    sqlite3.SQLITE_NOTADB: "choose another file, or restore a backup",
    sqlite3.SQLITE_CANTOPEN: CHECK_ACCESS,
    sqlite3.SQLITE_READONLY: CHECK_ACCESS,
}

Values = Mapping[str, object]
Rows = list[tuple[Any, ...]]


class StorageUnavailable(Exception):
    """The store cannot do what it was asked. The message says why."""


class Store(ABC):
    """What the application needs to store pets.

    An abstract base class (ABC) lists methods. Python refuses to create a store that
    lacks one of them. A store also keeps these promises, or its documentation says when
    it does not:

    - Any number of threads may call the methods at once.
    - The JSON of a pet is an object with id, name, categoryId and status.
    - A name is any string that UTF-8 can encode, U+0000 included. A category id is any
      64-bit integer. Both are returned exactly as they were given.
    - Ids grow, and none is used again. Pets appear in the order of their ids. (In many
      databases, an id is assigned before the commit, so pet 8 may appear before pet 7.
      Then a client that asks for the pets after 8 never sees pet 7.)
    - If `add` returns, the pet is stored for good. If `add` raises an exception, the
      pet is not stored, unless Ctrl-C or a lack of memory has interrupted `add`.
    - If the store cannot answer, a method raises StorageUnavailable within about five
      seconds.
    """

    @abstractmethod
    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        """Return a page as a JSON array, and its last id if another page follows.

        The page has at most `limit` pets, ordered by id. Each id is larger than
        `after`. If `status` is not None, each pet has this status.
        """

    @abstractmethod
    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        """Store a pet, and return its id and its JSON."""

    @abstractmethod
    def get(self, pet_id: int) -> str | None:
        """Return the JSON of a pet, or None if no pet has this id."""

    @abstractmethod
    def check(self) -> None:
        """Raise StorageUnavailable if the store cannot answer a query."""


class PetStore(Store):
    """The pets in an SQLite file, or in memory if the path is `:memory:`.

    Two promises of `Store` may fail, but only if power is lost, or if the disk is full
    or fails:

    - If `add` raises an exception, the pet may be stored. If `add` returns at the
      moment when the disk fails, the pet may be lost.
    - An id may be used again: a list may show a pet before it is on the disk. If the
      pet is lost then, a new pet may get its id. A client that has followed the pages
      beyond this id misses the new pet.
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        self._database = Database(path)
        # Call `close()` last. If nobody does, Python does, when the program ends or
        # nothing refers to this store. (finalize refers to what it calls. This must not
        # be a method of the store, which would refer to the store.)
        self.close = weakref.finalize(self, self._database.close)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        """Return a page as a JSON array, and its last id if another page follows."""
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        return to_page(self._database.read(sql, values), limit)

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        """Store a pet on the disk, and return its id and its JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        [(pet_id, pet)] = self._database.write(INSERT_PET, values)
        return pet_id, pet

    def get(self, pet_id: int) -> str | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if a query fails, or if a sync has failed."""
        self._database.read(READ_PROBE, {})
        self._database.check_wal()


def to_page(rows: Rows, limit: int) -> tuple[str, int | None]:
    """Return a page, as list_page does. `rows` are those of SELECT_PAGE.

    A function, because examples/rqlite.py uses it, too.
    """
    page = rows[:limit]
    last_id = page[-1][0] if len(rows) > limit else None
    return "[" + ",\n".join([pet for _, pet in page]) + "]", last_id


def main_code(error: sqlite3.Error) -> int:
    """Return the main result code: 10 (SQLITE_IOERR) for 778 (SQLITE_IOERR_WRITE)."""
    # Python's sqlite3 raises some errors itself, without a code of SQLite.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


@contextmanager
def translated_errors(path: str, default_hint: str | None = None) -> Iterator[None]:
    """Turn an error of SQLite or the system in a `with` block into StorageUnavailable.

    An error of SQLite that HINTS does not list gets the default hint. Without one, it
    is raised as it is.
    """
    try:
        yield  # The `with` block runs here (docs.python.org/3/library/contextlib.html).
    except OSError as error:  # `Wal` (below) cannot open the file.
        raise StorageUnavailable(f"{path}: {error}") from error
    except sqlite3.Error as error:
        hint = HINTS.get(main_code(error), default_hint)
        if hint is None:
            raise
        raise StorageUnavailable(f"{path}: {error}; {hint}") from error


def connect(path: str, timeout: float) -> sqlite3.Connection:
    """Return a connection that waits up to `timeout` seconds for other programs."""
    return sqlite3.connect(
        path,
        timeout=timeout,
        isolation_level=None,  # Each statement commits itself, unless BEGIN came first.
        check_same_thread=False,  # `Database` lets one thread use it at a time.
    )


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty database, or check that it is there."""
    with connection:  # Commits, or rolls back after an exception.
        # If several processes start at once, the first one takes the write lock here,
        # and creates the schema. The others wait.
        connection.execute("BEGIN IMMEDIATE")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        # SQLite's own table of the tables and indexes.
        tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        if version == 0 and not tables:
            connection.execute(CREATE_TABLE)
            connection.execute(CREATE_INDEX)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise StorageUnavailable(
                f"{path}: it is not a pet store of version {SCHEMA_VERSION} (its "
                f"user_version is {version}); choose another file, or upgrade this one"
            )
        connection.execute(WRITE_PROBE)
    try:
        # Not possible inside of a transaction. The file stores this mode.
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process of the service may be setting the mode now: go on. If another
        # program prevents it, the WAL is missing, and `Wal` raises for each request.
        if main_code(error) != sqlite3.SQLITE_BUSY:
            raise


class Wal:
    """The WAL, opened to sync it.

    SQLite would sync the WAL in each commit, while the thread has the lock. `Database`
    turns that off, and syncs here instead, without its lock. Any number of threads may
    wait in `sync` at the same time: Linux flushes the disk once for all of them (group
    commit).

    A descriptor is the number of an open file. SQLite has one of its own for the WAL.
    A sync waits for all that was written to the file, through any descriptor. If the
    disk reports an error, the next sync of each descriptor raises it, once. A
    descriptor that was opened later may never raise it. So the WAL is opened before the
    first commit, and stays open.
    """

    def __init__(self, path: str) -> None:
        """Open the WAL. Raise OSError if it cannot be opened."""
        self._path = path
        # Windows syncs only what is open for writing.
        flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY
        self._descriptor = os.open(path, flags)
        self._error: OSError | None = None

    def sync(self) -> None:
        """Wait until the WAL is on the disk, or raise as `check` does."""
        try:
            # macOS and Windows have no fdatasync.
            getattr(os, "fdatasync", os.fsync)(self._descriptor)
        except OSError as error:
            self._error = error
        # All threads use this descriptor, and only one of them gets the error.
        self.check()

    def check(self) -> None:
        """Raise StorageUnavailable if a sync has failed since the WAL was opened.

        Then a commit may be missing in the WAL on the disk. After a loss of power,
        SQLite reads the WAL up to this gap only, so later commits would be lost, too.
        """
        if self.has_failed():
            raise StorageUnavailable(
                f"{self._path}: a sync has failed ({self._error}); check the disk, and "
                "restart the service"
            )

    def has_failed(self) -> bool:
        """Return whether a sync has failed."""
        return self._error is not None

    def close(self) -> None:
        """Close the WAL."""
        os.close(self._descriptor)


def file_at(path: str) -> list[tuple[int, int]]:
    """Return the device and inode of the file at a path, and of the path itself.

    Another file at the path has other numbers, but a file that is moved keeps its own.
    Only the second pair changes after `mv pets.db moved.db; ln -s moved.db pets.db`.
    The list is empty if no file is there.
    """
    if path == IN_MEMORY:
        return []  # Without a file, the list stays the same.
    try:
        target, link = os.stat(path), os.lstat(path)
    except OSError:
        return []
    return [(target.st_dev, target.st_ino), (link.st_dev, link.st_ino)]


class Database:
    """An SQLite database with one connection for all threads.

    A thread uses the connection only while it has the lock. It releases the lock before
    it waits for the disk or for another program, so the others go on. (Except in a
    checkpoint, which SQLite adds to a commit about every 4 MB of the WAL: then this
    commit syncs both files, and all wait.)

    A database in memory has no file and no WAL: nothing is synced, and `_wal` is None.
    """

    def __init__(self, path: str) -> None:
        """Create the schema in an empty file, or check that it is there."""
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        self._path = path if path == IN_MEMORY else os.path.abspath(path)
        # The hint for an error that HINTS does not list.
        not_a_store = "it is not a pet store; choose another file"
        with (
            translated_errors(self._path, not_a_store),
            # Closed at once: `_get_connection` says why.
            closing(connect(self._path, BUSY_TIMEOUT)) as connection,
        ):
            prepare(connection, self._path)
        self._file_at_startup = file_at(self._path)
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._wal: Wal | None = None

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""
        with translated_errors(self._path):
            return self._execute(sql, values)

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk."""
        self.check_wal()  # After a failed sync, only reads go on.
        with translated_errors(self._path):
            rows = self._execute(sql, values)
        if wal := self._wal:  # A local name, because `close` may set None meanwhile.
            wal.sync()  # Without the lock.
        return rows

    def check_wal(self) -> None:
        """Raise StorageUnavailable if a sync of the WAL has failed."""
        if wal := self._wal:
            wal.check()

    def _execute(self, sql: str, values: Values) -> Rows:
        """Execute a statement, commit it, and return its rows.

        If another program has locked the file, try again until BUSY_TIMEOUT is over.
        (SQLite's own time-out is 0: it would wait while this thread has the lock.)
        """
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                with self._lock:
                    self._require_same_file()
                    connection = self._get_connection()
                    # A statement commits when its last row is fetched. So fetch all
                    # rows here: later, this thread no longer has the lock.
                    return connection.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                # Busy: SQLite has undone the statement, so it may be repeated.
                is_busy = main_code(error) == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _require_same_file(self) -> None:
        """Raise StorageUnavailable if another file or none is at the path.

        SQLite finds the WAL by its name. If somebody replaces `pets.db`, SQLite would
        copy the WAL of the old file into the new file.
        """
        if file_at(self._path) != self._file_at_startup:
            raise StorageUnavailable(
                f"{self._path}: the file was moved, removed or replaced; put it back, "
                "or restart the service, which uses or creates the file at this path"
            )

    def _get_connection(self) -> sqlite3.Connection:
        """Return the connection. Open it, and the WAL, at the first use.

        Not earlier: with preload_app, gunicorn forks (copies the process) before the
        first request, and SQLite does not support open connections in the copy.
        """
        if self._connection is None:
            connection = connect(self._path, timeout=0)  # `_execute` waits instead.
            if self._path == IN_MEMORY:
                # In memory, each connection has a new database. Prepare this one, too.
                prepare(connection, self._path)
            self._connection = connection
        # A step of its own: if it fails, the next statement tries again.
        if self._wal is None and self._path != IN_MEMORY:
            # By default (FULL), SQLite syncs the WAL in each commit. With NORMAL, it
            # does not: `write` does, without the lock.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(READ_PROBE).fetchall()  # This creates the WAL.
            # If the path is a symbolic link, the WAL is beside the file itself.
            self._wal = Wal(os.path.realpath(self._path) + "-wal")
        return self._connection

    def close(self) -> None:
        """Copy the WAL into the file, and close the WAL and the connection.

        SQLite copies the WAL, too, when its connection closes, but not if the file was
        moved. So this method copies it first.

        After a failed sync, it does not, because the WAL may have a gap. SQLite syncs
        the WAL before each copy, and its own descriptor raises the error once. So a
        copy here would fail, but the second one, when the connection closes, would
        succeed. If it is the only one, it fails, and the WAL stays as it is. (Not if
        a checkpoint of SQLite in a commit has got the error before.)
        """
        with self._lock:
            if self._connection is None:
                return
            if self._wal:
                if not self._wal.has_failed():
                    with suppress(sqlite3.Error):  # If it fails, the WAL stays.
                        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                # Before the connection: Windows lets nobody remove an open file.
                self._wal.close()
                # After a failed sync, keep it: it still refuses a late `add`.
                if not self._wal.has_failed():
                    self._wal = None
            self._connection.close()
            self._connection = None
