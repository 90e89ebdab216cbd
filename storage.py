"""The pets in SQLite: all SQL and every call of sqlite3, and nothing of HTTP."""

import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from threading import Lock, RLock
from typing import Any, NamedTuple, Protocol

# The user_version of the file, a number that SQLite leaves to the application.
SCHEMA_VERSION = 1
# AUTOINCREMENT: the id of a deleted pet is never used again.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT
"""
# The index finds a page of one status. Like every index, it contains the id as well, so
# the pets of one status are in the order of their ids.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status)"
# The columns of the table, and their types. A table with others is refused at startup.
SELECT_COLUMNS = "SELECT name, type FROM pragma_table_info('pets')"
COLUMNS = {
    b"id": b"INTEGER",
    b"name": b"TEXT",
    b"category_id": b"INTEGER",
    b"status": b"TEXT",
}

# The JSON of a pet. SQLite renders 100 pets in half the time that json.dumps takes.
PET_JSON = (
    "json_object('id', id, 'name', name, 'categoryId', category_id, 'status', status)"
)
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
# These fail if this process cannot read the table, or cannot write to it.
READ_PROBE = "SELECT id FROM pets LIMIT 1"
WRITE_PROBE = "DELETE FROM pets WHERE false"

# Seconds that SQLite waits for a lock of another program.
BUSY_TIMEOUT = 2.0

CHECK_ACCESS = (
    "it must be a file in an existing folder, and this user must be allowed to write "
    "to the file and to the folder"
)
# What to do about an error, by SQLite's result code (sqlite.org/rescode.html).
HINTS = {
    sqlite3.SQLITE_BUSY: "another program uses it",
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


class Store(Protocol):
    """What the application needs to store pets.

    A store has to keep these promises:

    - Any number of threads may call the methods at once.
    - The JSON of a pet is bytes: an object with id, name, categoryId and status.
    - A name is any string that UTF-8 can encode, U+0000 included. A category id is any
      64-bit integer. Both are returned exactly as they were given.
    - Ids grow. Once a pet is visible, no pet with a smaller id appears later: otherwise
      a client that follows the pages misses pets. (In many databases, a sequence
      assigns an id before the commit, so pet 8 may be visible before pet 7.)
    - When `add` returns, the pet is stored for good. If `add` raises, it is not stored
      later. If a store cannot promise this, its documentation says so.
    - If the store cannot answer, a method raises StorageUnavailable within about five
      seconds.
    """

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return a page as a JSON array, and its last id if another page follows.

        The page has at most `limit` pets, ordered by id. Each has an id larger than
        `after` and, unless `status` is None, this status.
        """

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet, and return its id and its JSON."""

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if no pet has this id."""

    def check(self) -> None:
        """Raise StorageUnavailable if the store cannot answer a query."""


class PetStore(Store):
    """The pets in an SQLite file, or in memory if the path is `:memory:`."""

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        self._database = Database(path)
        # Close the database when this store is garbage-collected or Python exits.
        weakref.finalize(self, self._database.close)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return a page as a JSON array, and its last id if another page follows."""
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        rows = self._database.read(sql, values)
        last_id = rows[limit - 1][0] if len(rows) > limit else None
        page = b"[" + b",".join([pet for _, pet in rows[:limit]]) + b"]"
        return page, last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet on the disk, and return its id and its JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        rows = self._database.write(INSERT_PET, values)
        pet_id, pet = rows[0]
        return pet_id, pet

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if SQLite cannot answer a query."""
        self._database.read(READ_PROBE, {})


class Write(NamedTuple):
    """A statement that waits for a commit, and the Future of its rows."""

    sql: str
    values: Values
    future: Future[Rows]


class Database:
    """An SQLite database with one connection for reads and one for writes.

    The file is in WAL mode: SQLite appends each commit to a second file, the
    write-ahead log, and copies it into the database later, in a checkpoint. So reads go
    on during a write (sqlite.org/wal.html).

    If somebody moves or removes the file, SQLite goes on with it, and does not see what
    is at the path. So before each use, the file at the path is compared with the one
    that was there at startup.
    """

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        in_memory = path == ":memory:"
        self._path = path if in_memory else os.path.abspath(path)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        # Reentrant, because `close` takes both locks, and in memory they are one.
        self._write_lock = RLock()
        self._read_lock = self._write_lock if in_memory else RLock()
        # The writes that share the next commit.
        self._batch: list[Write] = []
        self._batch_lock = Lock()
        try:
            if in_memory:
                self._reader = self._writer = self._connect()
                self._prepare(self._writer)
            else:
                # A server may fork after this, and SQLite does not support a connection
                # in two processes. So `read` and `write` open connections of their own.
                with closing(self._connect()) as connection:
                    self._prepare(connection)
                    connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        self._file_at_startup = self._file_at_path()

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""
        with self._read_lock, self._translated_errors():
            self._require_same_file()
            if not self._reader:
                self._reader = self._open(READ_PROBE)
            return self._reader.execute(sql, values).fetchall()

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        A commit waits until the disk has synced. That takes milliseconds, no matter how
        many statements it has. So threads that write at the same time share a commit
        (group commit). The first thread of a batch commits it, and the others wait.
        """
        write = Write(sql, values, Future())
        with self._batch_lock:
            batch = self._batch
            batch.append(write)
            is_first = len(batch) == 1
        if is_first:
            self._commit(batch)
        return write.future.result()

    def close(self) -> None:
        """Copy the WAL into the database, and close the connections.

        SQLite does the same when the last connection is closed, but not if the file was
        moved. It would leave the WAL at the path, and apply it to the next file there.
        """
        with self._write_lock, self._read_lock:
            for connection in (self._reader, self._writer):
                if connection:
                    with suppress(sqlite3.Error):
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                    connection.close()
            self._reader = self._writer = None

    def _commit(self, batch: list[Write]) -> None:
        """Commit a batch in one transaction, and give each Future its rows or error."""
        try:
            with self._write_lock, self._translated_errors():
                results = self._execute(batch)
        except BaseException as error:
            # Otherwise, the threads of this batch would wait forever.
            self._end_batch(batch)
            for write in batch:
                write.future.set_exception(error)
            return
        for write, result in zip(batch, results, strict=True):
            if isinstance(result, sqlite3.IntegrityError):
                write.future.set_exception(result)
            else:
                write.future.set_result(result)

    def _execute(self, batch: list[Write]) -> list[Rows | sqlite3.IntegrityError]:
        """Execute a batch, and return the rows or the error of each statement."""
        if not self._writer:
            self._writer = self._open(WRITE_PROBE)
        writer = self._writer
        # The connection commits at the end of the block. After an error, it rolls back.
        with writer:
            writer.execute("BEGIN IMMEDIATE")
            self._require_same_file()
            # Until the batch ends, other threads add writes to it, even meanwhile.
            results = [execute(writer, write) for write in batch]
            self._end_batch(batch)
            # The last ones were added between the two lines above.
            return results + [execute(writer, w) for w in batch[len(results) :]]

    def _end_batch(self, batch: list[Write]) -> None:
        """Add no more writes to a batch: the next one begins another batch."""
        with self._batch_lock:
            if self._batch is batch:
                self._batch = []

    def _open(self, probe: str) -> sqlite3.Connection:
        """Return a connection to the file that was there at startup.

        It is kept only if the probe succeeds. Otherwise, a connection that was opened
        while the disk was read-only would stay read-only.
        """
        # Before it is opened: SQLite would apply the WAL of the old file to a new one.
        self._require_same_file()
        connection = self._connect()
        try:
            connection.execute(probe).fetchall()
            # The file may have been replaced meanwhile.
            self._require_same_file()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        """Open what is at the path."""
        connection = sqlite3.connect(
            self._path,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,  # `_execute` and `_prepare` begin transactions.
            check_same_thread=False,  # The locks let one thread use it at a time.
        )
        # Text is returned as bytes, so that the JSON of a pet is sent as it is.
        connection.text_factory = bytes
        # COMMIT returns after the WAL is on the disk.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the schema in an empty database, or check that it is there."""

        def select(sql: str) -> Any:
            return connection.execute(sql).fetchone()[0]

        with connection:
            # Several processes may start at once. The first one creates the schema.
            connection.execute("BEGIN IMMEDIATE")
            version = select("PRAGMA user_version")
            if version == 0 and select("SELECT count(*) FROM sqlite_schema") == 0:
                connection.execute(CREATE_TABLE)
                connection.execute(CREATE_INDEX)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                version = SCHEMA_VERSION
            columns = dict(connection.execute(SELECT_COLUMNS))
            if version != SCHEMA_VERSION or columns != COLUMNS:
                raise self._unavailable(
                    f"it is not a pet store of version {SCHEMA_VERSION}; choose "
                    f"another file (its user_version is {version})"
                )
            connection.execute(WRITE_PROBE)

    def _file_at_path(self) -> tuple[int, int] | None:
        """Return the device and inode of the file, or None, as in memory."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _require_same_file(self) -> None:
        """Raise StorageUnavailable if another file or none is at the path."""
        if self._file_at_path() != self._file_at_startup:
            raise self._unavailable(
                "the file was moved, removed or replaced; put it back, or restart the "
                "service, which then uses or creates the file at this path"
            )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise StorageUnavailable for an error of SQLite, unless it shows a bug."""
        try:
            yield
        except sqlite3.Error as error:
            if result_code(error) in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, reason: object) -> StorageUnavailable:
        """Return the error for a reason, with a hint if it is an error of SQLite."""
        code = result_code(reason)
        hint = f"; {HINTS[code]}" if code in HINTS else ""
        return StorageUnavailable(f"{self._path}: {reason}{hint}")


def execute(
    connection: sqlite3.Connection, write: Write
) -> Rows | sqlite3.IntegrityError:
    """Return the rows of a statement, or the error if it violates a constraint.

    SQLite then undoes this statement alone. Any other error fails the whole batch.
    """
    try:
        return connection.execute(write.sql, write.values).fetchall()
    except sqlite3.IntegrityError as error:
        return error


def result_code(error: object) -> int:
    """Return the result code of SQLite, or SQLITE_ERROR if there is none."""
    # The lowest byte of the extended result code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF
