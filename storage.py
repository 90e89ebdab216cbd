"""The pets in SQLite: all SQL and every sqlite3 call, and nothing of HTTP."""

import ctypes
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, NoReturn

# The user_version of the file, a number that SQLite leaves to the application. A file
# with another version is refused.
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
# The index lets SQLite find a page of one status. Like every index, it contains the id
# as well, so the pets of one status are in the order of their ids.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status)"

# The JSON of a pet. SQLite renders it twice as fast as json.dumps.
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
# Fails if the table or one of its columns is missing.
PROBE = "SELECT id, name, category_id, status FROM pets LIMIT 1"

Values = Mapping[str, object]
Rows = list[tuple[Any, ...]]


class StorageUnavailable(Exception):
    """The store cannot do what it was asked. The message says why."""


class PetStore:
    """The pets in one SQLite file, or in memory if the path is `:memory:`.

    Another store can take its place (see `create_app`). It needs the four public
    methods, and has to keep these promises:

    - Any number of threads may call the methods at once.
    - The JSON of a pet is bytes: an object with id, name, categoryId and status.
    - A name is any string that UTF-8 can encode, U+0000 included. A category id is any
      64-bit integer. Both are returned exactly as they were given.
    - Ids grow. Once a pet is visible, no pet with a smaller id appears later. Otherwise
      a client that follows the pages misses pets. (In many databases, a sequence or an
      identity column assigns an id before the commit: pet 8 may be committed before
      pet 7, and a client that has read pet 8 never sees pet 7.)
    - When `add` returns, the pet is stored for good. If `add` raises, the pet is not
      stored later. If a store cannot promise this, its documentation says so.
    - If the store cannot answer, a method raises StorageUnavailable within about five
      seconds. (PetStore waits longer only while the disk itself stalls.)
    - The constructor does not fail if a database server cannot be reached. Otherwise,
      the service would not start.
    """

    def __init__(self, path: str) -> None:
        """Create the file if it is missing, and check it if it is there.

        Raise StorageUnavailable if the file cannot be used. Its content is left
        unchanged then.
        """
        self._database = Database(path)
        # Close the database when the store is garbage-collected or Python exits.
        weakref.finalize(self, self._database.close)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return a page as a JSON array, and its last id if another page follows.

        The page has at most `limit` pets, ordered by id. Each has an id larger than
        `after` and, unless `status` is None, this status.
        """
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        rows = self._database.read(sql, values)
        last_id = rows[limit - 1][0] if len(rows) > limit else None
        page = b"[" + b",".join([pet for _, pet in rows[:limit]]) + b"]"
        return page, last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet on the disk, and return its id and its JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        [(pet_id, pet)] = self._database.write(INSERT_PET, values)
        return pet_id, pet

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if the store cannot answer a query."""
        self._database.read(PROBE, {})


# Seconds to wait for a lock that another process holds, at startup.
STARTUP_TIMEOUT = 5.0
# Seconds for one attempt to get that lock later, and for a read to open the files.
BUSY_TIMEOUT = 0.8
# Seconds for all attempts of a write.
WRITE_TIMEOUT = 5.0
# If an attempt fails while more writes than this are queued, all of them fail: the
# server has sixteen threads, and some of them have to be left for reads.
MAX_WAITING_WRITES = 8

# What SQLite, Python and the operating system may raise.
FAILURES = (sqlite3.Error, MemoryError, OSError)
# Result codes of SQLite (sqlite.org/rescode.html) that show a bug of this program, and
# those of a damaged file.
BUG_CODES = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}
DAMAGED_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# The cause of an error, or what to do about it.
CHECK_ACCESS = (
    "its folder must exist, and this user must be allowed to write to the folder and "
    "the file"
)
HINTS = {
    sqlite3.SQLITE_BUSY: "another program uses it",
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "the disk may be full or failing",
    sqlite3.SQLITE_CORRUPT: "restore a backup",
    sqlite3.SQLITE_NOTADB: "restore a backup, or choose another file",
    sqlite3.SQLITE_CANTOPEN: CHECK_ACCESS,
    sqlite3.SQLITE_PERM: CHECK_ACCESS,
    sqlite3.SQLITE_READONLY: CHECK_ACCESS,
}


class QueuedWrite(NamedTuple):
    """A statement, and the Future that gets its rows or the error after the commit."""

    future: Future[Rows]
    sql: str
    values: Values


class FileIds(NamedTuple):
    """The device and inode of a database and of its WAL.

    They stay the same if a file is renamed. A file that replaces an open file has
    others.
    """

    database: tuple[int, int]
    wal: tuple[int, int]


class Connections(NamedTuple):
    """The two connections to a database, the path of its WAL, and its files' ids."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection
    wal: str = ""
    file_ids: FileIds | None = None


class Database:
    """An SQLite database with one connection for reads and one for writes.

    A new operation needs only `read` and `write`.

    SQLite writes each commit to a second file, the write-ahead log (WAL). It copies the
    commit into the database later, in a checkpoint (sqlite.org/wal.html).

    SQLite goes on using an open file after somebody has removed or replaced it, and
    what it writes then is lost. So the files at the path are compared with the open
    ones before every use. If they differ, the files at the path are opened.

    The constructor closes what it opens, because a server may fork after it (see
    `_require_same_process`). The first read or write opens the two connections.

    Each connection has a lock. A thread that needs both locks takes the write lock
    first. The locks are reentrant, because in memory both are the same lock.
    """

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        self._in_memory = path == ":memory:"
        self._path = path if self._in_memory else os.path.abspath(path)
        self._pid: int | None = None
        self._connections: Connections | None = None
        # The ids of the files that were opened last. Their WAL may have to go.
        self._last_file_ids: FileIds | None = None
        self._is_damaged = False
        self._is_closed = False
        self._write_lock = threading.RLock()
        # In memory, both connections are the same one.
        self._read_lock = self._write_lock if self._in_memory else threading.RLock()
        self._queue: list[QueuedWrite] = []
        self._queue_lock = threading.Lock()
        # The committed batch whose threads still wait: see `_execute`. Only the thread
        # of the executor uses it.
        self._committed: list[tuple[QueuedWrite, Rows]] = []
        self._executor = ThreadPoolExecutor(1)
        if not self._in_memory:
            try:
                self._prepare_file()
            except FAILURES as error:
                self._raise_unavailable(error)

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""
        self._require_same_process()
        try:
            with self._read_lock:
                if connections := self._current_connections():
                    return connections.reader.execute(sql, values).fetchall()
            return self._read_after_opening(sql, values)
        except FAILURES as error:
            self._raise_unavailable(error)

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once its changes are on the disk.

        A commit waits until the disk has synced. That takes milliseconds, no matter how
        many threads wait for it. So the statement is queued, and one thread commits
        everything that is queued in one transaction (group commit). If one statement
        fails, all of them fail.
        """
        self._require_same_process()
        future: Future[Rows] = Future()
        with self._queue_lock:
            # If others are queued, a commit is submitted already. It takes the queue
            # under the same lock.
            if not self._queue:
                try:
                    self._executor.submit(self._commit_queue)
                except (RuntimeError, MemoryError) as error:
                    # Python is shutting down, or no thread can start.
                    self._raise_unavailable(error)
            self._queue.append(QueuedWrite(future, sql, values))
        try:
            # Wait for the commit. If it fails, result() raises its exception.
            return future.result()
        except FAILURES as error:
            self._raise_unavailable(error)

    def close(self) -> None:
        """Close the connections for good, after the statements in progress."""
        was_forked = self._pid is not None and self._pid != os.getpid()
        if was_forked:
            # A connection of the parent process must not be closed, and closing it may
            # hang. So Python must never deallocate it.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections))
            return
        # Commits that are submitted are still executed.
        self._executor.shutdown(wait=False)
        with self._write_lock:
            self._is_closed = True
            with suppress(Exception):
                self._checkpoint()
            self._close_connections()

    def _require_same_process(self) -> None:
        """Raise StorageUnavailable if this process was forked after the first use.

        SQLite does not support a connection that a fork has copied, not even closing it
        (sqlite.org/howtocorrupt.html, section 2.6), and the locks of this object may be
        held by threads that do not exist in this process.
        """
        if self._pid is None:
            self._pid = os.getpid()
        if self._pid != os.getpid():
            raise self._unavailable(
                "it was opened before this process was forked; start processes with "
                "the method spawn or forkserver of multiprocessing instead"
            )

    def _read_after_opening(self, sql: str, values: Values) -> Rows:
        """Open the files at the path, and return the rows of a query."""
        # Without a timeout, reads would hold all threads of the server while a write
        # waits for another process.
        if not self._write_lock.acquire(timeout=BUSY_TIMEOUT):
            raise self._unavailable("another request is writing to it or opening it")
        try:
            connections = self._current_connections() or self._reopen()
            with self._read_lock:
                return connections.reader.execute(sql, values).fetchall()
        finally:
            self._write_lock.release()

    def _commit_queue(self) -> None:
        """Commit all queued writes in one transaction.

        After the commit, their threads go on at once if no other write is queued.
        Otherwise, the next run lets them go on, while it waits for the disk itself.
        """
        # Empty until the transaction has begun.
        batch: list[QueuedWrite] = []
        try:
            with self._write_lock:
                writer = self._begin()
                batch = self._take_queue()
                results = self._execute(writer, batch)
        except Exception as error:
            # The previous batch is on the disk.
            self._set_results()
            # If the transaction could not begin, everything that is queued fails.
            for write in batch or self._take_queue():
                write.future.set_exception(error)
        else:
            self._committed = list(zip(batch, results, strict=True))
            # A write that is queued after this check does no harm.
            if not self._queue:
                self._set_results()

    def _set_results(self) -> None:
        """Give the writes in `_committed` their rows, so that their threads go on."""
        committed, self._committed = self._committed, []
        for write, rows in committed:
            write.future.set_result(rows)

    def _take_queue(self) -> list[QueuedWrite]:
        """Empty the queue, and return what was in it."""
        with self._queue_lock:
            writes, self._queue = self._queue, []
        return writes

    def _begin(self) -> sqlite3.Connection:
        """Begin a transaction on the files at the path, and return its connection."""
        deadline = monotonic() + WRITE_TIMEOUT
        while True:
            try:
                connections = self._current_connections() or self._reopen()
                # A no-op, unless an earlier rollback has failed.
                connections.writer.rollback()
                # It waits up to BUSY_TIMEOUT for the lock.
                connections.writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                # The previous batch is on the disk, and does not wait any longer.
                self._set_results()
                too_many = len(self._queue) > MAX_WAITING_WRITES
                if not is_busy(error) or too_many or monotonic() > deadline:
                    raise
            else:
                # The files may have been removed while this thread waited.
                if self._current_connections():
                    return connections.writer
                # Try again with the files that are there now.
                connections.writer.rollback()

    def _execute(
        self, writer: sqlite3.Connection, batch: list[QueuedWrite]
    ) -> list[Rows]:
        """Execute and commit a batch, or roll back all of it."""
        try:
            results = [
                writer.execute(write.sql, write.values).fetchall() for write in batch
            ]
            # The threads of the previous batch go on while COMMIT waits for the disk.
            # Before, they would slow down the statements above, because only one thread
            # runs Python at a time. (With a sync of 4 ms, a third fewer pets were added
            # per second.)
            self._set_results()
            writer.execute("COMMIT")
        except Exception:
            writer.rollback()
            # A rollback does not erase the WAL. If COMMIT could not sync, the whole
            # transaction is there, and the next startup would store it. The next commit
            # overwrites it: so commit something, which changes nothing.
            with suppress(sqlite3.Error):
                writer.execute(f"PRAGMA user_version = {get_version(writer)}")
            raise
        return results

    def _current_connections(self) -> Connections | None:
        """Return the open connections if their files are still those at the path."""
        connections = self._connections
        if self._in_memory or not connections:
            return connections
        if self._is_damaged:
            return None
        ids = get_file_ids(self._path, connections.wal)
        return connections if ids == connections.file_ids else None

    def _reopen(self) -> Connections:
        """Open the files at the path. Needs the write lock.

        If other files are open, close them first. If the same files are open, because
        SQLite has found damage in them, close them afterwards.
        """
        if self._is_closed:
            raise self._unavailable("the store is closed")
        if self._in_memory:
            self._connections = self._open_memory()
            return self._connections
        if get_size(self._path) == 0:
            # SQLite would delete the WAL, and the pets in it.
            raise self._unavailable("it is empty; move the database or a backup there")
        opened = self._connections
        if opened and get_file_ids(self._path, opened.wal) != opened.file_ids:
            self._close_moved_files()
        if self._last_file_ids:
            self._remove_old_wal(self._last_file_ids)
        connections = self._open_file()
        self._close_connections()
        self._is_damaged = False
        self._connections = connections
        self._last_file_ids = connections.file_ids
        return connections

    def _close_moved_files(self) -> None:
        """Close the open files, which are no longer at the path."""
        try:
            self._checkpoint()
        except sqlite3.Error as error:
            # A damaged file cannot be checkpointed. Keep it open until another file is
            # at the path: if it were closed before, that file could get its inode.
            is_damaged = result_code(error) in DAMAGED_CODES
            is_replaced = get_size(self._path) is not None
            if not (is_damaged and is_replaced):
                raise
        self._close_connections()

    def _checkpoint(self) -> None:
        """Copy what is only in the WAL into the open database.

        SQLite does this when it closes a database, but not if the database has been
        moved. The next program might then open it without its WAL.
        """
        if not self._connections:
            return
        # A no-op, unless an earlier rollback has failed.
        self._connections.writer.rollback()
        checkpoint = self._connections.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        busy, _, _ = checkpoint.fetchone()
        if busy:
            raise self._unavailable("another program still reads the old files")

    def _close_connections(self) -> None:
        """Close the connections after the reads in progress. Needs the write lock."""
        with self._read_lock:
            connections, self._connections = self._connections, None
            if connections:
                connections.reader.close()
                connections.writer.close()

    def _remove_old_wal(self, closed: FileIds) -> None:
        """Remove the WAL of a closed file that another file has replaced.

        The WAL is still there if the closed file is damaged, or if another program uses
        that file. SQLite would apply the WAL and its index, the file -shm, to the new
        file.
        """
        wal = self._path_of("-wal")
        ids = get_file_ids(self._path, wal)
        if not ids or ids.wal != closed.wal or ids.database == closed.database:
            return
        if get_size(wal):
            # It may help to repair the old file.
            os.replace(wal, f"{wal}-damaged")
        else:
            os.remove(wal)
        Path(self._path_of("-shm")).unlink(missing_ok=True)

    def _open_memory(self) -> Connections:
        connection = self._connect("mode=memory", 0)
        create_schema(connection)
        return Connections(connection, connection)

    def _open_file(self) -> Connections:
        """Open two connections to the files at the path.

        If somebody moves a file meanwhile, the connections may open different files. So
        the files are compared before and after.
        """
        self._require_pet_store()
        wal = self._path_of("-wal")
        opened: list[sqlite3.Connection] = []
        # SQLite creates the WAL at the first read, and deletes it when the last
        # connection is closed. So this connection stays open until the others use it.
        with closing(self._connect("mode=rw", BUSY_TIMEOUT)) as first:
            self._set_wal_mode(first, BUSY_TIMEOUT)
            first.execute(PROBE).fetchall()
            before = get_file_ids(self._path, wal)
            try:
                for _ in range(2):
                    opened.append(self._connect("mode=rw", BUSY_TIMEOUT))
                    # SQLite opens the WAL at the first read.
                    opened[-1].execute(PROBE).fetchall()
                reader, writer = opened
                reader.execute("PRAGMA query_only = ON")
                # COMMIT returns after the WAL is on the disk.
                writer.execute("PRAGMA synchronous = FULL")
                after = get_file_ids(self._path, wal)
                if not after or after != before:
                    raise self._unavailable("it was moved while it was being opened")
            except Exception:
                for connection in opened:
                    connection.close()
                raise
        return Connections(reader, writer, wal, after)

    def _path_of(self, suffix: str) -> str:
        """Return the path of a file that SQLite keeps next to the database.

        It is next to the file that a symbolic link leads to.
        """
        return os.path.realpath(self._path) + suffix

    def _connect(self, options: str, timeout: float) -> sqlite3.Connection:
        """Return a new connection with options of a URI (sqlite.org/uri.html)."""
        uri = "file:" if self._in_memory else Path(self._path).as_uri()
        connection = sqlite3.connect(
            f"{uri}?{options}",
            uri=True,
            timeout=timeout,
            isolation_level=None,  # This class begins and commits transactions.
            check_same_thread=False,
        )
        # Text is returned as bytes, so that the JSON of a pet is sent as it is.
        connection.text_factory = bytes
        return connection

    def _prepare_file(self) -> None:
        """Create the file if it is missing or empty, otherwise check it."""
        if os.path.isdir(self._path):
            raise self._unavailable("it is a folder; choose a file in it")
        self._roll_back_journal()
        self._create_if_missing()
        self._require_pet_store(STARTUP_TIMEOUT)
        self._require_intact()
        with closing(self._connect("mode=rw", STARTUP_TIMEOUT)) as connection:
            self._set_wal_mode(connection, STARTUP_TIMEOUT)

    def _roll_back_journal(self) -> None:
        """Roll back a transaction in which a process was killed.

        Without WAL mode, as when the file is created, SQLite keeps the old content in a
        journal. It rolls back by itself, but only on a connection that may write.
        """
        if get_size(self._path) and os.path.exists(self._path_of("-journal")):
            self._require_version_without_wal()
            with closing(self._connect("mode=rw", STARTUP_TIMEOUT)) as connection:
                # The first read rolls back.
                get_version(connection)

    def _create_if_missing(self) -> None:
        """Create the database if the file is missing or empty."""
        wal = self._path_of("-wal")
        # Look for the WAL first: another process may create both files after that, and
        # its WAL would look like one whose database is missing.
        has_wal = bool(get_size(wal))
        if get_size(self._path):
            return
        if has_wal:
            # SQLite would delete the WAL, and the pets in it.
            raise self._unavailable(
                f"it is missing or empty, but {wal} contains changes; put the "
                "database back, or delete that file"
            )
        # Several processes may do this at once: the first one creates the schema.
        with closing(self._connect("mode=rwc", STARTUP_TIMEOUT)) as connection:
            was_created = create_schema(connection)
        if was_created:
            log = logging.getLogger(__name__)
            log.warning("Created a new database: %s", self._path)

    def _require_intact(self) -> None:
        """Raise StorageUnavailable if SQLite finds damage in the file.

        CHECK constraints are not checked: that would need a connection that may write.
        """
        with closing(self._connect("mode=ro", STARTUP_TIMEOUT)) as connection:
            [(verdict,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != b"ok":
            reason = " ".join(verdict.decode().split())
            raise self._unavailable(f"it is damaged ({reason}); restore a backup")

    def _require_pet_store(self, timeout: float = BUSY_TIMEOUT) -> None:
        """Raise StorageUnavailable if the file is not a pet store of this version.

        A file of another program is left as it is, its WAL included.
        """
        self._require_version_without_wal()
        with closing(self._connect("mode=ro", timeout)) as connection:
            self._require_version(connection)
            try:
                connection.execute(PROBE).fetchall()
            except sqlite3.OperationalError as error:
                if result_code(error) != sqlite3.SQLITE_ERROR:
                    raise
                raise self._not_a_pet_store(error) from error

    def _require_version_without_wal(self) -> None:
        """Raise StorageUnavailable if the file itself has another version."""
        # SQLite opens an immutable file without its WAL, and creates no other files.
        with closing(self._connect("mode=ro&immutable=1", 0)) as connection:
            try:
                self._require_version(connection)
            except sqlite3.DatabaseError as error:
                # After a crash in a checkpoint, the file is complete only with its WAL.
                if result_code(error) != sqlite3.SQLITE_CORRUPT:
                    raise

    def _require_version(self, connection: sqlite3.Connection) -> None:
        version = get_version(connection)
        if version != SCHEMA_VERSION:
            reason = f"its user_version is {version}, not {SCHEMA_VERSION}"
            raise self._not_a_pet_store(reason)

    def _set_wal_mode(self, connection: sqlite3.Connection, timeout: float) -> None:
        """Set WAL mode. SQLite does not wait for locks here, so try again."""
        if not os.access(self._path, os.W_OK):
            raise self._unavailable(
                "this user may not write to it; change its owner or its mode"
            )
        deadline = monotonic() + timeout
        while True:
            try:
                [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
                break
            except sqlite3.OperationalError as error:
                if not is_busy(error) or monotonic() > deadline:
                    raise
            sleep(0.01)
        if mode != b"wal":
            raise self._unavailable(
                "its file system does not support WAL mode; use a local disk"
            )

    def _raise_unavailable(self, error: Exception) -> NoReturn:
        """Raise StorageUnavailable, or the error itself if it shows a bug.

        If the file is damaged, the next use opens it again.
        """
        if not isinstance(error, sqlite3.Error):
            raise self._unavailable(str(error) or "out of memory") from error
        code = result_code(error)
        # Errors of Python's sqlite3, such as a missing value, have no code.
        if not code or code in BUG_CODES:
            raise error
        if code in DAMAGED_CODES:
            self._is_damaged = True
        hint = f"; {HINTS[code]}" if code in HINTS else ""
        raise self._unavailable(f"{error}{hint}") from error

    def _not_a_pet_store(self, reason: object) -> StorageUnavailable:
        return self._unavailable(
            f"it is not a pet store of this version ({reason}); choose another file, "
            "or upgrade this one"
        )

    def _unavailable(self, reason: object) -> StorageUnavailable:
        return StorageUnavailable(f"{self._path}: {reason}")


def get_size(path: str) -> int | None:
    """Return the size of a file in bytes, or None if it is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def get_file_ids(path: str, wal_path: str) -> FileIds | None:
    """Return the ids of a database and its WAL.

    Return None if one of the files is missing, or if the database is empty.
    """
    try:
        database, wal = os.stat(path), os.stat(wal_path)
    except OSError:
        return None
    if database.st_size == 0:
        return None
    return FileIds((database.st_dev, database.st_ino), (wal.st_dev, wal.st_ino))


def get_version(connection: sqlite3.Connection) -> int:
    """Return the user_version of the database."""
    version: int
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    return version


def create_schema(connection: sqlite3.Connection) -> bool:
    """Create the schema unless it is there, and return whether it was created."""
    connection.execute("BEGIN IMMEDIATE")
    is_new = get_version(connection) == 0
    if is_new:
        connection.execute(CREATE_TABLE)
        connection.execute(CREATE_INDEX)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
    return is_new


def result_code(error: Exception) -> int:
    """Return the result code of SQLite, or 0 for an error of Python's sqlite3."""
    # The lowest byte of the extended result code.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection held a lock."""
    return result_code(error) == sqlite3.SQLITE_BUSY
