"""The pets in SQLite: all SQL of the service, and nothing of HTTP.

The file is in WAL mode (sqlite.org/wal.html): SQLite appends each commit to a second
file, the write-ahead log (WAL), for example `pets.db-wal`. Later, in a checkpoint, it
copies the WAL into `pets.db`.

The operating system first keeps in memory what a program writes to a file. A sync waits
until the file is on the disk. Without a sync, a loss of power may undo a commit. So
SQLite syncs the WAL in each commit. As this may take some milliseconds, threads that
write at the same time share a commit: the class `SqliteFile` does this.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from copy import copy
from threading import Lock
from typing import Any, Protocol

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


class Database(Protocol):
    """What `PetStore` needs: a database that executes SQLite's SQL.

    A protocol (typing.Protocol) lists methods. Any class that has them is a Database.
    It also keeps these promises, or its documentation says when it does not:

    - Any number of threads may call the methods at once.
    - Texts are any strings that UTF-8 can encode, U+0000 included. Integers have up to
      64 bits. Both are returned exactly as they were given.
    - Pets appear in the order of their ids. (In many databases, an id is assigned
      before the commit, so pet 8 may appear before pet 7. Then a client that asks for
      the pets after 8 never sees pet 7.)
    - If `write` returns, the changes are stored for good. If it raises an exception,
      nothing has changed, unless Ctrl-C has interrupted a thread.
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


def main_code(error: sqlite3.Error) -> int:
    """Return the main result code: 10 (SQLITE_IOERR) for 778 (SQLITE_IOERR_WRITE)."""
    # Python's sqlite3 raises some errors itself, without a code of SQLite.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


@contextmanager
def translated_errors(path: str, default_hint: str | None = None) -> Iterator[None]:
    """Turn an error of SQLite in a `with` block into StorageUnavailable.

    An error of SQLite that HINTS does not list gets the default hint. Without one, it
    is raised as it is.
    """
    try:
        yield  # The `with` block runs here (docs.python.org/3/library/contextlib.html).
    except sqlite3.Error as error:
        hint = HINTS.get(main_code(error), default_hint)
        if hint is None:
            raise
        raise StorageUnavailable(f"{path}: {error}; {hint}") from error


def connect(path: str) -> sqlite3.Connection:
    """Return a connection that waits up to BUSY_TIMEOUT for other programs."""
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,  # Each statement commits itself, unless BEGIN came first.
        check_same_thread=False,  # `SqliteFile` lets one thread use it at a time.
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
                f"user_version is {version}); choose another file"
            )
        connection.execute(WRITE_PROBE)
    try:
        # Not possible inside of a transaction. The file stores this mode.
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.OperationalError as error:
        # Another process of the service may be setting the mode now: go on. If another
        # program prevents it, `SqliteFile` tries again at the first request.
        if main_code(error) != sqlite3.SQLITE_BUSY:
            raise


def try_to_execute(
    connection: sqlite3.Connection, sql: str, values: Values
) -> Rows | Exception:
    """Execute a statement in a transaction. Return its rows, or its exception.

    After some errors, such as a full disk, SQLite undoes the whole transaction. Then
    raise the exception: all its statements have failed. Otherwise, only this one has.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except Exception as error:
        if not connection.in_transaction:
            raise
        return error


def file_at(path: str) -> list[tuple[int, int]]:
    """Return the device and inode of the file at a path, and of the path itself.

    Another file at the path has other numbers, but a file that is moved keeps its own.
    Only the second pair changes after `mv pets.db moved.db; ln -s moved.db pets.db`.
    The list is empty if no file is there.
    """
    try:
        target, link = os.stat(path), os.lstat(path)
    except OSError:
        return []
    return [(target.st_dev, target.st_ino), (link.st_dev, link.st_ino)]


class Batch:
    """Statements of several threads that one of them commits, in one transaction."""

    def __init__(self) -> None:
        # A lock of its own: threads that find their results do not queue behind those
        # that commit a later batch.
        self.lock = Lock()
        self.statements: list[tuple[str, Values]] = []
        # The rows of each statement, or its exception. Empty until a thread commits.
        self.results: list[Rows | Exception] = []


class SqliteFile:
    """A Database: an SQLite file, or a database in memory.

    One connection reads, and another one writes. In WAL mode, neither waits for the
    other. A thread uses `_reader` only with `_reader_lock`, and `_writer` only with
    `_writer_lock`. In memory, there is only `_writer`.

    Threads that write at the same time share a commit (group commit):

    1. Each thread adds its statement to the next batch, even while another thread
       commits the batch before.
    2. Then it waits for the lock of its batch. The first thread that gets the lock
       commits the batch, once the batch before is committed. The others then find their
       results.
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        self._path = path if path == IN_MEMORY else os.path.abspath(path)
        # The hint for an error that HINTS does not list.
        not_a_store = "it is not a pet store; choose another file"
        with (
            translated_errors(self._path, not_a_store),
            # Closed at once: `_connect` says why.
            closing(connect(self._path)) as connection,
        ):
            prepare(connection, self._path)
            # Each file that has to stay at its path, with what `file_at` returned.
            self._files = [(self._path, file_at(self._path))]
        self._reader_lock = Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer_lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._next_batch_lock = Lock()
        self._next_batch = Batch()

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query. It sees no change that is not on the disk.

        Another program delays it only if it has locked the file exclusively. Then reads
        wait one after the other, each for up to BUSY_TIMEOUT.
        """
        if self._path == IN_MEMORY:
            return self.write(sql, values)
        with translated_errors(self._path), self._reader_lock:
            self._require_same_files()
            if self._reader is None:
                self._reader = self._connect()
            return self._reader.execute(sql, values).fetchall()

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        SQLite shows a commit to others only after its sync. If the sync fails, the
        next commit overwrites this one in the WAL. (If the process ends before that,
        the next start may find it there. Then the changes are stored.)
        """
        with self._next_batch_lock:
            batch = self._next_batch
            index = len(batch.statements)
            batch.statements.append((sql, values))
        with batch.lock:
            if not batch.results:
                self._commit(batch)
        result = batch.results[index]
        if isinstance(result, list):
            return result
        with translated_errors(self._path):
            # Several threads may raise the same exception, and each would add its
            # traceback to it. So each raises a copy.
            raise copy(result) from result

    def _commit(self, batch: Batch) -> None:
        """Commit a batch, and set its results.

        If another program has locked the file, a thread may wait twice for up to
        BUSY_TIMEOUT: for the batch before, and for its own.
        """
        with self._writer_lock:
            # From here on, no statement joins this batch.
            with self._next_batch_lock:
                self._next_batch = Batch()
            # If Ctrl-C interrupts this thread, these results remain. Without any, the
            # next thread would commit the batch again.
            error = RuntimeError("Ctrl-C has interrupted the thread that commits")
            batch.results = [error] * len(batch.statements)
            batch.results = self._transact(batch.statements)

    def _transact(self, statements: list[tuple[str, Values]]) -> list[Rows | Exception]:
        """Execute statements in one transaction, and return their results."""
        try:
            self._require_same_files()
            if self._writer is None:
                self._writer = self._connect()
            with self._writer:  # Commits at its end, or rolls back after an exception.
                self._writer.execute("BEGIN IMMEDIATE")
                results = [
                    try_to_execute(self._writer, sql, values)
                    for sql, values in statements
                ]
        except Exception as error:
            return [error] * len(statements)
        return results

    def _connect(self) -> sqlite3.Connection:
        """Return a new connection.

        Called at the first request, not at startup: in between, gunicorn may fork (copy
        the process), and SQLite does not support open connections in the copy.
        """
        connection = connect(self._path)
        try:
            if self._path == IN_MEMORY:
                # In memory, each connection has a new database. Prepare this one, too.
                prepare(connection, self._path)
                return connection
            # Again: the file may have been replaced just before it was opened.
            self._require_same_files()
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            # Sync each commit: not every build of SQLite does so by default.
            connection.execute("PRAGMA synchronous = FULL")
            # A query opens the WAL. While it is open, other programs cannot change the
            # mode, and do not remove the WAL when they close the file.
            connection.execute(READ_PROBE).fetchall()
        except BaseException:  # Ctrl-C, too.
            connection.close()
            raise
        if len(self._files) == 1:
            # If the path is a symbolic link, the WAL is beside the file itself. (Two
            # threads may add the WAL. Then it is compared twice.)
            wal = os.path.realpath(self._path) + "-wal"
            self._files.append((wal, file_at(wal)))
        return connection

    def _require_same_files(self) -> None:
        """Raise StorageUnavailable if the file or its WAL is not at its path any more.

        A program that opens a file takes any WAL beside it for its own. So if somebody
        replaces `pets.db`, the next program that opens it would copy the old pets into
        the new file. And if the WAL is removed, no other program finds the pets in it.
        """
        if self._path == IN_MEMORY:
            return
        for path, file in self._files:
            if not file or file_at(path) != file:
                raise StorageUnavailable(
                    f"{path}: the file was moved, removed or replaced; put it back, "
                    "or restart the service"
                )

    def close(self) -> None:
        """Copy the WAL into the file, and close the connections.

        Python calls this at the end (`open_store` in app.py). SQLite copies the WAL,
        too, when its last connection closes, but not if the file was moved. If `read`
        or `write` is called later, it opens the file again.
        """
        with self._reader_lock, self._writer_lock:
            # Each of them: if this process has only read, it has no `_writer`, but the
            # WAL may have pets of another process.
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with suppress(sqlite3.Error):  # If it fails, the WAL stays.
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    connection.close()
            self._reader = self._writer = None
            del self._files[1:]  # The WAL.
