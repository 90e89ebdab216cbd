"""The store behind the operations: its file, its queue, its faults, memory, forks."""

import gc
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from operator import itemgetter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from app import StartError
from tests.checks import (
    add_pet,
    all_pets,
    assert_unavailable,
    execute,
    held,
    post,
    used_by_another,
)
from tests.conftest import client_of
from tests.service import PATIENCE, run

# Newer Pythons warn of every fork of a process that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def pets_of(creates: Sequence[Future[TestResponse]]) -> list[dict[str, Any]]:
    """Return the pets that were added, oldest first."""
    pets = [create.result().get_json() for create in creates]
    return sorted(pets, key=itemgetter("id"))


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


READ = ("BEGIN", "SELECT * FROM pets")


def read_by_another(database: Path) -> AbstractContextManager[object]:
    """Read the file as another program would, for the length of a `with` block."""
    return used_by_another(database, *READ)


def backup(database: Path, copy: Path) -> None:
    execute(database, f"VACUUM INTO '{copy}'")


def pets_after_kill_9(database: Path) -> list[dict[str, Any]]:
    """Return the pets that a new start would find if this process ended now."""
    copy = Path(mkdtemp(dir=database.parent), "pets.db")
    shutil.copy(database, copy)
    if wal_of(database).exists():
        shutil.copy(wal_of(database), wal_of(copy))
    return all_pets(client_of(copy))


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open, each as often."""
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [file for file in files if file.startswith(str(folder))]


@contextmanager
def after_each_statement(act: Callable[[str], object]) -> Iterator[None]:
    """Act after each statement to SQLite of what is opened in a `with` block."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *values)
            act(sql)
            return cursor

    connect = partial(sqlite3.connect, factory=Connection)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        yield


# The file.


def test_the_file_is_made_as_designed_and_holds_nothing_but_pets(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    assert execute(database, "PRAGMA journal_mode") == [("wal",)]
    assert execute(database, "PRAGMA user_version") == [(1,)]
    assert execute(database, "SELECT * FROM pets") == [(1, "Rex", 1, "available")]
    for fault in ("name = NULL", "category_id = 'x'", "status = 'x'"):
        with pytest.raises(sqlite3.IntegrityError):
            execute(database, f"UPDATE pets SET {fault}")
    # The id of a pet that is removed is not used again.
    execute(database, "DELETE FROM pets")
    assert add_pet(file_client)["id"] == 2


def test_a_page_of_one_status_is_found_in_the_index(
    file_client: FlaskClient, database: Path
) -> None:
    query = f"EXPLAIN QUERY PLAN {storage.SELECT_PAGE_OF_STATUS}"
    values = {"limit": 20, "status": "sold", "after": 0}
    with used_by_another(database) as connection:
        plan = [detail for *_, detail in connection.execute(query, values)]
    steps = [step for step in plan if "pets" in step]
    assert len(steps) == 3
    assert all("INDEX pets_by_status (status=? AND id>?" in step for step in steps)
    assert not any("TEMP B-TREE" in step for step in plan)


def test_every_commit_is_synced_though_sqlite_was_built_not_to(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = sqlite3.connect, []

    def connect_without_sync(path: str, **options: Any) -> sqlite3.Connection:
        opened.append(connect(path, **options))
        opened[-1].execute("PRAGMA synchronous = OFF")
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_without_sync)
    client = client_of(database)
    add_pet(client)
    writer = opened[-1]
    assert writer.total_changes == 1
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?b.db", "a#b.db", "é😀.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    add_pet(client_of(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("target", ["../real.db", "../missing.db"])
def test_the_path_may_lead_over_links_to_an_empty_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "real.db").touch()
    (tmp_path / "folder" / "pets.db").symlink_to(target)
    (tmp_path / "link").symlink_to("folder")
    monkeypatch.chdir(tmp_path)
    client = client_of("link/pets.db")
    monkeypatch.chdir("/")
    pets = [add_pet(client), add_pet(client)]
    assert all_pets(client) == pets_after_kill_9(tmp_path / "folder" / target) == pets
    assert (tmp_path / "folder" / "pets.db").is_symlink()


def test_a_store_that_is_dropped_completes_its_moved_file_and_leaves_none_open(
    database: Path,
) -> None:
    client = client_of(database)
    pets = [add_pet(client), add_pet(client)]
    file = database.rename(database.with_name("moved.db"))
    del client
    gc.collect()
    assert open_files(database.parent) == []
    assert all_pets(client_of(file)) == pets


# The start.


@pytest.mark.parametrize(
    ("use", "is_there"),
    [
        (["BEGIN EXCLUSIVE"], True),
        (["BEGIN IMMEDIATE"], True),
        (READ, True),
        (["BEGIN IMMEDIATE"], False),
    ],
)
def test_a_start_waits_for_who_uses_a_backup_or_makes_it_but_not_for_ever(
    database: Path, monkeypatch: pytest.MonkeyPatch, use: Sequence[str], is_there: bool
) -> None:
    if is_there:
        client_of(database)
        # Such is the mode of a backup. Who reads it keeps others from entering WAL.
        execute(database, "PRAGMA journal_mode = DELETE")
    with used_by_another(database, *use) as other, ThreadPoolExecutor(1) as threads:
        with monkeypatch.context() as patch:
            patch.setattr(storage, "START_WAIT", 0.1)
            with pytest.raises(StartError, match=f"{database}: database is locked"):
                client_of(database)
        start = threads.submit(client_of, database)
        assert not wait([start], timeout=0.4).done
        other.execute("COMMIT")
        assert all_pets(start.result()) == []


def test_nothing_starts_where_there_can_be_no_wal(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_without_wal(path: str, **options: Any) -> sqlite3.Connection:
        # This part of SQLite knows no shared memory, as some file systems do not.
        return connect(f"{path}&vfs=unix-dotfile", **options)

    monkeypatch.setattr(sqlite3, "connect", connect_without_wal)
    with pytest.raises(StartError, match="db: its file system does not support WAL"):
        client_of(database)


def test_a_start_goes_on_where_a_kill_has_ended_another_that_made_the_file(
    database: Path,
) -> None:
    killed = database.with_suffix(".killed")
    # So much that SQLite writes to the file before it commits.
    large = ("PRAGMA cache_size = 1", "BEGIN", "CREATE TABLE a AS SELECT zeroblob(1e6)")
    with used_by_another(database, *large):
        for suffix in ("", "-journal"):
            shutil.copy(f"{database}{suffix}", f"{killed}{suffix}")
    assert add_pet(client_of(killed))["id"] == 1


# The queue.


@contextmanager
def slow_inserts() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Have each pet of what is opened in a `with` block wait while it is written.

    Of the two events, one tells that it has begun, the other lets it go on.
    """
    has_begun, may_go_on = threading.Event(), threading.Event()

    def wait_after_insert(sql: str) -> None:
        if "INSERT" in sql:
            has_begun.set()
            may_go_on.wait(PATIENCE)

    with after_each_statement(wait_after_insert):
        yield has_begun, may_go_on


def test_any_number_waits_for_a_slow_write_even_after_the_file_was_held(
    database: Path,
) -> None:
    with slow_inserts() as (has_begun, may_go_on), ThreadPoolExecutor(32) as threads:
        client = client_of(database)
        with held(database):
            creates = [threads.submit(post, client)]
            assert not wait(creates, timeout=0.4).done
        assert has_begun.wait(PATIENCE)
        creates += [threads.submit(post, client) for _ in range(31)]
        assert not wait(creates, timeout=0.3).done
        may_go_on.set()
    assert len(pets_of(creates)) == len(all_pets(client)) == 32


def test_a_pet_is_refused_in_time_unless_its_transaction_has_begun(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.3)
    with slow_inserts() as (has_begun, may_go_on), ThreadPoolExecutor(1) as threads:
        client = client_of(database)
        create = threads.submit(post, client)
        assert has_begun.wait(PATIENCE)
        assert_unavailable(post(client))
        assert caplog.messages[-1].endswith(": the database was busy for too long")
        # Reads do not wait.
        assert all_pets(client) == []
        assert not create.done()
        may_go_on.set()
    assert all_pets(client) == pets_of([create])


def test_pets_that_were_refused_leave_their_seats_and_are_not_stored_later(
    file_client: FlaskClient,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.3)
    with ThreadPoolExecutor(12) as threads, held(database):
        creates = [threads.submit(post, file_client) for _ in range(12)]
        assert_unavailable(*(create.result() for create in creates))
        assert all_pets(file_client) == []
        monkeypatch.setattr(storage, "WRITE_WAIT", PATIENCE)
        creates = [threads.submit(post, file_client) for _ in range(8)]
        assert not wait(creates, timeout=0.3).done
        # There is no ninth seat.
        assert_unavailable(post(file_client))
        assert caplog.messages[-1].endswith(": the database is busy, and many wait")
    assert all_pets(file_client) == pets_of(creates)


def test_a_pet_that_is_being_withdrawn_takes_no_other_with_it(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Future.cancel
    pets: list[dict[str, Any]] = []

    def add_another_meanwhile(write: Future[Any]) -> bool:
        is_withdrawn = cancel(write)
        # It has not left those that wait yet.
        if is_withdrawn and other.in_transaction:
            other.execute("COMMIT")
            monkeypatch.setattr(storage, "WRITE_WAIT", PATIENCE)
            pets.append(add_pet(file_client))
        return is_withdrawn

    monkeypatch.setattr(Future, "cancel", add_another_meanwhile)
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.1)
    with used_by_another(database, "BEGIN IMMEDIATE") as other:
        assert_unavailable(post(file_client))
    assert all_pets(file_client) == pets != []


def test_a_create_that_is_interrupted_while_it_waits_is_not_stored(
    file_client: FlaskClient, database: Path
) -> None:
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with held(database), pytest.raises(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        post(file_client)
    signal.signal(signal.SIGALRM, handler)
    pet = add_pet(file_client)
    assert all_pets(file_client) == [pet]


def test_a_transaction_that_fails_fails_for_each_of_its_pets_and_for_no_other(
    file_client: FlaskClient, database: Path
) -> None:
    bug = "CREATE TRIGGER bug BEFORE INSERT ON pets WHEN new.name = 'bug'"
    execute(database, f"{bug} BEGIN SELECT RAISE(ABORT, 'bug'); END")
    names = ["bug", "Rex"] * 4
    with ThreadPoolExecutor(8) as threads, held(database):
        creates = [threads.submit(post, file_client, name) for name in names]
        assert not wait(creates, timeout=0.4).done
    assert [create.result().status_code for create in creates] == [500] * 8
    pet = add_pet(file_client)
    assert pet["id"] == 1
    assert pets_after_kill_9(database) == all_pets(file_client) == [pet]


# Says which pets were stored and which refused, and ends while others are sent.
ENDS_UNDER_LOAD = """
import os, sys, threading
from tests.checks import post
from tests.conftest import client_of

client = client_of(sys.argv[1])

def create(thread, count):
    for number in range(count):
        name = f"{thread} {number}"
        os.write(1, f"{post(client, name).status_code} {name}\\n".encode())

for number in range(8):
    threading.Thread(target=create, args=[number, 10_000], daemon=True).start()
create(8, 20)
"""


def test_a_program_that_ends_loses_nothing_and_stores_nothing_refused(
    database: Path,
) -> None:
    ended = run("python", "-c", ENDS_UNDER_LOAD, str(database))
    stored = {pet["name"] for pet in all_pets(client_of(database))}
    answers = [line.partition(" ")[::2] for line in ended.stdout.splitlines()]
    assert {name for status, name in answers if status == "201"} <= stored != set()
    assert not stored & {name for status, name in answers if status == "503"}
    assert {status for status, _ in answers} <= {"201", "503"}


# Faults of the files.


def test_a_moved_file_takes_no_pet_until_it_is_back_nor_does_what_is_no_store(
    file_client: FlaskClient, database: Path
) -> None:
    away = database.with_suffix(".away")
    pets = [add_pet(file_client)]
    database.rename(away)
    assert_unavailable(post(file_client), file_client.get("/v1/pets"))
    assert not database.exists()
    assert pets_after_kill_9(away) == pets
    backup(away, database)
    execute(database, "PRAGMA user_version = 2")
    assert_unavailable(post(file_client), file_client.get("/v1/pets"))
    away.rename(database)
    pets.append(add_pet(file_client))
    assert all_pets(file_client) == pets


def test_an_emptied_file_takes_no_pet_until_it_is_back_and_loses_none(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pets = [add_pet(file_client)]
    content = database.read_bytes()
    os.truncate(database, 0)
    assert_unavailable(post(file_client), file_client.get("/v1/pets"))
    assert caplog.messages[-1].endswith(f"{database}: it has been emptied")
    database.write_bytes(content)
    assert all_pets(file_client) == pets


def test_a_damaged_file_is_never_an_empty_list_and_opened_anew_once_mended(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client, name="x" * 1000) for _ in range(100)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    # Opened by now, but most of its pages are not read yet.
    reader = client_of(database)
    assert reader.get("/healthz").status_code == 200
    content = database.read_bytes()
    database.write_bytes(os.urandom(len(content)))
    assert_unavailable(reader.get("/v1/pets"), reader.get("/v1/pets/1"))
    assert_unavailable(post(reader), reader.get("/healthz"))
    database.write_bytes(content)
    assert all_pets(reader) == pets


def test_another_store_moved_over_the_file_is_not_mixed_with_the_old_one(
    file_client: FlaskClient, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, other, old = map(database.with_suffix, (".source", ".other", ".old"))
    # More than fits into a page: its first pages are of another kind than the old ones.
    pets = [add_pet(client_of(source), name="x" * 1000) for _ in range(10)]
    backup(source, other)
    old_pets = [add_pet(file_client, name="old") for _ in range(5)]
    with read_by_another(database):
        old.hardlink_to(database)
        other.replace(database)
        assert_unavailable(file_client.get("/v1/pets"), post(file_client))
    assert caplog.messages[-1].endswith(": another program still reads the old one")
    assert all_pets(file_client) == pets
    pets.append(add_pet(file_client))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets
    assert pets_after_kill_9(old) == old_pets


def test_a_wal_that_is_removed_costs_no_pet(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    wal_of(database).unlink()
    assert file_client.get("/v1/pets").get_json() == pets_after_kill_9(database) == pets
    pets.append(add_pet(file_client))
    wal_of(database).unlink()
    pets.append(add_pet(file_client))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


@pytest.mark.parametrize("number", range(7))
def test_a_wal_that_is_removed_while_it_is_opened_costs_no_pet(
    file_client: FlaskClient,
    database: Path,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pets = [add_pet(file_client)]
    wal_of(database).unlink()
    statements = count()

    def unlink_after_one(_: str) -> None:
        if next(statements) == number:
            wal_of(database).unlink()

    with after_each_statement(unlink_after_one):
        answers = [post(file_client), post(file_client)]
    assert next(statements) > number
    statuses = [answer.status_code for answer in answers]
    assert statuses in ([201, 201], [503, 201])
    has_said_so = f"{database}: it was moved while it was opened" in caplog.text
    assert has_said_so == (503 in statuses)
    pets += [answer.get_json() for answer in answers if answer.status_code == 201]
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


def test_another_program_may_empty_the_wal_and_read(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    with read_by_another(database):
        assert all_pets(file_client) == pets
        pets.append(add_pet(file_client))
        assert all_pets(file_client) == pets


# Memory.


def test_memory_is_one_store_for_all_threads_of_an_application_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with slow_inserts() as (has_begun, may_go_on), ThreadPoolExecutor(2) as threads:
        client, other = client_of(":memory:"), client_of(":memory:")
        create = threads.submit(post, client)
        assert has_begun.wait(PATIENCE)
        # There is one connection, which would read what is not committed yet.
        read = threads.submit(all_pets, client)
        assert not wait([read], timeout=0.4).done
        may_go_on.set()
        assert read.result() == pets_of([create])
    assert all_pets(other) == list(tmp_path.iterdir()) == []


# Forks.


def status_of_child(work: Callable[[], object]) -> int | None:
    """Do the work in a fork of this process; return how it ended: 0 if it went well."""
    child = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    child.start()
    child.join(PATIENCE)
    return child.exitcode


def test_parent_and_child_go_on_after_a_fork_of_a_busy_application(
    file_client: FlaskClient, database: Path
) -> None:
    is_over = threading.Event()

    def add_until_it_is_over() -> list[dict[str, Any]]:
        return [add_pet(file_client) for _ in iter(is_over.is_set, True)]

    def add_two() -> None:
        assert open_files(database.parent) == []
        add_pet(file_client)
        add_pet(client_of(database))

    with ThreadPoolExecutor(4) as threads:
        creates = [threads.submit(add_until_it_is_over) for _ in range(4)]
        children = [status_of_child(add_two) for _ in range(4)]
        is_over.set()
    with read_by_another(database):
        children.append(status_of_child(partial(add_pet, file_client)))
    assert children == [0] * 5
    pets = [pet for create in creates for pet in create.result()]
    pets.append(add_pet(file_client))
    stored = all_pets(file_client)
    assert len(stored) == len(pets) + 2 * 4 + 1
    assert all(pet in stored for pet in pets)


# A program of its own, which is ended where its threads block each other.
FORK_AT_ONCE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from tests.conftest import client_of

def fork(_):
    os.waitpid(os.fork() or os._exit(0), 0)

client = client_of(sys.argv[1])
sys.setswitchinterval(1e-6)  # so that the threads meet
with ThreadPoolExecutor(3) as threads:
    list(threads.map(fork, range(60)))
print(client.get("/healthz").status_code)
"""


def test_threads_that_fork_at_once_do_not_block_each_other(database: Path) -> None:
    ended = run("python", "-W", "ignore", "-c", FORK_AT_ONCE, str(database))
    assert (ended.stdout, ended.returncode) == ("200\n", 0)


def test_each_process_goes_on_with_a_memory_of_its_own_after_a_fork(
    client: FlaskClient,
) -> None:
    add_pet(client)

    def add_second() -> None:
        assert add_pet(client)["id"] == len(all_pets(client)) == 2

    assert status_of_child(add_second) == 0
    add_second()
