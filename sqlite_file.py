"""The pets in a file on the disk.

`SqliteFile` does three things that need an explanation:

- It reads while it writes. In WAL mode (sqlite.org/wal.html), SQLite appends a commit
  to a second file, the write-ahead log (WAL), for example `pets.db-wal`. A query reads
  the WAL as far as it reached when the query began, so one connection reads while
  another one writes. When the WAL has grown, a commit also copies it into `pets.db` (a
  checkpoint).
- It shares commits between threads. The operating system first keeps in memory what a
  program writes to a file. A sync waits until it is on the disk. Without a sync, a loss
  of power may undo a commit. So each commit syncs the WAL, which may take some
  milliseconds. Threads that write meanwhile share the next commit (group_commit.py).
- It refuses requests while its files are not in place. A program can still write to a
  file that somebody has moved or removed, but then nobody finds the pets.

Other programs may open the file as well: a backup, the shell sqlite3, or a new process
of the service before the old one has ended. SQLite lets only one of them write at a
time. They share what they know of the WAL in a third file, `pets.db-shm`.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Lock

import storage
from group_commit import GroupCommit, Result, Statement
from storage import Rows, StorageUnavailable, Values

# Seconds that SQLite waits while another program has locked the file. A write may wait
# twice: for the batch before its own, and for its own (`GroupCommit`). Together, that
# is less than the five seconds that `Database` promises.
BUSY_TIMEOUT = 2.0


class SqliteFile:
    """A Database in a file.

    One connection reads, and another one writes. A thread uses `_reader` only with
    `_reader_lock`, and `_writer` only with the `commit_lock` of `_group_commit`. So one
    query runs at a time, beside one transaction that writes. As transactions do not
    overlap, pets appear in the order of their ids.
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if it cannot be used.
        """
        storage.require_sqlite()
        # The WAL is beside the file itself, not beside a symbolic link to it.
        self._path = os.path.realpath(path)
        with (
            translated_errors(
                self._path, default_hint="it is not a pet store; choose another file"
            ),
            # Closed at once, because gunicorn may fork later (see `_connect`).
            closing(storage.connect(self._path, BUSY_TIMEOUT)) as connection,
        ):
            create_or_check(connection, self._path)
            # The files that have to stay in place. `_connect` adds the other two.
            self._identities = {self._path: identity_at(self._path)}
        self._reader_lock = Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._wal_is_copied = False  # Since the last commit (see `_copy_wal`).
        self._group_commit = GroupCommit(self._transact)

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query.

        If another program has locked the file even for readers (PRAGMA locking_mode =
        EXCLUSIVE), reads wait one after the other, and may take longer than the five
        seconds that `Database` promises.
        """
        with translated_errors(self._path), self._reader_lock:
            self._require_files_in_place(self._reader)
            if self._reader is None:
                self._reader = self._connect()
                self._reader.execute("PRAGMA query_only = ON")  # Refuse changes.
            return self._reader.execute(sql, values).fetchall()

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        If SQLite refuses the statement, only this thread gets the exception. If the
        whole transaction fails (a file is not in place, or the disk is full), each
        thread of the batch gets the exception, and no query sees the changes.

        If the sync fails, one promise of `Database` does not hold: that nothing has
        changed. The changes are in the WAL already. From now on, SQLite ignores them
        (`pets.db-shm` says how far the WAL counts), but it does not erase them: the
        next commit overwrites them. If the process is killed before, the next start
        reads the whole WAL and takes them for a commit, so the pet is there.
        """
        result = self._group_commit.run((sql, values))
        if isinstance(result, list):
            return result
        with translated_errors(self._path):
            raise result

    def _transact(self, statements: list[Statement]) -> list[Result]:
        """Execute statements in one transaction. Return the result of each.

        `_group_commit` calls this, with its `commit_lock` held.
        """
        try:
            self._require_files_in_place(self._writer)
            if self._writer is None:
                self._writer = self._connect()
            with self._writer:  # Commits at its end, or rolls back after an error.
                # IMMEDIATE: wait for SQLite's lock for writing now, and once. After
                # BEGIN alone, each statement would wait for it again.
                self._writer.execute("BEGIN IMMEDIATE")
                results = [
                    try_to_execute(self._writer, sql, values)
                    for sql, values in statements
                ]
            self._wal_is_copied = False  # Another thread may have copied it too early.
        except Exception as error:
            return [error] * len(statements)
        return results

    def _connect(self) -> sqlite3.Connection:
        """Return a new connection.

        Called by the first read and by the first write, not at startup: in between,
        gunicorn may fork (copy the process), and SQLite does not support open
        connections in the copy.
        """
        connection = storage.connect(self._path, BUSY_TIMEOUT)
        try:
            # Sync each commit: not every build of SQLite does so by default. On macOS,
            # a sync reaches the disk only with fullfsync.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA fullfsync = ON")
            open_wal(connection)
        except Exception:
            connection.close()
            raise
        # Now, the WAL and `pets.db-shm` are there, too. What is noted already stays: if
        # a file was replaced just now, the next request sees it. (In a new dict: other
        # threads may loop over the old one.)
        files = (f"{self._path}-wal", f"{self._path}-shm")
        found = {path: identity_at(path) for path in files}
        self._identities = {**found, **self._identities}
        return connection

    def _require_files_in_place(self, connection: sqlite3.Connection | None) -> None:
        """Raise StorageUnavailable if one of the files is not at its path any more.

        Otherwise, the service would confirm pets that nobody finds: other programs see
        another file at the path, or the file without its WAL. If a file is moved just
        after this check, the present request still uses it.
        """
        for path, identity in self._identities.items():
            if identity_at(path) != identity:
                self._copy_wal(connection)
                raise StorageUnavailable(
                    f"{path}: the file was moved, removed or replaced; see "
                    "docs/server.md before you restart the service"
                )

    def _copy_wal(self, connection: sqlite3.Connection | None) -> None:
        """Copy the WAL into the file that a connection has open, and empty the WAL.

        SQLite finds a WAL by its name: after a move, programs use or remove it for
        another file there. So copy it at once, but not again: it may have their pets.
        """
        if connection is not None and not self._wal_is_copied:
            connection.execute("PRAGMA busy_timeout = 0")  # Wait for nobody.
            with suppress(sqlite3.Error):  # If it cannot be copied, the WAL stays.
                [(is_busy, *_)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self._wal_is_copied = not is_busy
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")

    def close(self) -> None:
        """Copy the WAL into the file, empty it, and close the connections.

        Python calls this when the program ends (`open_store` in app.py), but not if it
        is killed. When the last connection closes, SQLite itself copies and removes the
        WAL, but not if the file was moved. So it is copied here.

        If the file was removed, or another one was moved over it, it has no path any
        more, and all its pets are gone when it is closed. (`mv` to another disk copies
        and removes it.) Until then, deploy/rescue can copy it.
        """
        with self._reader_lock, self._group_commit.commit_lock:
            # Both can copy the WAL. A process that has only read has no `_writer`.
            for connection in (self._reader, self._writer):
                self._copy_wal(connection)
                if connection is not None:
                    connection.close()
            # A later request, for example of a daemon thread, opens the file again.
            self._reader = self._writer = None
            self._identities = {self._path: self._identities[self._path]}


def identity_at(path: str) -> tuple[int, int] | None:
    """Return two numbers that identify what is at a path: its device, and its inode.

    A file that is moved keeps its numbers, and another file at its path has others.
    (`cp` over a file changes its content only, so that is not noticed.) None means that
    nothing is there, or that it cannot be looked at.
    """
    try:
        # lstat does not follow a link: a link at the path is another file.
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def try_to_execute(connection: sqlite3.Connection, sql: str, values: Values) -> Result:
    """Execute a statement in a transaction. Return its rows, or its exception.

    After most errors, SQLite has undone this statement only: return the exception.
    After some, such as a full disk, it has undone and ended the transaction: raise the
    exception, because the next statements would be outside of it.
    """
    try:
        return connection.execute(sql, values).fetchall()
    except Exception as error:
        if not connection.in_transaction:
            raise
        return error


def open_wal(connection: sqlite3.Connection) -> None:
    """Set WAL mode, and open the WAL."""
    connection.execute("PRAGMA journal_mode = WAL")
    # The first query opens the WAL, and `pets.db-shm`. It fails if the file system
    # cannot share memory.
    connection.execute(storage.READ_PROBE).fetchall()


# This adds no pet (WHERE false). It fails if the file is read-only, if a column has
# another name, or if there are more columns (INSERT needs a value for each).
WRITE_PROBE = """
    INSERT INTO pets SELECT id, name, category_id, status FROM pets WHERE false
"""


def create_or_check(connection: sqlite3.Connection, path: str) -> None:
    """Create the schema in an empty file, or check that it is there. Set WAL mode."""
    with connection:
        # IMMEDIATE: until the commit, no other process can create the schema.
        connection.execute("BEGIN IMMEDIATE")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        # All tables but SQLite's own list of last ids: `deploy/restore empty` makes a
        # file that has only this list, so that no id is used again.
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE name != 'sqlite_sequence'"
        ).fetchall()
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
    # Each connection sets WAL mode, outside of a transaction, because another program
    # may have changed it. Do it here, too: it fails if the folder cannot be written to.
    open_wal(connection)


CHECK_ACCESS = (
    "it must be a file in an existing folder, and this user must be allowed to write "
    "to the folder, to the file, and to the files -wal and -shm next to it"
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
        yield
    except sqlite3.Error as error:
        # The last byte is the main code: 10 (SQLITE_IOERR) of 778 (SQLITE_IOERR_WRITE).
        # Errors that Python raises itself have none.
        hint = HINTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, default_hint)
        if hint is None:
            raise
        raise StorageUnavailable(f"{path}: {error}; {hint}") from error
