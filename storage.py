"""The pets in SQLite: every character of SQL, every sqlite3 call, nothing of HTTP.

The SQL and PetStore are the lesson: whoever reads to learn may stop below PetStore.
What follows is for many clients at once, and for when something fails.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

# Kept in the file, as its user_version: a start refuses any other.
SCHEMA_VERSION = 1
# IMMEDIATE: where several processes start at once, one makes the table, and the others
# wait. STRICT: a column takes no value of another type. By the index, a page of one
# status is found without reading the pets of the others.
CREATE_SCHEMA = f"""
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT;
    CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status, id);
    PRAGMA user_version = {SCHEMA_VERSION};
    COMMIT;
"""

# The one definition of a pet's JSON. SQLite makes it, faster than json.dumps could, and
# it is sent as it is.
PET = "json_object('id', id, 'name', name, 'categoryId', category_id, 'status', status)"

INSERT_PET = f"""
    INSERT INTO pets (name, category_id, status)
    VALUES (:name, :category_id, :status)
    RETURNING id, {PET}
"""
SELECT_PET = f"SELECT {PET} FROM pets WHERE id = :id"
# Fails unless the table and its columns are there.
SELECT_ANY = "SELECT id, name, category_id, status FROM pets LIMIT 1"


def _select_page(condition: str) -> str:
    """Return the query for a page: its JSON, and its last id if another page follows.

    First come the ids of the page, then the last of them, then the JSON of all up to
    it, and whether there are pets past it: iif(a, b, c) is Python's `b if a else c`.
    The JSON is read along the key or the index, both of which are in the order of ids.
    """
    return f"""
        WITH
            page AS (
                SELECT id FROM pets WHERE id > :after {condition}
                ORDER BY id LIMIT :limit
            ),
            end_of_page AS (SELECT max(id) AS last FROM page)
        SELECT
            (
                SELECT json_group_array({PET}) FROM pets
                WHERE id > :after AND id <= last {condition}
            ),
            iif(EXISTS (SELECT 1 FROM pets WHERE id > last {condition}), last, NULL)
        FROM end_of_page
    """


SELECT_PAGE = _select_page("")
SELECT_PAGE_OF_STATUS = _select_page("AND status = :status")

Values = Mapping[str, object]
Rows = list[tuple[Any, ...]]


class StorageUnavailable(Exception):
    """SQLite cannot do what it was asked; the message says why."""


class PetStore:
    """The pets in one database file, or in memory where the path is `:memory:`.

    JSON comes out as bytes, ready to be sent (Place.connect, below, sees to that). Any
    number of threads may call the methods at once. Each raises StorageUnavailable where
    SQLite cannot answer.

    Reads go to the database, changes to the queue. Both return the rows of a statement,
    for a change those of its RETURNING. The queue commits many changes at once: one
    that breaks a CHECK or NOT NULL makes all fail, so `schemas` refuses it first.
    """

    def __init__(self, path: str) -> None:
        """Open the file, or make it; one that is no pet store is left as it is."""
        # For programs that fork, that is, copy their process: a copy of an open SQLite
        # file could ruin it. None forks in this block, and later forks close _stores.
        with _forking:
            self.database = Database(path)
            self.queue = WriteQueue(self.database)
            _stores.add(self)
        # Closes the connections when Python drops the store.
        weakref.finalize(self, self.database.close)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return the JSON of a page, and its last id if another page follows.

        It has at most `limit` pets past the id `after`, of one status or any.
        """
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        # There is always one row; it has an empty array where there are no pets.
        pets, last_id = self.database.read(sql, values)[0]
        return pets, last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet; once it is on the disk, return its id and JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        pet_id, pet = self.queue.write(INSERT_PET, values)[0]
        return pet_id, pet

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if there is no such pet."""
        rows = self.database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise unless the database answers a query."""
        self.database.read(SELECT_ANY, {})


# Whoever reads to learn may stop here.

# Seconds that SQLite waits for another process, at the start and later, before it says
# that the database is busy; and seconds that a write waits for its turn.
START_WAIT = 5.0
BUSY_WAIT = 0.25
WRITE_WAIT = 5.0
# How many writes wait while another process holds the file. Fewer than the server has
# threads: the others are left for reads.
SEATS = 8


class DatabaseBusy(StorageUnavailable):
    """Another process holds the file."""


class WriteQueue:
    """Statements on their way to the disk: one thread stores all that wait at once.

    A disk syncs a few hundred times a second, however many threads wait for it. So what
    comes while one transaction is written shares the next. Each thread waits for a
    Future, a box into which the writing thread puts the rows or the error.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: dict[Future[Rows], tuple[str, Values]] = {}
        self._is_stalled = False
        self._executor = ThreadPoolExecutor(1)

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement once what it wrote is on the disk.

        What is refused (StorageUnavailable) is never written later: it is withdrawn
        first, and where its transaction has begun, the outcome is waited for.
        """
        write: Future[Rows] = Future()
        try:
            with self._lock:
                if self._is_stalled and len(self._waiting) >= SEATS:
                    raise StorageUnavailable("the database is busy, and many wait")
                self._waiting[write] = sql, values
            # Where this write is taken along by another, there will be nothing to do.
            self._executor.submit(self._store_all)
            return write.result(WRITE_WAIT)
        except (TimeoutError, RuntimeError) as error:
            # RuntimeError: no thread takes work where the interpreter ends.
            if write.cancel():
                reason = str(error) or "the database was busy for too long"
                raise StorageUnavailable(reason) from error
            return write.result()
        finally:
            # Also where this thread is interrupted (KeyboardInterrupt).
            with self._lock:
                self._waiting.pop(write, None)

    def _store_all(self) -> None:
        """Write all that waits, and what comes meanwhile, in one transaction each.

        A transaction succeeds or fails as a whole: SQLite rolls back all of it by
        itself where it runs out of memory, and what came after would be written alone.
        """
        stored: dict[Future[Rows], Rows] = {}
        while self._waiting:
            taken: dict[Future[Rows], tuple[str, Values]] = {}
            try:
                with self._database.transaction() as connection:
                    taken = self._take()
                    self._is_stalled = False
                    outcomes = {
                        write: connection.execute(*statement).fetchall()
                        for write, statement in taken.items()
                    }
                    # Now the disk syncs. Woken earlier, the threads would take the
                    # interpreter from this one at each of its statements.
                    _tell(stored)
            except Exception as error:
                _tell(stored)
                # While another process holds the file, the first may go on waiting.
                self._is_stalled = isinstance(error, DatabaseBusy)
                for write in taken or self._take(SEATS if self._is_stalled else 0):
                    write.set_exception(error)
            else:
                stored = outcomes
        self._is_stalled = False
        _tell(stored)

    def _take(self, first: int = 0) -> dict[Future[Rows], tuple[str, Values]]:
        """Return what waits from `first` on; from now on it cannot be withdrawn."""
        with self._lock:
            writes = list(self._waiting)[first:]
            taken = {write: self._waiting.pop(write) for write in writes}
        # What has been withdrawn, but has not left by itself yet, is left out.
        return {
            write: statement
            for write, statement in taken.items()
            if write.set_running_or_notify_cancel()
        }


def _tell(stored: dict[Future[Rows], Rows]) -> None:
    """Give each write its rows, once."""
    while stored:
        write, rows = stored.popitem()
        write.set_result(rows)


class Database:
    """A database with one connection that reads and one that writes.

    Each has a lock, and so one owner at a time. To open or to close them takes both
    locks, `_writing` first, so that all that runs has ended. Before every use, the
    files at the path are compared with those that are open: SQLite goes on with these,
    and what it wrote to a file that was removed would be lost.
    """

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, 3.38 or newer is needed")
        self._place = Place(path)
        self._connections: Connections | None = None
        # Reentrant: a dropped store is closed by any thread, even one that has a lock.
        self._writing = threading.RLock()
        # In memory there is but one connection.
        self._reading = self._writing if self._place.is_memory else threading.RLock()
        self._open_anew(is_start=True)

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query on the files that are at the path now."""
        while True:
            with self._reading:
                if connections := self._current():
                    try:
                        return connections.reader.execute(sql, values).fetchall()
                    except sqlite3.Error as error:
                        raise self._failure(error) from error
            self._open_anew()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the body of a `with` block as one transaction, on the disk at its end.

        Raises DatabaseBusy, before the body, while another process writes.
        """
        with self._writing:
            while not (connections := self._current()):
                self._open_anew()
            connection = connections.writer
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise self._failure(error) from error
            finally:
                # After a COMMIT, there is nothing to roll back.
                connection.rollback()

    def pause(self) -> None:
        """Wait for what runs, close the files, and let nothing more run."""
        self._writing.acquire()
        self._reading.acquire()
        if not self._place.is_memory:
            self._let_go(at_any_rate=True)

    def resume(self) -> None:
        """Let all go on after `pause`."""
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """Wait for what runs, and close the connections for good."""
        with self._writing, self._reading:
            self._let_go(at_any_rate=True)

    def _current(self) -> Connections | None:
        """Return the connections, if the files at the path are those they have open."""
        found = self._place.identity()
        # What could not be found is nothing, not even the same as before.
        if found is None or not self._connections:
            return None
        return self._connections if found == self._connections.identity else None

    def _open_anew(self, *, is_start: bool = False) -> None:
        """Open the files at the path, unless they are open."""
        with self._writing, self._reading:
            if not self._current():
                try:
                    self._let_go()
                    self._connections = self._place.open(is_start=is_start)
                except sqlite3.Error as error:
                    raise self._place.unavailable(error) from error

    def _let_go(self, *, at_any_rate: bool = False) -> None:
        """Complete the files that are open, and close them; both locks are held."""
        if self._connections:
            try:
                self._place.complete(self._connections.writer)
            except (sqlite3.Error, StorageUnavailable) as error:
                # What is damaged cannot be completed.
                if not at_any_rate and _result_code(error) not in DAMAGED:
                    raise
            self._connections.reader.close()
            self._connections.writer.close()
            self._connections = None

    def _failure(self, error: sqlite3.Error) -> Exception:
        """Return what to raise for an error of SQLite, which may be a bug of ours."""
        code = _result_code(error)
        if code in DAMAGED and self._connections:
            # The next who uses the database opens it anew.
            self._connections = self._connections._replace(identity=None)
        # Python's sqlite3 calls bad SQL operational too.
        elif not isinstance(error, sqlite3.OperationalError) or code == BAD_SQL:
            return error
        return self._place.unavailable(error)


class Connections(NamedTuple):
    """The two connections to a database, and what tells its files from others."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection
    identity: tuple[int, ...] | None


# SQLite's result codes (sqlite.org/rescode.html).
BAD_SQL = sqlite3.SQLITE_ERROR
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
NOT_ALLOWED = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}


def _result_code(error: object) -> int:
    # It is the lowest byte of the extended one; other errors have none.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


class Place:
    """Where a database is, in a file or in memory: what is there, how it is opened.

    Beside the file is its WAL, in which commits are until SQLite brings them into it.
    """

    def __init__(self, path: str) -> None:
        self.is_memory = path == ":memory:"
        self.path = path if self.is_memory else os.path.abspath(path)
        self._wal = ""

    def identity(self) -> tuple[int, ...] | None:
        """Return device and inode of the database and its WAL, or None without them.

        StorageUnavailable where the database has been emptied: SQLite would delete the
        WAL, and what is only there.
        """
        if self.is_memory:
            return ()
        try:
            database, wal = os.stat(self.path), os.stat(self._wal)
        except OSError:
            return None
        if not database.st_size:
            raise self.unavailable("it has been emptied")
        return database.st_dev, database.st_ino, wal.st_dev, wal.st_ino

    def open(self, *, is_start: bool) -> Connections:
        """Open the files at the path by two connections, and see that both have these.

        Only at the start is a database made where there is none. A connection opens the
        WAL with its first query. If the WAL were removed between the two, one would not
        read what the other writes, nor would the next process.
        """
        if self.is_memory:
            connection = self.connect("memory", 0)
            connection.executescript(CREATE_SCHEMA)
            return Connections(connection, connection, ())
        if is_start:
            make_or_check(self)
        # A link may lead elsewhere by now.
        self._wal = self.beside("-wal")
        wait = START_WAIT if is_start else BUSY_WAIT
        with ExitStack() as on_failure:
            # The first makes the WAL, so that there is something to compare.
            with closing(self.connect("rw", wait)) as first:
                self.require_pet_store(first)
                enter_wal(self, first, wait)
                first.execute(SELECT_ANY).fetchall()
                before = self.identity()
                reader, writer = (
                    on_failure.enter_context(closing(self.connect("rw", BUSY_WAIT)))
                    for _ in range(2)
                )
                writer.execute("PRAGMA synchronous = FULL")
                for connection in (reader, writer):
                    connection.execute(SELECT_ANY).fetchall()
                identity = self.identity()
            if identity is None or identity != before:
                raise self.unavailable("it was moved while it was opened")
            on_failure.pop_all()
        return Connections(reader, writer, identity)

    def complete(self, connection: sqlite3.Connection) -> None:
        """Bring into the database of a connection what is only in its WAL.

        The two may not be at the path any more. Then SQLite would leave the WAL to
        whoever opens them together, if anyone; the connection still reaches both.
        """
        checkpoint = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        is_busy, *_ = checkpoint.fetchone()
        if is_busy:
            raise self.unavailable("another program still reads the old one")

    def connect(self, mode: str, wait: float) -> sqlite3.Connection:
        """Return a new connection: "ro", "rw", "rwc", which makes the file, "memory".

        It waits so many seconds for other processes, and gives text as bytes.
        """
        name = "file:" if self.is_memory else Path(self.path).as_uri()
        connection = sqlite3.connect(
            f"{name}?mode={mode}",
            uri=True,
            timeout=wait,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = bytes
        return connection

    def beside(self, suffix: str) -> str:
        """Return the path of a file that SQLite keeps beside what a link leads to."""
        return f"{os.path.realpath(self.path)}{suffix}"

    def require_pet_store(self, connection: sqlite3.Connection) -> None:
        """Raise unless a connection leads to a pet store of this version."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != SCHEMA_VERSION:
            found = f"its user_version is {version}, not {SCHEMA_VERSION}"
            raise self.unavailable(f"it is no pet store of this version: {found}")
        connection.execute(SELECT_ANY).fetchall()

    def unavailable(self, reason: object) -> StorageUnavailable:
        """Return the exception that names the database, the reason, and what to do."""
        code = _result_code(reason)
        if code in NOT_ALLOWED:
            hint = "is it a file, is its folder there, may this user write to both?"
            reason = f"{reason} ({hint})"
        exception = DatabaseBusy if code == sqlite3.SQLITE_BUSY else StorageUnavailable
        return exception(f"{self.path}: {reason}")


def make_or_check(place: Place) -> None:
    """Make a file where there is none; look at one that is there without a change.

    Several processes may do so at once.
    """
    is_file = os.path.isfile(place.path)
    if is_file and os.path.exists(place.beside("-journal")):
        # Only who may write can undo what a kill has left half done (a hot journal).
        with closing(place.connect("rw", START_WAIT)) as connection:
            connection.execute("PRAGMA user_version").fetchall()
    if not is_file or not os.path.getsize(place.path):
        with closing(place.connect("rwc", START_WAIT)) as connection:
            connection.executescript(CREATE_SCHEMA)
        logging.getLogger(__name__).warning("Made a new database: %s", place.path)
        return
    with closing(place.connect("ro", START_WAIT)) as connection:
        place.require_pet_store(connection)
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0].decode()
        if verdict != "ok":
            raise place.unavailable(f"it is damaged: {' '.join(verdict.split())}")


def enter_wal(place: Place, connection: sqlite3.Connection, wait: float) -> None:
    """Set the journal mode; SQLite itself does not wait for who writes here."""
    if not os.access(place.path, os.W_OK):
        raise place.unavailable("this user may not write to it")
    deadline = monotonic() + wait
    mode = None
    while mode is None:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _result_code(error) != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(0.01)
    if mode != b"wal":
        raise place.unavailable("its file system does not support WAL")


# A fork must carry along neither a connection (sqlite.org/howtocorrupt.html, section
# 2.6) nor a lock that some other thread holds.
_stores: weakref.WeakSet[PetStore] = weakref.WeakSet()
_paused: list[PetStore] = []
# One fork at a time, and none while a store is made.
_forking = threading.Lock()


def _before_fork() -> None:
    _forking.acquire()
    for store in _stores:
        store.database.pause()
        _paused.append(store)


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().database.resume()
    _forking.release()


def _after_fork_in_child() -> None:
    for store in _paused:
        # Who waits in the old one waits in the parent, as its thread does.
        store.queue = WriteQueue(store.database)
    _after_fork_in_parent()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
