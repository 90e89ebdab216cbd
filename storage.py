"""The pets in SQLite: every character of SQL, every sqlite3 call, nothing of HTTP."""

import math
import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

# Seconds. The two waits bound the answer to a write at 7, however many wait.
TURN_WAIT = 2.0
SQLITE_WAIT = 5.0
STALLED_AFTER = 0.25
# Fewer than the Procfile's threads: the others are left for reads.
SEATS = 8

SCHEMA_VERSION = 1
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

# The one definition of a pet's JSON: SQLite renders it, nothing takes it apart again.
PET = "json_object('id', id, 'name', name, 'categoryId', category_id, 'status', status)"

INSERT_PET = f"""
    INSERT INTO pets (name, category_id, status) VALUES (?, ?, ?) RETURNING id, {PET}
"""
SELECT_PET = f"SELECT {PET} FROM pets WHERE id = ?"
SELECT_ANY = "SELECT id, name, category_id, status FROM pets LIMIT 1"


def _select_page(condition: str) -> str:
    """Return the query for a page: its JSON, and its last id if another page follows.

    It finds where the page ends, then reads the pets up to there in the order of the
    key. That is faster than to limit the pets in a subquery.
    """
    ids = f"SELECT id FROM pets WHERE id > :after {condition} ORDER BY id"
    return f"""
        SELECT json_group_array({PET}), (
            SELECT min(id) FROM ({ids} LIMIT 2 OFFSET :limit - 1) HAVING count(*) = 2
        )
        FROM pets WHERE id > :after {condition}
        AND id <= ifnull(({ids} LIMIT 1 OFFSET :limit - 1), {2**63 - 1})
    """


SELECT_PAGE = _select_page("")
SELECT_PAGE_OF_STATUS = _select_page("AND status = :status")

# SQLite blames the statement for these, not the database: they are bugs.
BUGS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)

Values = Sequence[object] | Mapping[str, object]


class StorageUnavailable(Exception):
    """SQLite cannot do what it was asked; the message says why."""


class Connection(sqlite3.Connection):
    """A connection that knows the device and inode of the file it has open."""

    file: tuple[int, int] | None = None


class WriteTurn:
    """The turn to write, one thread's at a time.

    SQLite before 3.51.3 can lose a commit when two connections write or checkpoint at
    the same instant (the WAL-reset bug), and its own waiting is slower and less fair.
    A turn that takes long means that another process holds the file. Then as many
    threads as there are seats wait on and the others are refused at once, so that some
    are left for reads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seats = threading.Semaphore(SEATS)
        self._stalled_from = math.inf

    def __enter__(self) -> None:
        if not (self._lock.acquire(blocking=False) or self._wait()):
            raise StorageUnavailable("too many writes wait for the database")
        self._stalled_from = monotonic() + STALLED_AFTER

    def __exit__(self, *_: object) -> None:
        self._stalled_from = math.inf
        self._lock.release()

    def _wait(self) -> bool:
        deadline = monotonic() + TURN_WAIT
        while monotonic() < min(deadline, self._stalled_from):
            if self._lock.acquire(timeout=STALLED_AFTER):
                return True
        if not self._seats.acquire(blocking=False):
            return False
        try:
            return self._lock.acquire(timeout=max(0.0, deadline - monotonic()))
        finally:
            self._seats.release()


class PetStore:
    """The pets in one database file, or in memory where the path is `:memory:`.

    Connections are kept, and each is lent to one thread at a time. Every method raises
    StorageUnavailable where SQLite cannot answer.
    """

    def __init__(self, path: str) -> None:
        """Open the file, or make it; one that is no pet store is left as it is."""
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, 3.38 or newer is needed")
        self._idle: list[Connection] = []
        self.renew_locks()
        if path == ":memory:":
            self._path = None
            self._uri = f"file:/{uuid.uuid4()}?vfs=memdb&"
            # The database is gone with the last connection to it.
            weakref.finalize(self, self._connect("rwc").close)
        else:
            self._path = os.path.abspath(path)
            self._uri = f"{Path(self._path).as_uri()}?"
        self._prepare()
        weakref.finalize(self, _close_all, self._idle)
        _stores.add(self)

    def list_page(
        self, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return the JSON of at most `limit` pets, and their last id if more follow.

        They are the next past the id `after`, of one status or any.
        """
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        [(pets, last)] = self._read(sql, values)
        return pets, last

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if there is no such pet."""
        rows = self._read(SELECT_PET, (pet_id,))
        return rows[0][0] if rows else None

    def add(self, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet; once it is on the disk, return its id and JSON."""
        with self.write_turn:
            connection = self._take_current()
            values = (name, category_id, status)
            [(pet_id, pet)] = self._execute(connection, INSERT_PET, values)
        self._idle.append(connection)
        return pet_id, pet

    def check(self) -> None:
        """Query the file anew; a connection that is kept may answer from its memory."""
        self._idle.append(self._take_current())
        try:
            with closing(self._open()) as connection:
                self._execute(connection, SELECT_ANY, ())
        except StorageUnavailable:
            # What this one cannot read, the kept ones must not write to.
            self.close()
            raise

    def close(self) -> None:
        """Close the connections that no thread uses; the next call opens a new one."""
        _close_all(self._idle)

    def renew_locks(self) -> None:
        """Forget who holds a lock: in a forked process, a thread that is not there."""
        self.write_turn = WriteTurn()
        self.read_lock = threading.Lock()

    def _prepare(self) -> None:
        try:
            if self._path and os.path.isfile(self._path):
                self._inspect(self._path)
            self._create()
        except (sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from error

    def _inspect(self, path: str) -> None:
        """Raise unless the file is empty or a whole pet store of this version."""
        wal = f"{path}-wal"
        if not os.path.getsize(path) and os.path.exists(wal) and os.path.getsize(wal):
            # SQLite would delete the WAL, and what is only there.
            raise self._unavailable(f"it is empty, but {wal} is not")
        with closing(self._connect("ro")) as connection:
            # One view of the file, which another process may be making right now.
            connection.execute("BEGIN")
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema")
            if version == tables == 0:
                return
            if version != SCHEMA_VERSION:
                found = f"its user_version is {version}, not {SCHEMA_VERSION}"
                raise self._unavailable(f"it is no pet store of this version: {found}")
            (verdict,), *_ = connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != b"ok":
                reason = " ".join(verdict.decode().split())
                raise self._unavailable(f"it is damaged: {reason}")
            connection.execute(SELECT_ANY).fetchall()

    def _create(self) -> None:
        """Make what a new file lacks; several processes may do so at once."""
        with closing(self._connect("rwc")) as connection:
            if _enter_wal(connection) != b"wal" and self._path:
                raise self._unavailable("its file system does not support WAL")
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version != SCHEMA_VERSION:
                connection.executescript(CREATE_SCHEMA)

    def _read(self, sql: str, values: Values) -> list[Any]:
        # sqlite3 gives up the interpreter lock at every step. Readers that wait here do
        # not fight for it, which makes a tenth more requests per second.
        if not self.read_lock.acquire(timeout=SQLITE_WAIT):
            raise self._unavailable("too many reads wait for it")
        try:
            connection = self._take() or self._open()
            rows = self._execute(connection, sql, values)
            self._idle.append(connection)
            return rows
        finally:
            self.read_lock.release()

    def _take(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _take_current(self) -> Connection:
        """Return a connection to the file that is at the path now.

        SQLite would go on writing to one that was moved or removed: to be lost.
        """
        file = self._identify_file()
        while connection := self._take():
            if connection.file == file:
                return connection
            connection.close()
        return self._open()

    def _identify_file(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError as error:
            self.close()
            raise self._unavailable(error) from error
        if found.st_size == 0:
            raise self._unavailable("it has been emptied")
        return found.st_dev, found.st_ino

    def _open(self) -> Connection:
        file = self._identify_file()
        try:
            connection = self._connect("rw")
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        connection.file = file
        self._execute(connection, "PRAGMA synchronous = FULL", ())
        return connection

    def _connect(self, mode: str) -> Connection:
        connection = sqlite3.connect(
            f"{self._uri}mode={mode}",
            uri=True,
            factory=Connection,
            timeout=SQLITE_WAIT,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = bytes
        return connection

    def _execute(self, connection: Connection, sql: str, values: Values) -> list[Any]:
        """Run a statement to its end, which commits it; if it fails, close."""
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            connection.close()
            if isinstance(error, BUGS):
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, reason: object) -> StorageUnavailable:
        return StorageUnavailable(f"{self._path or ':memory:'}: {reason}")


def _enter_wal(connection: Connection) -> bytes:
    """Set the journal mode, waiting for processes that do so too; SQLite does not."""
    deadline = monotonic() + SQLITE_WAIT
    while True:
        try:
            [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            sleep(0.01)
        else:
            return bytes(mode)


def _close_all(connections: list[Connection]) -> None:
    with suppress(IndexError):
        while True:
            connections.pop().close()


# A fork must carry along neither a connection (sqlite.org/howtocorrupt.html, section
# 2.6) nor a lock that some other thread holds.
_stores: weakref.WeakSet[PetStore] = weakref.WeakSet()


def _before_fork() -> None:
    for store in list(_stores):
        store.close()


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store.renew_locks()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
