"""The pets in SQLite: all SQL and every call of sqlite3, and nothing of HTTP.

The file is in WAL mode (sqlite.org/wal.html): SQLite appends each commit to a second
file, the write-ahead log (WAL), for example `pets.db-wal`. Later, in a checkpoint, it
copies the WAL into `pets.db`. A commit does not change what others are reading, so
reads continue during a write.
"""

import os
import sqlite3
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from threading import Lock, RLock
from typing import Any

# The user_version of the file, a number that SQLite leaves to the application.
SCHEMA_VERSION = 1
# AUTOINCREMENT: the id of a deleted pet is never used again. STRICT: SQLite refuses a
# value of another type. IF NOT EXISTS: several services may use examples/rqlite.py.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT
"""
# This index finds the pets of a status in the order of their ids: SQLite adds the id to
# every index.
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
# This one adds no pet, but fails if the file is read-only (BEGIN IMMEDIATE does not) or
# the table has other columns: INSERT without names needs a value for each column.
WRITE_PROBE = """
    INSERT INTO pets SELECT id, name, category_id, status FROM pets WHERE false
"""

# SQLite's name for a database without a file.
IN_MEMORY = ":memory:"

# Seconds that SQLite waits while another program has locked the file. A write may wait
# twice as long: for the commit before it, and then for its own.
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
    lacks one of them. A store also has to keep these promises:

    - Any number of threads may call the methods at once.
    - The JSON of a pet is an object with id, name, categoryId and status.
    - A name is any string that UTF-8 can encode, U+0000 included. A category id is any
      64-bit integer. Both are returned exactly as they were given.
    - Ids grow, and none is used again. Pets appear in the order of their ids. (In many
      databases, an id is assigned before the commit, so pet 8 may appear before pet 7.
      Then a client that asks for the pets after 8 never sees pet 7.)
    - If `add` returns, the pet is stored for good. If `add` raises an exception, the
      pet is not stored, unless Ctrl-C or a lack of memory has interrupted `add`. If a
      store cannot promise this, its documentation says so.
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

    If the disk is full or reports an error, `add` may raise after it stored the pet.
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        self._database = Database(path)
        # Close the database when this store is garbage-collected or Python exits. (Not
        # a method of this store: that would keep the store alive.)
        weakref.finalize(self, self._database.close)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        """Return a page as a JSON array, and its last id if another page follows."""
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        rows = self._database.read(sql, values)
        page = rows[:limit]
        last_id = page[-1][0] if len(rows) > limit else None
        return "[" + ",\n".join([pet for _, pet in page]) + "]", last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        """Store a pet on the disk, and return its id and its JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        rows = self._database.write(INSERT_PET, values)
        pet_id, pet = rows[0]
        return pet_id, pet

    def get(self, pet_id: int) -> str | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if SQLite cannot answer a query."""
        self._database.read(READ_PROBE, {})


def main_code(error: sqlite3.Error) -> int:
    """Return the main result code: 10 (SQLITE_IOERR) for 778 (SQLITE_IOERR_WRITE)."""
    # Python's sqlite3 raises some errors itself. They have no code of SQLite.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


@contextmanager
def translated_errors(path: str, default_hint: str | None = None) -> Iterator[None]:
    """Turn an error of SQLite in a `with` block into StorageUnavailable.

    An error that HINTS does not list is raised as it is, unless there is a default.
    """
    try:
        yield  # Here, the `with` block runs.
    except sqlite3.Error as error:
        hint = HINTS.get(main_code(error), default_hint)
        if hint is None:
            raise
        raise StorageUnavailable(f"{path}: {error}; {hint}") from error


def connect(path: str) -> sqlite3.Connection:
    """Return a new connection."""
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,  # Python begins no transaction itself.
        check_same_thread=False,  # A lock lets one thread use it at a time.
    )


def begin(connection: sqlite3.Connection) -> None:
    """Begin a write transaction, which `with connection:` commits or rolls back."""
    # FULL: COMMIT returns only after the WAL is on the disk. A connection needs this
    # once, before BEGIN. To set it again does no harm.
    connection.execute("PRAGMA synchronous = FULL")
    # IMMEDIATE: take the write lock now, so that only this statement waits for it.
    connection.execute("BEGIN IMMEDIATE")


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty database, or check that it is there."""
    with connection:
        # If several processes start at once, the first one creates the schema, and the
        # others wait here.
        begin(connection)
        [version] = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        if version == 0 and not tables:
            connection.execute(CREATE_TABLE)
            connection.execute(CREATE_INDEX)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            version = SCHEMA_VERSION
        if version != SCHEMA_VERSION:
            raise StorageUnavailable(
                f"{path}: it is not a pet store of version {SCHEMA_VERSION} (its "
                f"user_version is {version}); choose another file, or upgrade this one"
            )
        connection.execute(WRITE_PROBE)
    try:
        # Not inside of a transaction. The file stays in WAL mode.
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        # Another process that starts may be setting this mode, and the file keeps it.
        if main_code(error) != sqlite3.SQLITE_BUSY:
            raise


class SharedConnection:
    """A connection that several threads use, one at a time.

    A thread must have `lock` when it calls a method and while it uses the connection.
    """

    def __init__(self, path: str) -> None:
        # In memory, the reader is the writer: `Database.close` takes this lock twice.
        self.lock = RLock()
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def get(self) -> sqlite3.Connection:
        """Return the connection. Open it at its first use.

        Not earlier: a server may fork (copy this process) before the first request, and
        SQLite does not support open connections in the copy.
        """
        if self._connection is None:
            connection = connect(self._path)
            if self._path == IN_MEMORY:
                # In memory, each connection has a new database. Prepare this one, too.
                prepare(connection, self._path)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Copy the WAL into the file, and close the connection.

        SQLite copies the WAL when the last connection is closed, but not if the file
        was moved. So this method copies and empties the WAL itself.
        """
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._connection = None


class Write:
    """A statement that changes something, and its result: its rows or an error."""

    def __init__(self, sql: str, values: Values) -> None:
        self.sql = sql
        self.values = values
        self.rows: Rows = []
        self.error: sqlite3.IntegrityError | None = None

    def execute(self, connection: sqlite3.Connection) -> None:
        """Execute the statement. If it violates a constraint, keep the error.

        SQLite undoes only this statement then, and the transaction continues
        (sqlite.org/lang_conflict.html, ABORT). Today, schemas.py refuses such values,
        but a UNIQUE constraint would need this method.
        """
        try:
            self.rows = connection.execute(self.sql, self.values).fetchall()
        except sqlite3.IntegrityError as error:
            self.error = error


class Batch:
    """Writes that share a commit, and its error: None once they are committed."""

    def __init__(self) -> None:
        self.commit_lock = Lock()
        self.error: BaseException | None = RuntimeError("not committed")
        self.writes: list[Write] = []


class Database:
    """An SQLite database with one connection for reads and one for writes."""

    def __init__(self, path: str) -> None:
        """Create the schema in an empty file, or check that it is there.

        Raise StorageUnavailable if the file cannot be used.
        """
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        in_memory = path == IN_MEMORY
        self._path = path if in_memory else os.path.abspath(path)
        # An error that HINTS does not list means that the file is not a pet store.
        not_a_store = "it is not a pet store; choose another file"
        with (
            translated_errors(self._path, not_a_store),
            closing(connect(self._path)) as connection,
        ):
            prepare(connection, self._path)
        self._file_at_startup = self._file_at_path()
        self._writer = SharedConnection(self._path)
        # In memory, a second connection would have a database of its own.
        self._reader = self._writer if in_memory else SharedConnection(self._path)
        # The next write joins this batch. The lock: none joins one that is executing.
        self._next_batch = Batch()
        self._next_batch_lock = Lock()

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""
        with translated_errors(self._path), self._reader.lock:
            self._require_same_file()
            return self._reader.get().execute(sql, values).fetchall()

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        A commit waits until the disk has synced. That takes milliseconds, no matter how
        many statements it has. So threads that write at the same time share a commit
        (group commit):

        1. Thread A adds its write to the next batch, takes the commit lock of this
           batch, and waits for the lock of the writer: another commit is under way.
        2. Thread B adds its write to the same batch, and waits for its commit lock.
        3. A gets the writer, replaces the next batch with a new one, and commits both
           writes.
        4. Thread C adds its write to the new batch, and waits for the writer.
        5. A releases the locks. B gets the commit lock. Its batch is no longer the next
           one, so A has committed it, or has failed.

        If Ctrl-C or a lack of memory interrupts A before step 3, the next thread
        commits A's write. If later, A and B raise the exception, even if stored.
        """
        write = Write(sql, values)
        with self._next_batch_lock:
            batch = self._next_batch
            batch.writes.append(write)
        with batch.commit_lock:
            # With this lock, no other thread replaces the batch meanwhile.
            if batch is self._next_batch:
                self._commit(batch)
        error = batch.error or write.error
        if error:
            raise error
        return write.rows

    def _commit(self, batch: Batch) -> None:
        """Commit the next batch. Only a thread that has its commit lock may do so."""
        try:
            # While this thread waits here, other writes join the batch.
            with self._writer.lock:
                with self._next_batch_lock:
                    self._next_batch = Batch()
                with translated_errors(self._path):
                    self._require_same_file()
                    connection = self._writer.get()
                    with connection:
                        begin(connection)
                        for write in batch.writes:
                            write.execute(connection)
            batch.error = None
        except BaseException as error:
            batch.error = error
            raise

    def close(self) -> None:
        """Close both connections. Each copies the WAL: only one may be open."""
        # No write during a checkpoint: before SQLite 3.51.3, it could be lost
        # (sqlite.org/wal.html, section 11).
        with self._writer.lock, self._reader.lock:
            self._writer.close()
            self._reader.close()

    def _require_same_file(self) -> None:
        """Raise StorageUnavailable if another file or none is at the path.

        SQLite finds the WAL by its name. If somebody replaces `pets.db`, SQLite would
        copy the WAL of the old file into the new file.
        """
        if self._file_at_path() != self._file_at_startup:
            raise StorageUnavailable(
                f"{self._path}: the file was moved, removed or replaced; put it back, "
                "or restart the service, which uses or creates the file at this path"
            )

    def _file_at_path(self) -> list[tuple[int, int]]:
        """Return the device and inode of the file, and of the path if it is a link.

        These two numbers identify a file, also after it was moved. If it was moved, and
        a link to it is at its place, only the second pair differs.
        """
        if self._path == IN_MEMORY:
            return []
        try:
            found = [os.stat(self._path), os.lstat(self._path)]
        except OSError:
            return []
        return [(status.st_dev, status.st_ino) for status in found]
