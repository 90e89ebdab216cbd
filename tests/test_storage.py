"""The store: its schema, queries, group commit, memory, forks, and how it is closed."""

import gc
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from tests.conftest import create_client
from tests.helpers import (
    add_pet,
    add_pets,
    all_pets,
    assert_unavailable,
    connected,
    copy_as_if_killed,
    execute,
    intercept_statements,
    locked_by_another_program,
    pets_if_killed_now,
    post_pet,
    refuse_after_failed_rollback,
    sqlite_error,
    wal_of,
)
from tests.process import TIMEOUT, run

# A thread that has not ended after this many seconds is taken to be waiting.
MOMENT = 0.15


def pets_of(creates: Sequence[Future[TestResponse]]) -> list[dict[str, Any]]:
    """Return the pets that were added, oldest first."""
    pets = [create.result().get_json() for create in creates]
    return sorted(pets, key=itemgetter("id"))


# The schema and the queries.


def test_the_file_has_the_schema(file_client: FlaskClient, database: Path) -> None:
    add_pet(file_client)
    assert execute(database, "PRAGMA journal_mode") == [("wal",)]
    assert execute(database, "PRAGMA user_version") == [(1,)]
    assert execute(database, "SELECT * FROM pets") == [(1, "Rex", 1, "available")]
    for mistake in ("name = NULL", "category_id = 'x'", "status = 'x'"):
        with pytest.raises(sqlite3.IntegrityError):
            execute(database, f"UPDATE pets SET {mistake}")


def test_the_id_of_a_deleted_pet_is_not_used_again(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    execute(database, "DELETE FROM pets")
    assert add_pet(file_client)["id"] == 2


def test_the_index_finds_a_page_of_one_status(
    file_client: FlaskClient, database: Path
) -> None:
    query = f"EXPLAIN QUERY PLAN {storage.SELECT_PAGE_OF_STATUS}"
    values = {"limit": 20, "status": "sold", "after": 0}
    with connected(database) as connection:
        [(*_, plan)] = connection.execute(query, values)
    assert plan == "SEARCH pets USING INDEX pets_by_status (status=? AND rowid>?)"


@pytest.mark.parametrize("path", ["/v1/pets?", "/v1/pets?status=sold&"])
def test_pages_are_in_order_even_if_sqlite_reverses_unordered_rows(
    database: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    connect = sqlite3.connect

    def connect_in_reverse(path: str, **options: Any) -> sqlite3.Connection:
        connection = connect(path, **options)
        connection.execute("PRAGMA reverse_unordered_selects = ON")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_in_reverse)
    client = create_client(database)
    ids = add_pets(client, *["sold"] * 5)
    for limit in (2, 5):
        page = client.get(f"{path}limit={limit}").get_json()
        assert [pet["id"] for pet in page] == ids[:limit]


def test_a_read_cannot_change_the_file(database: Path) -> None:
    opened = storage.Database(str(database))
    values = {"name": "Rex", "category_id": 1, "status": "sold"}
    with pytest.raises(storage.StorageUnavailable, match="readonly"):
        opened.read(storage.INSERT_PET, values)
    assert opened.read("SELECT * FROM pets", {}) == []
    opened.close()


def test_a_missing_table_is_an_internal_error(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    execute(database, "DROP TABLE pets")
    assert file_client.get("/v1/pets").status_code == 500
    assert post_pet(file_client).status_code == 500


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "another program uses it"),
        (sqlite3.SQLITE_FULL, "free some space"),
        (sqlite3.SQLITE_IOERR_WRITE, "the disk may be full or failing"),
        (sqlite3.SQLITE_CORRUPT, "restore a backup"),
        (sqlite3.SQLITE_NOTADB, "restore a backup, or choose another file"),
        (sqlite3.SQLITE_CANTOPEN, storage.CHECK_ACCESS),
        (sqlite3.SQLITE_PERM, storage.CHECK_ACCESS),
        (sqlite3.SQLITE_READONLY_DBMOVED, storage.CHECK_ACCESS),
    ],
)
def test_the_log_says_what_to_do_about_an_error(
    database: Path, caplog: pytest.LogCaptureFixture, code: int, hint: str
) -> None:
    def fail(sql: str) -> None:
        if "LIMIT :limit" in sql:
            raise sqlite_error("reason", code)

    client = create_client(database)
    with intercept_statements(before=fail):
        assert_unavailable(client.get("/v1/pets"))
    assert caplog.messages[-1].endswith(f"pets.db: reason; {hint}")


def test_every_commit_is_synced_even_if_sqlite_does_not_sync_by_default(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = sqlite3.connect, []

    def connect_without_sync(path: str, **options: Any) -> sqlite3.Connection:
        opened.append(connect(path, **options))
        opened[-1].execute("PRAGMA synchronous = OFF")
        return opened[-1]

    client = create_client(database)
    monkeypatch.setattr(sqlite3, "connect", connect_without_sync)
    add_pet(client)
    writer = opened[-1]
    assert writer.total_changes == 1
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?b.db", "a#b.db", "é😀.db"])
def test_the_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    add_pet(create_client(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


# Group commit.


def test_writes_that_wait_are_committed_together(
    file_client: FlaskClient, database: Path
) -> None:
    statements: list[str] = []
    with (
        intercept_statements(before=lambda sql: statements.append(sql.split()[0])),
        ThreadPoolExecutor(8) as threads,
    ):
        with locked_by_another_program(database):
            creates = [threads.submit(post_pet, file_client) for _ in range(8)]
            assert not wait(creates, MOMENT).done
        assert pets_of(creates) == all_pets(file_client)
    assert statements.count("INSERT") == 8
    # Usually one. A late thread may cause another.
    assert statements.count("COMMIT") < 4


def test_one_failing_statement_fails_its_whole_batch(
    file_client: FlaskClient, database: Path
) -> None:
    trigger = "CREATE TRIGGER refuse BEFORE INSERT ON pets WHEN new.name = 'bad'"
    execute(database, f"{trigger} BEGIN SELECT RAISE(ABORT, 'bad'); END")
    with ThreadPoolExecutor(8) as threads, locked_by_another_program(database):
        names = ["Rex", "bad"] * 4
        creates = [threads.submit(post_pet, file_client, name) for name in names]
        assert not wait(creates, MOMENT).done
    assert [create.result().status_code for create in creates] == [500] * 8
    pet = add_pet(file_client)
    assert pet["id"] == 1
    assert pets_if_killed_now(database) == [pet]


def test_a_failed_write_does_not_change_the_version_of_the_schema(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    migrate = ["BEGIN", "ALTER TABLE pets ADD COLUMN legs INTEGER NOT NULL DEFAULT 4"]
    migrate += ["PRAGMA user_version = 2", "COMMIT"]
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON pets"
    execute(database, *migrate, f"{refuse} BEGIN SELECT RAISE(ABORT, 'no'); END")
    assert post_pet(file_client).status_code == 500
    assert execute(database, "PRAGMA user_version") == [(2,)]
    assert all_pets(file_client) == pets


def test_a_commit_that_could_not_be_synced_is_not_replayed(database: Path) -> None:
    sync_results = iter(["works", "fails"])

    def fail_to_sync(sql: str) -> None:
        if sql != "COMMIT" or next(sync_results, "works") == "works":
            return
        # A failed sync leaves the whole commit in the WAL.
        copy = copy_as_if_killed(database)
        add_other = "INSERT INTO pets VALUES (2, 'not synced', 1, 'sold')"
        with connected(copy, add_other):
            wal_of(database).write_bytes(wal_of(copy).read_bytes())
        assert len(pets_if_killed_now(database)) == 2
        raise sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR_FSYNC)

    client = create_client(database)
    with intercept_statements(before=fail_to_sync):
        pets = [add_pet(client)]
        assert_unavailable(post_pet(client))
    assert pets_if_killed_now(database) == pets
    pets.append(add_pet(client))
    assert pets_if_killed_now(database) == pets


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_failed_rollback_does_not_block_the_next_write(
    database: Path, is_in_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = ":memory:" if is_in_memory else database
    client = create_client(path)
    pets = [refuse_after_failed_rollback(client)]
    assert caplog.messages[-1] == f"storage unavailable: {path}: out of memory"
    pets.append(add_pet(client))
    assert all_pets(client) == pets


@pytest.mark.parametrize("error", [RuntimeError("can't start"), MemoryError()])
def test_a_write_is_refused_and_not_stored_later_if_no_thread_can_start(
    file_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail_to_start(_: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail_to_start)
        assert_unavailable(post_pet(file_client))
    responses: list[TestResponse] = []
    create = threading.Thread(
        target=lambda: responses.append(post_pet(file_client)), daemon=True
    )
    create.start()
    create.join(TIMEOUT)
    assert [response.get_json() for response in responses] == all_pets(file_client)
    assert len(responses) == 1


def test_memory_does_not_grow_while_creates_overlap(database: Path) -> None:
    threads: list[threading.Thread] = []
    future_counts: list[int] = []

    def send_more(sql: str) -> None:
        if sql != "COMMIT" or len(future_counts) == 6:
            return
        threads.extend(
            threading.Thread(target=post_pet, args=[client]) for _ in range(8)
        )
        for thread in threads[-8:]:
            thread.start()
        # They wait for the next commit.
        threads[-1].join(0.05)
        assert threads[-1].is_alive()
        future_counts.append(sum(type(item) is Future for item in gc.get_objects()))

    client = create_client(database)
    with intercept_statements(before=send_more):
        add_pet(client)
        while threads:
            threads.pop(0).join(TIMEOUT)
    assert len(all_pets(client)) == 1 + 6 * 8
    assert len(future_counts) == 6
    assert future_counts[-1] - future_counts[1] < 16


@contextmanager
def between_two_commits(
    client: FlaskClient,
) -> Iterator[tuple[Future[TestResponse], Future[TestResponse], threading.Event]]:
    """Add two pets, and stop the thread that commits them after the first COMMIT.

    It goes on when the event is set.
    """
    creates: list[Future[TestResponse]] = []
    has_committed, may_go_on = threading.Event(), threading.Event()

    def queue_another_write(sql: str) -> None:
        if sql == "COMMIT" and len(creates) == 1:
            creates.append(threads.submit(post_pet, client))
            assert not wait(creates, MOMENT).done

    def wait_for_event(sql: str) -> None:
        if sql == "COMMIT":
            has_committed.set()
            may_go_on.wait(TIMEOUT)

    with (
        intercept_statements(before=queue_another_write, after=wait_for_event),
        ThreadPoolExecutor(2) as threads,
    ):
        creates.append(threads.submit(post_pet, client))
        assert has_committed.wait(TIMEOUT)
        first, second = creates
        yield first, second, may_go_on


def test_a_committed_write_returns_while_the_next_one_waits_for_the_lock(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr(storage, "WRITE_TIMEOUT", TIMEOUT)
    with (
        between_two_commits(file_client) as (stored, waiting, may_go_on),
        locked_by_another_program(database),
    ):
        may_go_on.set()
        assert stored.result(TIMEOUT / 2).status_code == 201
        assert not waiting.done()
    assert all_pets(file_client) == pets_of([stored, waiting])


def test_a_committed_write_returns_if_the_next_one_fails(
    file_client: FlaskClient, database: Path
) -> None:
    with between_two_commits(file_client) as (stored, refused, may_go_on):
        moved = database.rename(database.with_name("moved.db"))
        database.touch()
        may_go_on.set()
        assert stored.result(TIMEOUT / 2).status_code == 201
        assert_unavailable(refused.result(TIMEOUT / 2))
    moved.replace(database)
    assert all_pets(file_client) == pets_of([stored])


# Another program has the write lock.


def test_eight_writes_wait_and_reads_do_not(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.05)
    client = create_client(database)
    with ThreadPoolExecutor(8) as threads:
        with locked_by_another_program(database):
            creates = [threads.submit(post_pet, client) for _ in range(8)]
            # Longer than BUSY_TIMEOUT.
            assert not wait(creates, MOMENT).done
            assert all_pets(client) == []
        assert pets_of(creates) == all_pets(client)


def test_more_than_eight_writes_fail_early_and_are_not_stored_later(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.2)
    monkeypatch.setattr(storage, "WRITE_TIMEOUT", TIMEOUT)
    client = create_client(database)
    with ThreadPoolExecutor(16) as threads, locked_by_another_program(database):
        creates = [threads.submit(post_pet, client) for _ in range(16)]
        assert not wait(creates, TIMEOUT / 2).not_done
    assert_unavailable(*(create.result() for create in creates))
    pet = add_pet(client)
    assert all_pets(client) == [pet]


def test_a_write_fails_after_its_timeout_and_is_not_stored_later(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr(storage, "WRITE_TIMEOUT", 0.2)
    client = create_client(database)
    with ThreadPoolExecutor(1) as threads, locked_by_another_program(database):
        create = threads.submit(post_pet, client)
        assert not wait([create], 0.1).done
        wait([create], TIMEOUT)
    assert_unavailable(create.result())
    assert f"{database}: database is locked; " in caplog.messages[-1]
    pet = add_pet(client)
    assert all_pets(client) == [pet]


# Memory.


def test_each_application_in_memory_has_its_own_store_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client, other = create_client(":memory:"), create_client(":memory:")
    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(post_pet, client) for _ in range(80)]
    assert all_pets(client) == pets_of(creates)
    assert len(pets_of(creates)) == 80
    assert all_pets(other) == list(tmp_path.iterdir()) == []


@contextmanager
def blocked_inserts() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Let each INSERT wait, on the connections that are opened in a `with` block.

    The first event says that an INSERT has begun to wait, the second one ends the wait.
    """
    has_begun, may_go_on = threading.Event(), threading.Event()

    def wait_for_event(sql: str) -> None:
        if "INSERT" in sql:
            has_begun.set()
            may_go_on.wait(TIMEOUT)

    with intercept_statements(after=wait_for_event):
        yield has_begun, may_go_on


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_read_shows_no_pet_before_its_commit(
    database: Path, is_in_memory: bool
) -> None:
    with blocked_inserts() as (has_begun, may_go_on), ThreadPoolExecutor(2) as threads:
        client = create_client(":memory:" if is_in_memory else database)
        create = threads.submit(post_pet, client)
        assert has_begun.wait(TIMEOUT)
        read = threads.submit(all_pets, client)
        if is_in_memory:
            # Reads and writes share a connection, so the read has to wait.
            assert not wait([read], MOMENT).done
            may_go_on.set()
            assert read.result() == pets_of([create])
        else:
            assert read.result() == []
            may_go_on.set()
            assert pets_of([create]) == all_pets(client)


# Forks. Newer Pythons warn if a process with threads forks.

ignore_warning = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)


def run_in_fork(action: Callable[[], object]) -> int | None:
    """Call a function in a fork of this process, and return its exit status."""
    child = multiprocessing.get_context("fork").Process(target=action, daemon=True)
    child.start()
    child.join(TIMEOUT)
    return child.exitcode


@ignore_warning
@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_fork_before_the_first_use_works(database: Path, is_in_memory: bool) -> None:
    client = create_client(":memory:" if is_in_memory else database)

    def use_the_store() -> None:
        pet = add_pet(client)
        assert all_pets(client)[-1] == pet

    assert [run_in_fork(use_the_store) for _ in range(2)] == [0, 0]
    use_the_store()
    assert len(all_pets(client)) == (1 if is_in_memory else 3)


@ignore_warning
@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_fork_after_the_first_use_is_refused_and_the_parent_goes_on(
    database: Path, is_in_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    client = create_client(":memory:" if is_in_memory else database)
    pets = [add_pet(client)]

    def try_the_store() -> None:
        assert_unavailable(post_pet(client), client.get("/v1/pets"))
        for message in caplog.messages[-2:]:
            assert "the method spawn or forkserver of multiprocessing" in message
        # A new store works, and the old one can be garbage-collected.
        add_pet(create_client(database.with_name("child.db")))
        gc.collect()

    assert run_in_fork(try_the_store) == 0
    pets.append(add_pet(client))
    assert all_pets(client) == pets


@ignore_warning
def test_a_fork_does_not_close_the_connections_of_its_parent(database: Path) -> None:
    clients = [create_client(database)]
    pets = [add_pet(clients[0])]

    def drop_the_store() -> None:
        opened = open_files(database.parent)
        assert len(opened) > 2
        clients.clear()
        gc.collect()
        assert open_files(database.parent) == opened

    assert run_in_fork(drop_the_store) == 0
    assert all_pets(clients[0]) == pets


# A program that forks while its threads create pets, and prints how each child ends.
FORKS_UNDER_LOAD = """
import os, signal, sys, threading
from tests.conftest import create_client
from tests.helpers import post_pet

client = create_client(sys.argv[1])
post_pet(client)

def create():
    while True:
        post_pet(client)

for _ in range(2):
    threading.Thread(target=create, daemon=True).start()
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(5)  # ends a child that hangs
        statuses = post_pet(client).status_code, client.get("/healthz").status_code
        sys.exit(statuses != (503, 503))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(post_pet(client).status_code)
"""


def test_no_child_of_a_busy_process_hangs(database: Path) -> None:
    ended = run("python", "-W", "ignore", "-c", FORKS_UNDER_LOAD, str(database))
    assert ended.stdout.split() == [*["0"] * 3, "201"]


# How it is closed.


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open."""
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [file for file in files if file.startswith(str(folder))]


def test_a_dropped_store_leaves_no_thread_no_open_file_and_no_wal(
    database: Path,
) -> None:
    threads_before = threading.enumerate()
    client = create_client(database)
    pets = [add_pet(client), add_pet(client)]
    [thread] = set(threading.enumerate()) - set(threads_before)
    del client
    gc.collect()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert open_files(database.parent) == []
    assert list(database.parent.iterdir()) == [database]
    assert all_pets(create_client(database)) == pets


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_closed_database_stays_closed(database: Path, is_in_memory: bool) -> None:
    opened = storage.Database(":memory:" if is_in_memory else str(database))
    pet = {"name": "Rex", "category_id": 1, "status": "sold"}
    assert opened.write(storage.INSERT_PET, pet)
    opened.close()
    with pytest.raises(storage.StorageUnavailable, match="the store is closed"):
        opened.read(storage.PROBE, {})
    with pytest.raises(storage.StorageUnavailable, match="after shutdown"):
        opened.write(storage.INSERT_PET, pet)


def test_a_failed_opening_leaves_no_open_file(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def limit_open_files(path: str, **options: Any) -> sqlite3.Connection:
        if open_files(database.parent).count(str(database)) == 2:
            raise sqlite_error("unable to open", sqlite3.SQLITE_CANTOPEN)
        return connect(path, **options)

    monkeypatch.setattr(sqlite3, "connect", limit_open_files)
    gc.disable()
    try:
        assert_unavailable(post_pet(file_client))
        assert open_files(database.parent) == []
    finally:
        gc.enable()


def test_a_dropped_store_that_was_moved_leaves_every_pet_in_its_file(
    database: Path,
) -> None:
    client = create_client(database)
    pets = [add_pet(client), add_pet(client)]
    moved = database.rename(database.with_name("moved.db"))
    del client
    gc.collect()
    assert open_files(database.parent) == []
    assert all_pets(create_client(moved)) == pets


def test_two_stores_may_use_one_file(file_client: FlaskClient, database: Path) -> None:
    other = create_client(database)
    pets = [add_pet(file_client), add_pet(other), add_pet(file_client)]
    assert all_pets(other) == all_pets(file_client) == pets


# A program that ends while its threads create pets, and prints each status.
ENDS_UNDER_LOAD = """
import os, sys, threading
from tests.conftest import create_client
from tests.helpers import post_pet

client = create_client(sys.argv[1])

def create(thread, count):
    for number in range(count):
        name = f"{thread} {number}"
        os.write(1, f"{post_pet(client, name).status_code} {name}\\n".encode())

for number in range(8):
    threading.Thread(target=create, args=[number, 10_000], daemon=True).start()
create(8, 20)
"""


def test_a_program_may_end_while_its_threads_create_pets(database: Path) -> None:
    ended = run("python", "-c", ENDS_UNDER_LOAD, str(database))
    stored = {pet["name"] for pet in all_pets(create_client(database))}
    responses = [line.partition(" ")[::2] for line in ended.stdout.splitlines()]
    assert {name for status, name in responses if status == "201"} <= stored != set()
    assert not stored & {name for status, name in responses if status == "503"}
    assert {status for status, _ in responses} <= {"201", "503"}
    assert ended.returncode == 0
