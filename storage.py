"""The pets in SQLite: all SQL and every call of sqlite3, and nothing of HTTP."""

import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock, RLock
from typing import Any, Protocol

# The user_version of the file, a number that SQLite leaves to the application.
SCHEMA_VERSION = 1
# AUTOINCREMENT: the id of a deleted pet is never used again. IF NOT EXISTS: in
# examples/rqlite.py, several services may create the table at once.
CREATE_TABLE = """
    CREATE TABLE IF NOT EXISTS pets (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        category_id INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('available', 'pending', 'sold'))
    ) STRICT
"""
# The index finds a page of one status, in the order of the ids: every index of SQLite
# contains the id, too.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS pets_by_status ON pets (status)"
COLUMNS = ["id INTEGER", "name TEXT", "category_id INTEGER", "status TEXT"]
SELECT_COLUMNS = "SELECT name || ' ' || type FROM pragma_table_info('pets')"

# Values are never part of the SQL: they are parameters (:name). The f-strings contain
# constants only. SQLite renders the JSON of 100 pets in half the time that
# json.dumps takes.
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
# The first fails if the table cannot be read, the second if it cannot be written to:
# SQLite takes the write lock, although no row is deleted.
READ_PROBE = "SELECT id FROM pets LIMIT 1"
WRITE_PROBE = "DELETE FROM pets WHERE false"

# Seconds that SQLite waits for a lock of another program. A write may wait twice as
# long: while the batch before it waits, and then in its own batch.
BUSY_TIMEOUT = 2.0

CHECK_ACCESS = (
    "it must be a file in an existing folder, and this user must be allowed to write "
    "to the file and to the folder"
)
# What to do about an error, by SQLite's result code (sqlite.org/rescode.html).
HINTS = {
    # Used only while a file is opened.
    sqlite3.SQLITE_ERROR: "it is not a pet store; choose another file",
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

    A Protocol lists methods, without their code, and mypy checks that each store has
    them. A store also has to keep these promises:

    - Any number of threads may call the methods at once.
    - The JSON of a pet is bytes: an object with id, name, categoryId and status.
    - A name is any string that UTF-8 can encode, U+0000 included. A category id is any
      64-bit integer. Both are returned exactly as they were given.
    - Ids grow, and none is used again. Pets appear in the order of their ids: if pet 7
      appeared after pet 8, a client that has read pet 8 would never see it. (In many
      databases, an id is assigned before the commit, so pet 8 may appear first.)
    - If `add` returns, the pet is stored for good. If `add` raises an exception, it is
      not stored. If a store cannot promise this, its documentation says so.
    - If the store cannot answer, a method raises StorageUnavailable within about five
      seconds.
    """

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return a page as a JSON array, and its last id if another page follows.

        The page has at most `limit` pets, ordered by id. Each id is larger than
        `after`. If `status` is not None, each pet has this status.
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
        # finalize refers to the database only. If it referred to this store, the store
        # would never be garbage-collected.
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


@dataclass
class Write:
    """A statement that changes something, and its result: its rows or an error."""

    sql: str
    values: Values
    rows: Rows = field(default_factory=list)
    error: sqlite3.IntegrityError | None = None

    def execute(self, connection: sqlite3.Connection) -> None:
        """Execute the statement. If it violates a constraint, keep the error.

        SQLite then undoes this statement, and not the others of the transaction
        (sqlite.org/lang_conflict.html, ABORT). Today, schemas.py refuses such values. A
        new constraint, such as UNIQUE, needs this method.
        """
        try:
            self.rows = connection.execute(self.sql, self.values).fetchall()
        except sqlite3.IntegrityError as error:
            self.error = error


class Batch:
    """Writes that share a commit. If it fails, all of them have the same error."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        # How many of the writes have been executed.
        self.executed = 0
        self.error: BaseException | None = None
        # wait() returns as soon as another thread has called set().
        self.is_done = Event()


class Database:
    """An SQLite database with one connection for reads and one for writes.

    The file is in WAL mode (sqlite.org/wal.html): SQLite appends each commit to a
    second file, the write-ahead log `pets.db-wal`, and copies it into `pets.db` later,
    in a checkpoint. So reads go on during a write.

    SQLite finds the WAL by its name. If somebody replaces `pets.db`, SQLite would write
    changes of the old file into the new file. So before each use, the file at the path
    is compared with the one that was there at startup.
    """

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, but 3.38 or newer is needed")
        self._in_memory = path == ":memory:"
        self._path = path if self._in_memory else os.path.abspath(path)
        # Only the thread that has the lock of a connection may use it. In memory, there
        # is one connection, and one lock with two names. `close` takes both, and an
        # RLock may be taken twice by one thread.
        self._write_lock = RLock()
        self._read_lock = self._write_lock if self._in_memory else RLock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._batch_lock = Lock()
        self._batch = Batch()
        # A server may fork (copy this process) after create_app. SQLite does not
        # support open connections in the copy. So this one is closed, and `read` and
        # `write` open their own.
        with (
            self._translated_errors(is_opening=True),
            closing(self._connect()) as connection,
        ):
            self._prepare(connection)
            # The file stays in WAL mode. In memory, SQLite ignores this.
            connection.execute("PRAGMA journal_mode = WAL")
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
        (group commit):

        1. Thread A begins a batch, and waits for the lock, which another commit has.
        2. Thread B joins the batch, and waits for A.
        3. A gets the lock, executes both writes, and closes the batch.
        4. Thread C begins another batch, and waits for the lock.
        5. A commits, and lets B go on.
        """
        write = Write(sql, values)
        with self._batch_lock:
            batch = self._batch
            batch.writes.append(write)
            is_first = len(batch.writes) == 1
        if is_first:
            self._commit(batch)
        batch.is_done.wait()
        if error := batch.error or write.error:
            raise error
        return write.rows

    def _commit(self, batch: Batch) -> None:
        """Commit a batch, and let its threads go on."""
        try:
            # While this thread waits for the lock, other threads join the batch.
            with self._write_lock, self._translated_errors():
                self._execute(batch)
        except BaseException as error:
            # `write` raises it in each thread of the batch. (BaseException: if this
            # thread gets a KeyboardInterrupt, the others must not wait forever.)
            batch.error = error
            # The batch may still be open, and no other write may join it now. If COMMIT
            # has failed, this closes the next batch early, which does no harm.
            with self._batch_lock:
                self._batch = Batch()
        finally:
            batch.is_done.set()

    def _execute(self, batch: Batch) -> None:
        """Execute the writes of a batch in one transaction."""
        if not self._writer:
            self._writer = self._open(WRITE_PROBE)
        # At the end of the block, the connection commits what BEGIN has begun. After an
        # error, it rolls back.
        with self._writer:
            # IMMEDIATE: wait for the lock of the file here, not at the first statement.
            self._writer.execute("BEGIN IMMEDIATE")
            self._require_same_file()
            # More writes may join the batch meanwhile.
            while write := self._next_write(batch):
                write.execute(self._writer)

    def _next_write(self, batch: Batch) -> Write | None:
        """Return the next write of a batch. If there is none, close the batch."""
        with self._batch_lock:
            if batch.executed == len(batch.writes):
                self._batch = Batch()
                return None
            batch.executed += 1
            return batch.writes[batch.executed - 1]

    def close(self) -> None:
        """Copy the WAL into the database, and close the connections.

        SQLite copies the WAL when the last connection is closed. But if the file was
        moved, SQLite leaves the WAL at the old path, and applies it to the next file
        there. So this method copies and empties the WAL itself.
        """
        with self._write_lock, self._read_lock:
            # A set, because in memory both are the same.
            for connection in {self._reader, self._writer}:
                if connection:
                    with suppress(sqlite3.Error):
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    connection.close()
            self._reader = self._writer = None

    def _open(self, probe: str) -> sqlite3.Connection:
        """Return a connection to the file that was there at startup.

        If the probe fails, the connection is not kept: one that was opened while the
        disk was read-only would stay read-only.
        """
        # Check this first, because SQLite would apply the WAL to a wrong file. Check it
        # again below, because the file may have been replaced meanwhile.
        self._require_same_file()
        with self._translated_errors(is_opening=True):
            connection = self._connect()
            try:
                if self._in_memory:
                    # In memory, each connection has a database of its own. So this one
                    # becomes the reader and the writer.
                    self._prepare(connection)
                    self._reader = self._writer = connection
                connection.execute(probe).fetchall()
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
            isolation_level=None,  # Only `_execute` and `_prepare` send BEGIN.
            check_same_thread=False,  # The locks let one thread use it at a time.
        )
        # Text is returned as bytes, so that the JSON of a pet is sent as it is.
        connection.text_factory = bytes
        try:
            # COMMIT returns after the WAL is on the disk.
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the schema in an empty database, or check that it is there."""

        def select(sql: str) -> Any:
            return connection.execute(sql).fetchone()[0]

        with connection:
            # Several processes may start at once: the first one creates the schema, and
            # the others wait here.
            connection.execute("BEGIN IMMEDIATE")
            version = select("PRAGMA user_version")
            if version == 0 and select("SELECT count(*) FROM sqlite_schema") == 0:
                connection.execute(CREATE_TABLE)
                connection.execute(CREATE_INDEX)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                version = SCHEMA_VERSION
            # Fails if there is no table, or if this user may not write to the file.
            connection.execute(WRITE_PROBE)
            # The texts are bytes, because `_connect` sets text_factory.
            rows = connection.execute(SELECT_COLUMNS).fetchall()
            columns = [row[0].decode() for row in rows]
            if version != SCHEMA_VERSION or columns != COLUMNS:
                found = f"user_version is {version}, and its columns are "
                found += ", ".join(columns)
                raise self._unavailable(
                    f"it is not a pet store of version {SCHEMA_VERSION} (its {found}); "
                    "choose another file, or upgrade this one"
                )

    def _file_at_path(self) -> tuple[int, int] | None:
        """Return the device and inode of the file, or None if there is no file.

        They stay the same when a file is moved. In memory, there is never a file.
        """
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
    def _translated_errors(self, is_opening: bool = False) -> Iterator[None]:
        """Turn an error of SQLite into StorageUnavailable. Let a bug pass.

        SQLITE_ERROR is a bug: an error in the SQL. But while a file is opened, it means
        that the file is not a pet store.
        """
        try:
            # The `with` block runs here.
            yield
        except sqlite3.Error as error:
            # The module raises some errors itself. They have no code of SQLite.
            code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            # The lowest 8 bits are the main code: 778 & 0xFF is 10 (SQLITE_IOERR).
            code &= 0xFF
            if code == sqlite3.SQLITE_ERROR and not is_opening:
                raise
            hint = HINTS.get(code)
            reason = f"{error}; {hint}" if hint else str(error)
            raise self._unavailable(reason) from error

    def _unavailable(self, reason: str) -> StorageUnavailable:
        return StorageUnavailable(f"{self._path}: {reason}")
