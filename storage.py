"""The pets in SQLite: every character of SQL, every sqlite3 call, nothing of HTTP."""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

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
    INSERT INTO pets (name, category_id, status)
    VALUES (:name, :category_id, :status)
    RETURNING id, {PET}
"""
SELECT_PET = f"SELECT {PET} FROM pets WHERE id = :id"
SELECT_ANY = "SELECT id, name, category_id, status FROM pets LIMIT 1"


def _select_page(condition: str) -> str:
    """Return the query for a page: its JSON, and its last id if another page follows.

    It looks for two ids: the last of a full page, and the first of the next page. If it
    finds both, there is a next page. If it finds none, all pets up to the largest id
    belong to this one. To limit the pets themselves, in a subquery, is slower.
    """
    last = f"""
        SELECT id FROM pets WHERE id > :after {condition}
        ORDER BY id LIMIT 1 OFFSET :limit - 1
    """
    last_and_next = last.replace("LIMIT 1", "LIMIT 2")
    return f"""
        SELECT
            json_group_array({PET}),
            (SELECT min(id) FROM ({last_and_next}) HAVING count(*) = 2)
        FROM pets
        WHERE id > :after {condition} AND id <= ifnull(({last}), {2**63 - 1})
    """


SELECT_PAGE = _select_page("")
SELECT_PAGE_OF_STATUS = _select_page("AND status = :status")

# Seconds. So long SQLite waits for another process, at the start and later, before it
# says that the database is busy; so long a pet waits to be stored; and so long a reader
# goes on with the files that were at the path when somebody looked.
START_WAIT = 5.0
BUSY_WAIT = 0.25
STORE_WAIT = 5.0
LOOK_EVERY = 0.02
# How many pets wait while another process holds the file. Fewer than the server has
# threads: the others are left for reads.
SEATS = 8

# SQLite blames the statement for these, not the database: they are bugs.
BUGS = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)
# These pass once there is room on the disk.
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)

# How every WAL begins, once there is something in it (sqlite.org/fileformat2.html,
# section 4.1).
WAL_MAGIC = b"\x37\x7f\x06"
# What stands for the state of a file where the database is in memory.
IN_MEMORY = os.stat_result([1] * 10)

Values = Mapping[str, object]
Row = tuple[Any, ...]


class StorageUnavailable(Exception):
    """SQLite cannot do what it was asked; the message says why."""


class DatabaseBusy(StorageUnavailable):
    """Another process writes to the file."""


class PetStore:
    """The pets in one database file, or in memory where the path is `:memory:`.

    Any number of threads may call its methods at once. Each method raises
    StorageUnavailable where SQLite cannot answer.
    """

    def __init__(self, path: str) -> None:
        """Open the file, or make it; one that is no pet store is left as it is."""
        self.database = Database(path)
        self.queue = WriteQueue(self.database)
        weakref.finalize(self, self.database.close)
        with _forking:
            _stores.add(self)

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return the JSON of at most `limit` pets, and their last id if more follow.

        They are the next past the id `after`, of one status or any.
        """
        sql = SELECT_PAGE if status is None else SELECT_PAGE_OF_STATUS
        values = {"limit": limit, "status": status, "after": after}
        [(pets, last_id)] = self.database.read(sql, values)
        return pets, last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        """Store a pet; once it is on the disk, return its id and JSON."""
        values = {"name": name, "category_id": category_id, "status": status}
        pet_id, pet = self.queue.store(values)
        return pet_id, pet

    def get(self, pet_id: int) -> bytes | None:
        """Return the JSON of a pet, or None if there is no such pet."""
        rows = self.database.read(SELECT_PET, {"id": pet_id})
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Query the file itself, not what is left of it in memory."""
        self.database.forget_pages()
        self.database.read(SELECT_ANY, {})


class WriteQueue:
    """Pets on their way to the disk: whoever has the turn stores all that wait.

    A disk syncs a few hundred times a second, however many threads wait for it. So the
    pets that come while one transaction is written share the next, and their threads
    sleep until each is told what became of its pet.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mutex = threading.Lock()
        self._waiting: list[WaitingPet] = []
        self._told: list[WaitingPet] = []
        self._turn_is_taken = False
        self._is_stalled = False

    def store(self, values: Values) -> Row:
        """Return the row of INSERT_PET once it is on the disk.

        A pet that is refused (StorageUnavailable) is never stored later: it leaves the
        queue first, and once its transaction has begun, the outcome is waited for.
        """
        pet = WaitingPet(values, self._mutex)
        with self._mutex:
            self._waiting.append(pet)
            self._refuse_beyond_seats()
        try:
            while self._has_turn(pet):
                self._store_all()
        finally:
            self._leave(pet)
        if isinstance(pet.outcome, Exception):
            raise pet.outcome
        assert pet.outcome is not None
        return pet.outcome

    def _has_turn(self, pet: WaitingPet) -> bool:
        """Wait until the thread of this pet has the turn, or the pet its outcome."""
        with self._mutex:
            while pet.outcome is None:
                waits = pet in self._waiting
                if waits and monotonic() >= pet.deadline:
                    self._refuse(pet, "it was busy for too long")
                elif not self._turn_is_taken:
                    self._turn_is_taken = True
                    return True
                else:
                    pet.changed.wait(pet.deadline - monotonic() if waits else None)
        return False

    def _leave(self, pet: WaitingPet) -> None:
        # It still waits only where its thread was interrupted (KeyboardInterrupt).
        with self._mutex:
            if pet in self._waiting:
                self._refuse(pet, "its thread was interrupted")

    def _store_all(self) -> None:
        """Store all pets that wait in one transaction, and give back the turn."""
        pets: list[WaitingPet] = []
        outcomes: dict[WaitingPet, Row | Exception] = {}
        try:
            with self._database.transaction() as connection:
                pets = self._take_all()
                rows = {pet: _insert_pet(connection, pet.values) for pet in pets}
                self._wake_told()
            outcomes = rows
        except DatabaseBusy:
            self._is_stalled = True
        except Exception as error:
            outcomes = dict.fromkeys(pets or self._take_all(), error)
        finally:
            # There is none where this thread was interrupted.
            cut_off = self._database.unavailable("the write was cut off")
            self._tell(outcomes or dict.fromkeys(pets, cut_off))

    def _take_all(self) -> list[WaitingPet]:
        with self._mutex:
            self._is_stalled = False
            pets, self._waiting = self._waiting, []
        return pets

    def _tell(self, outcomes: Mapping[WaitingPet, Row | Exception]) -> None:
        """Note what became of these pets, and pass the turn on.

        Their threads are woken when the next transaction waits for the disk: earlier,
        they would take the interpreter from its thread at each of its statements.
        """
        self._wake_told()
        with self._mutex:
            for pet, outcome in outcomes.items():
                pet.outcome = outcome
            self._told = list(outcomes)
            self._turn_is_taken = False
            self._refuse_beyond_seats()
            self._pass_on()

    def _wake_told(self) -> None:
        with self._mutex:
            for pet in self._told:
                pet.changed.notify()
            self._told = []

    def _refuse_beyond_seats(self) -> None:
        while self._is_stalled and len(self._waiting) > SEATS:
            self._refuse(self._waiting[-1], "it is busy, and many wait already")

    def _refuse(self, pet: WaitingPet, reason: str) -> None:
        self._waiting.remove(pet)
        pet.outcome = self._database.unavailable(reason)
        pet.changed.notify()
        self._pass_on()

    def _pass_on(self) -> None:
        """Wake the thread that is next to write; where none waits, those told."""
        if not self._turn_is_taken:
            for pet in self._waiting[:1] or self._told:
                pet.changed.notify()


class WaitingPet:
    """A pet in the queue: how long it waits, and what became of it."""

    def __init__(self, values: Values, mutex: threading.Lock) -> None:
        self.values = values
        self.deadline = monotonic() + STORE_WAIT
        self.changed = threading.Condition(mutex)
        self.outcome: Row | Exception | None = None


def _insert_pet(connection: sqlite3.Connection, values: Values) -> Row | Exception:
    """Insert a pet and return its row, or the bug that is in this request alone."""
    try:
        [row] = connection.execute(INSERT_PET, values).fetchall()
    except Exception as error:
        if _blames_database(error):
            raise
        return error
    return tuple(row)


class Files(NamedTuple):
    """The files of a database, as `os.stat` finds them."""

    database: os.stat_result
    wal: os.stat_result

    def go_on_in(self, later: Files) -> bool:
        """Return whether these are still the same; a WAL never gets shorter."""
        return (
            os.path.samestat(self.database, later.database)
            and os.path.samestat(self.wal, later.wal)
            and self.wal.st_size <= later.wal.st_size
        )


class OpenDatabase(NamedTuple):
    """The two connections to a database, and the files that they have open."""

    reader: sqlite3.Connection
    writer: sqlite3.Connection
    files: Files


class Database:
    """A database with one connection that reads and one that writes.

    Each has a lock, and so one owner at a time. Whoever must let go of the files takes
    both locks, `_writing` first, so that all that runs has ended. The files at the path
    are looked at before every write, and before a read unless somebody has just looked:
    SQLite goes on with those that it has open, and what it writes to a file that was
    removed is lost.
    """

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            found = sqlite3.sqlite_version
            raise StorageUnavailable(f"SQLite is {found}, 3.38 or newer is needed")
        self._opened: OpenDatabase | None = None
        self._is_suspect = False
        self._look_again_at = 0.0
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._anchor: sqlite3.Connection | None = None
        if path == ":memory:":
            self._path = self._wal = ""
            self._uri = f"file:/{uuid.uuid4()}?vfs=memdb&"
            # In memory, SQLite lets nobody read while another writes.
            self._reading = self._writing
            # The database is gone with the last connection to it.
            self._anchor = self._connect("rwc", START_WAIT)
        else:
            self._path = os.path.abspath(path)
            self._wal = f"{self._path}-wal"
            self._uri = f"{Path(self._path).as_uri()}?"
        try:
            self._inspect()
            self._create()
        except (sqlite3.Error, OSError) as error:
            raise self.unavailable(error) from error

    def read(self, sql: str, values: Values) -> list[Row]:
        """Return the rows of a query on the files that are at the path now."""
        while True:
            with self._reading:
                has_looked = monotonic() < self._look_again_at
                opened = self._opened if has_looked else self._current()
                if opened:
                    try:
                        return opened.reader.execute(sql, values).fetchall()
                    except sqlite3.DatabaseError as error:
                        raise self._trouble(error) from error
            with self._writing, self._reading:
                self._open_anew()

    def forget_pages(self) -> None:
        """Have the next query read from the file what is in memory now."""
        with self._reading:
            self._look_again_at = 0.0
            if self._opened:
                self._opened.reader.execute("PRAGMA shrink_memory")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the body of a `with` block as one transaction, on the disk at its end.

        Raises DatabaseBusy, before the body, while another process writes.
        """
        with self._writing:
            while not (opened := self._current()):
                with self._reading:
                    self._open_anew()
            try:
                opened.writer.execute("BEGIN IMMEDIATE")
                yield opened.writer
                opened.writer.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                raise self._trouble(error) from error
            finally:
                # After a COMMIT, there is nothing to roll back.
                with suppress(sqlite3.Error):
                    opened.writer.rollback()
            self._follow(opened)

    def pause(self) -> None:
        """Wait for what runs, close the connections, and let nothing more run."""
        self._writing.acquire()
        self._reading.acquire()
        self._let_go_at_any_rate()

    def resume(self) -> None:
        """Let all go on after `pause`."""
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """Wait for what runs, and close every connection for good."""
        with self._writing, self._reading:
            self._let_go_at_any_rate()
            if self._anchor:
                self._anchor.close()

    def unavailable(self, reason: object) -> StorageUnavailable:
        """Return the exception that names the database and the reason."""
        return StorageUnavailable(f"{self._path or ':memory:'}: {reason}")

    def _current(self) -> OpenDatabase | None:
        """Return what is open, if its files are those at the path."""
        found, opened = self._find_files(), self._opened
        if not found or not opened or self._is_suspect:
            return None
        if not opened.files.go_on_in(found):
            return None
        self._look_again_at = monotonic() + LOOK_EVERY
        return opened

    def _find_files(self) -> Files | None:
        try:
            found = Files(_stat(self._path), _stat(self._wal))
        except OSError:
            return None
        if not found.database.st_size:
            # SQLite would delete the WAL, and what is only there.
            raise self.unavailable("it has been emptied")
        return found

    def _open_anew(self) -> None:
        """Open the files at the path, unless they are open; both locks are held."""
        if self._current():
            return
        try:
            self._let_go()
            with ExitStack() as connections:
                self._opened = self._open(connections)
                connections.pop_all()
        except (sqlite3.Error, OSError) as error:
            raise self.unavailable(error) from error
        self._is_suspect = False

    def _open(self, connections: ExitStack) -> OpenDatabase:
        """Open the files at the path by two connections, and see that both have these.

        A connection opens the WAL with its first query. If the WAL were removed between
        the two, one would not read what the other writes, nor would the next process.
        """
        # The first makes what is not there, so that there is something to compare.
        with closing(self._connect("rw", BUSY_WAIT)) as first:
            self._require_version(first)
            self._enter_wal(first, BUSY_WAIT)
            first.execute(SELECT_ANY).fetchall()
            before = self._find_files()
            reader, writer = (
                connections.enter_context(closing(self._connect("rw", BUSY_WAIT)))
                for _ in range(2)
            )
            self._require_version(reader)
            self._require_version(writer)
            writer.execute("PRAGMA synchronous = FULL")
            found = self._find_files()
        if not (before and found and before.go_on_in(found)):
            raise self.unavailable("it was moved while it was opened")
        return OpenDatabase(reader, writer, found)

    def _follow(self, opened: OpenDatabase) -> None:
        """See to it that what was just committed is in the files at the path."""
        if self._wal_has_lost_its_head():
            # Somebody emptied it or wrote over it, and SQLite went on where it was.
            self._distrust()
            raise self.unavailable("its WAL has been damaged")
        with suppress(StorageUnavailable, OSError):
            found = self._find_files()
            if found and opened.files.go_on_in(found):
                self._opened = opened._replace(files=found)
            else:
                with self._reading:
                    self._let_go()

    def _wal_has_lost_its_head(self) -> bool:
        try:
            wal = os.open(self._wal, os.O_RDONLY)
            try:
                return os.read(wal, 3) not in (b"", WAL_MAGIC)
            finally:
                os.close(wal)
        except OSError:
            return False

    def _let_go(self) -> None:
        """Complete the files that are open, and close them; both locks are held.

        They may not be at the path any more. Then SQLite would leave what is in the WAL
        to whoever opens the two together, if anyone. The old connection still reaches
        both, wherever they are, and can bring all into the database.
        """
        if self._opened:
            if self._wal_has_lost_its_head():
                # A checkpoint would copy into the database whatever is there now: it
                # must find nothing at all.
                os.truncate(self._wal, 0)
            checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
            try:
                [(is_busy, _, _)] = self._opened.writer.execute(checkpoint)
            except sqlite3.DatabaseError as error:
                if _passes(error):
                    raise self.unavailable(error) from error
            else:
                if is_busy:
                    raise self.unavailable("another process still reads the old one")
        self._close()

    def _let_go_at_any_rate(self) -> None:
        with suppress(StorageUnavailable, OSError):
            self._let_go()
        self._close()

    def _close(self) -> None:
        if self._opened:
            self._opened.reader.close()
            self._opened.writer.close()
        self._opened = None

    def _trouble(self, error: sqlite3.DatabaseError) -> Exception:
        """Return what to raise for an error of SQLite."""
        if not _blames_database(error):
            return error
        if _is_busy(error):
            return DatabaseBusy(self.unavailable(error))
        if not _passes(error):
            self._distrust()
        return self.unavailable(error)

    def _distrust(self) -> None:
        """Have the next who uses the database open it anew."""
        self._is_suspect = True
        self._look_again_at = 0.0

    def _inspect(self) -> None:
        """Raise unless there is a whole pet store of this version, or nothing yet."""
        if not os.path.isfile(self._path):
            return
        if not os.path.getsize(self._path):
            if os.path.exists(self._wal) and os.path.getsize(self._wal):
                # SQLite would delete the WAL, and what is only there.
                raise self.unavailable(f"it is empty, but {self._wal} is not")
            return
        with closing(self._connect("ro", START_WAIT)) as connection:
            # One view of the file, which another process may be making right now.
            connection.execute("BEGIN")
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema")
            if version == tables == 0:
                return
            self._require_version(connection)
            (verdict,), *_ = connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != b"ok":
                reason = " ".join(verdict.decode().split())
                raise self.unavailable(f"it is damaged: {reason}")

    def _create(self) -> None:
        """Make what a new file lacks; several processes may do so at once."""
        with closing(self._connect("rwc", START_WAIT)) as connection:
            self._enter_wal(connection, START_WAIT)
            [(version,)] = connection.execute("PRAGMA user_version").fetchall()
            if version != SCHEMA_VERSION:
                connection.executescript(CREATE_SCHEMA)

    def _enter_wal(self, connection: sqlite3.Connection, wait: float) -> None:
        """Set the journal mode; SQLite does not wait for others that do so too."""
        deadline = monotonic() + wait
        mode = None
        while mode is None:
            try:
                [(mode,)] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or monotonic() > deadline:
                    raise
                sleep(0.01)
        if mode != b"wal" and self._path:
            raise self.unavailable("its file system does not support WAL")

    def _require_version(self, connection: sqlite3.Connection) -> None:
        [(version,)] = connection.execute("PRAGMA user_version").fetchall()
        if version != SCHEMA_VERSION:
            found = f"its user_version is {version}, not {SCHEMA_VERSION}"
            raise self.unavailable(f"it is no pet store of this version: {found}")
        connection.execute(SELECT_ANY).fetchall()

    def _connect(self, mode: str, wait: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._uri}mode={mode}",
            uri=True,
            timeout=wait,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = bytes
        return connection


def _stat(path: str) -> os.stat_result:
    return os.stat(path) if path else IN_MEMORY


def _blames_database(error: BaseException) -> bool:
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, BUGS)


def _is_busy(error: sqlite3.DatabaseError) -> bool:
    # The lowest byte of an extended result code is the result code.
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _passes(error: sqlite3.DatabaseError) -> bool:
    return _is_busy(error) or error.sqlite_errorcode in NO_ROOM


# A fork must carry along neither a connection (sqlite.org/howtocorrupt.html, section
# 2.6) nor a lock that some other thread holds.
_stores: weakref.WeakSet[PetStore] = weakref.WeakSet()
_paused: list[PetStore] = []
# One fork at a time, and no new store meanwhile.
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
        # Who waits in the old one waits in the parent.
        store.queue = WriteQueue(store.database)
    _after_fork_in_parent()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
