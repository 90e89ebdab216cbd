"""The pets in a file on the disk.

flaskr opens a connection for each request. `SqliteFile` keeps two open for all threads,
and does three things that need an explanation:

- It reads while it writes. In WAL mode (sqlite.org/wal.html), SQLite appends a commit
  to a second file, the write-ahead log (WAL), for example `pets.db-wal`. A query reads
  both files as they were when it began, so one connection reads while the other writes.
  When the WAL has grown, a commit also copies it into `pets.db` (a checkpoint).
- It shares syncs. The operating system first keeps in memory what a program writes to a
  file. A sync waits until it is on the disk. Without a sync, a loss of power may undo a
  commit. So each commit syncs the WAL, which may take some milliseconds. Threads that
  write meanwhile share the next commit.
- It refuses requests while its files are not in place. A program can still write to a
  file that somebody has moved or removed, but then nobody finds the pets.

Other programs may open the file as well: a backup, the shell sqlite3, or a second
process of the service that is just starting. SQLite lets only one of them write at a
time.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from threading import Lock

import storage
from storage import Rows, StorageUnavailable, Values


class Batch:
    """Statements of several threads that one of them commits, in one transaction."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.statements: list[tuple[str, Values]] = []
        # Whether a thread has started to commit this batch.
        self.commit_started = False
        # The rows of each statement, or its exception. Empty until the commit ends.
        self.results: list[Rows | Exception] = []


class FileInPlace:
    """A file that has to stay at its path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity = identity_at(path)

    def is_in_place(self) -> bool:
        """Return whether the file is still at its path."""
        return self._identity is not None and identity_at(self.path) == self._identity


def identity_at(path: str) -> tuple[int, int] | None:
    """Return the device and the inode number of what is at a path.

    No two files have the same two numbers. A file that is moved keeps its own, and a
    symbolic link that is left in its place has others. None means that nothing is
    there, or that this process may not look.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Seconds to wait while another program has locked the file. A write may wait twice: for
# the batch before its own, and for its own. These are four of the five seconds that
# `Database` promises.
BUSY_TIMEOUT = 2.0


class SqliteFile:
    """A Database in a file.

    One connection reads, and another one writes. A thread uses `_reader` only with
    `_reader_lock`, and `_writer` only with `_writer_lock`. As only one transaction
    writes at a time, pets appear in the order of their ids.

    Threads that write while another one commits share the next commit (group commit):

    1. A thread takes `_next_batch_lock`, adds its statement to the next batch, and
       releases the lock.
    2. The first thread that gets the lock of this batch waits for `_writer_lock`,
       because another thread may still commit the batch before. Meanwhile, more
       statements may join.
    3. Then it replaces the next batch by a new one, and commits its own.
    4. The other threads get the lock of the batch, one by one, and find their results.
       (With one lock for all batches, a thread whose result is ready would wait for
       the commit of a later batch.)

    While a thread holds a lock, it takes only later ones of this list: that of its
    batch, `_reader_lock`, `_writer_lock`, `_next_batch_lock`. So no two threads can
    block each other for ever.

    For example:

        thread 1             thread 2                 thread 3
        joins batch A
        commits A            joins batch B            joins batch B
                             waits for _writer_lock   waits for the lock of B
        returns its result   commits B
                             returns its result       returns its result
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        storage.require_sqlite()
        # The WAL is beside the file itself, not beside a symbolic link to it. (If this
        # link changes later, the service goes on with this file.)
        self._path = os.path.realpath(path)
        with (
            translated_errors(self._path, "it is not a pet store; choose another file"),
            # Closed at once, because gunicorn may fork later (see `_connect`).
            closing(storage.connect(self._path, BUSY_TIMEOUT)) as connection,
        ):
            create_or_check(connection, self._path)
            self._file = FileInPlace(self._path)
        self._wal: FileInPlace | None = None  # None until a connection has opened it.
        self._reader_lock = Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer_lock = Lock()
        self._writer: sqlite3.Connection | None = None
        self._next_batch_lock = Lock()
        self._next_batch = Batch()

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query. It sees a commit only after its sync.

        Another program delays a read only if it has locked the file exclusively. Then
        reads wait one after the other, each for up to BUSY_TIMEOUT: together, they may
        exceed the five seconds that `Database` promises.
        """
        with translated_errors(self._path), self._reader_lock:
            self._require_files_in_place()
            if self._reader is None:
                self._reader = self._connect()
            return self._reader.execute(sql, values).fetchall()

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        A write fails for one of these reasons:

        - SQLite refuses the statement. Only this thread gets the exception.
        - A file is not in place, or the transaction, its commit or its sync fails. Each
          thread of the batch gets the exception, and no query sees the changes. (After
          a failed sync, they are in the WAL until the next commit overwrites them. If
          the process ends before that, the next start may store them.)
        - Ctrl-C interrupts it, in a program that writes in its main thread (gunicorn
          and, by default, `flask run` do not). Then the changes may be stored. If this
          thread was committing, so may those of its whole batch, and the other threads
          get a RuntimeError.
        """
        with self._next_batch_lock:
            batch = self._next_batch
            index = len(batch.statements)
            batch.statements.append((sql, values))
        with batch.lock:
            if not batch.commit_started:
                self._commit(batch)
        if not batch.results:
            raise RuntimeError("Ctrl-C has interrupted the commit")
        result = batch.results[index]
        if isinstance(result, list):
            return result
        with translated_errors(self._path):
            # Several threads may raise the same exception, and each would add its
            # traceback to it. So each raises a copy.
            raise copy(result) from result

    def _commit(self, batch: Batch) -> None:
        """Commit a batch, and set its results."""
        with self._writer_lock:
            # From here on, no statement joins this batch.
            with self._next_batch_lock:
                self._next_batch = Batch()
            # Before the commit: if Ctrl-C interrupts it, the next thread must not store
            # the pets again.
            batch.commit_started = True
            batch.results = self._transact(batch.statements)

    def _transact(self, statements: list[tuple[str, Values]]) -> list[Rows | Exception]:
        """Execute statements in one transaction. Return the rows or error of each."""
        try:
            self._require_files_in_place()
            if self._writer is None:
                self._writer = self._connect()
            # `with` commits at its end. If anything fails, it rolls back.
            with self._writer:
                # IMMEDIATE: wait for SQLite's lock for writing now. After BEGIN alone,
                # the first write takes it. If a query came before (today, none does),
                # SQLite would not wait for another program, but fail at once.
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
        connection = storage.connect(self._path, BUSY_TIMEOUT)
        try:
            # Again: the file may have been replaced just before it was opened.
            self._require_files_in_place()
            # Sync each commit: not every build of SQLite does so by default.
            connection.execute("PRAGMA synchronous = FULL")
            open_wal(connection)
            wal = f"{self._path}-wal"
            # A process may have been killed before it synced a commit. Queries show
            # this commit now, so a loss of power must not undo it. (On Windows, this
            # fails. If the disk fails, the sync of the next commit says so.)
            with suppress(OSError), open(wal, "rb") as file:
                os.fsync(file.fileno())
            if self._wal is None:
                # Reader and writer may both get here. They find the same WAL.
                self._wal = FileInPlace(wal)
            # Again: the WAL may have been moved just before it was opened.
            self._require_files_in_place()
        except Exception:
            connection.close()
            raise
        return connection

    def _require_files_in_place(self) -> None:
        """Raise StorageUnavailable if the file or its WAL is not at its path any more.

        Otherwise, the service would confirm pets that nobody finds: other programs see
        another file at the path, or the file without its WAL. If a file is moved just
        after this check, the present request still uses it.
        """
        for file in (self._file, self._wal):
            if file is not None and not file.is_in_place():
                raise StorageUnavailable(
                    f"{file.path}: the file was moved, removed or replaced; put it "
                    "back, or see docs/server.md before you restart the service"
                )

    def close(self) -> None:
        """Copy the WAL into the file, empty it, and close the connections.

        Python calls this when the program ends (`open_store` in app.py). SQLite itself
        does this when the last connection to the file closes, but not if the file was
        moved. Then `pets.db-wal` would stay at the old path, and a new `pets.db` there
        would get our pets.

        If `read` or `write` is called later, it opens the file again.
        """
        with self._reader_lock, self._writer_lock:
            # Each of them: if this process has only read, it has no `_writer`, but the
            # WAL may have pets of another process.
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with suppress(sqlite3.Error):  # If it fails, the WAL stays.
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    connection.close()
            self._reader = self._writer = self._wal = None


def try_to_execute(
    connection: sqlite3.Connection, sql: str, values: Values
) -> Rows | Exception:
    """Execute a statement in a transaction. Return its rows, or its exception.

    After most errors, SQLite has undone this statement only, and the transaction goes
    on. After some, such as a full disk, it has undone the whole transaction. Then raise
    the exception.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except Exception as error:
        if not connection.in_transaction:
            raise
        return error


def open_wal(connection: sqlite3.Connection) -> None:
    """Set WAL mode, which the file stores, and open the WAL.

    While the WAL is open, other programs cannot change the mode, and do not remove the
    WAL when they close the file.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    # The first query opens the WAL, and `pets.db-shm`, which is memory that programs
    # share. It fails if the file system cannot share memory.
    connection.execute(storage.READ_PROBE).fetchall()


# This adds no pet (WHERE false). It fails if the file is read-only, or if the table has
# other columns: INSERT without names needs a value for each column.
WRITE_PROBE = """
    INSERT INTO pets SELECT id, name, category_id, status FROM pets WHERE false
"""


def create_or_check(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty file, or check that it is there. Set WAL mode."""
    with connection:  # Commits, or rolls back after an exception.
        # If several processes start at once, the first one takes the write lock here,
        # and creates the schema. The others wait.
        connection.execute("BEGIN IMMEDIATE")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        # SQLite's own table of the tables and indexes.
        tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        if version == 0 and not tables:
            connection.execute(storage.CREATE_TABLE)
            connection.execute(storage.CREATE_INDEX)
            connection.execute(f"PRAGMA user_version = {storage.SCHEMA_VERSION}")
        elif version != storage.SCHEMA_VERSION:
            raise StorageUnavailable(
                f"{path}: it is not a pet store of version {storage.SCHEMA_VERSION} "
                f"(its user_version is {version}); choose another file"
            )
        connection.execute(WRITE_PROBE)
    # Each connection sets WAL mode (not possible inside of a transaction). Do it here,
    # too: it fails if the folder cannot be written to.
    try:
        open_wal(connection)
    except sqlite3.OperationalError as error:
        # Another process may be setting it now. SQLite does not wait for that.
        if main_code(error) != sqlite3.SQLITE_BUSY:
            raise


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
    sqlite3.SQLITE_IOERR: (
        "the disk may be full or failing, or its file system cannot share memory"
    ),
    sqlite3.SQLITE_CORRUPT: "the disk may be failing; if not, restore a backup",
    sqlite3.SQLITE_NOTADB: "choose another file, or restore a backup",
    sqlite3.SQLITE_CANTOPEN: CHECK_ACCESS,
    sqlite3.SQLITE_READONLY: CHECK_ACCESS,
}


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
    except UnicodeDecodeError as error:
        # Python's sqlite3 raises it if an error of SQLite quotes what is damaged.
        hint = HINTS[sqlite3.SQLITE_CORRUPT]
        raise StorageUnavailable(f"{path}: it is damaged; {hint}") from error


def main_code(error: sqlite3.Error) -> int:
    """Return the main result code: 10 (SQLITE_IOERR) for 778 (SQLITE_IOERR_WRITE)."""
    # Python's sqlite3 raises some errors itself, without a code of SQLite.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
