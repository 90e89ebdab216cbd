"""The store behind the operations: its file, its queue, its faults, memory, forks."""

import gc
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from app import StartError, create_app
from tests.checks import PET, add_pet, add_pets, assert_error
from tests.conftest import client_with_key
from tests.service import KEY, PATIENCE, ROOT, environment

# Seconds for which a read may go on with the files that it knows.
LOOK_EVERY = 0.02


def client_of(database: Path | str) -> FlaskClient:
    return client_with_key(create_app({"API_KEYS": KEY, "DATABASE": database}))


def start_refusal(database: Path) -> str:
    """Return why the start fails."""
    with pytest.raises(StartError) as error:
        client_of(database)
    return str(error.value)


def post(client: FlaskClient, name: str = "Rex") -> TestResponse:
    """Send a pet, as a client of its own: several threads may do so at once."""
    client = client_with_key(client.application)
    return client.post("/v1/pets", json={**PET, "name": name})


def post_at_once(client: FlaskClient, *names: str) -> list[TestResponse]:
    """Send several pets, each from a thread of its own."""
    with ThreadPoolExecutor(len(names)) as threads:
        return list(threads.map(lambda name: post(client, name), names))


def all_pets(client: FlaskClient) -> list[dict[str, Any]]:
    """Return every pet, page by page."""
    pets: list[dict[str, Any]] = []
    path = "/v1/pets?limit=100"
    while path:
        page = client.get(path)
        pets += page.get_json()
        path = page.headers.get("Link", "").partition(">")[0].lstrip("<")
    return pets


def assert_unavailable(*answers: TestResponse) -> None:
    for answer in answers:
        assert_error(answer, 503, "storage_unavailable")


def wal_of(database: Path) -> Path:
    return Path(f"{database}-wal")


def execute(database: Path, sql: str, *values: object) -> None:
    """Run a statement in the file as another program would."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(sql, values).fetchall()


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Hold the file as another program that writes would, for a `with` block."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def a_create_that_waits(
    client: FlaskClient, database: Path
) -> Iterator[Future[TestResponse]]:
    """Hold the file for a `with` block in which a create waits for it.

    The create has looked at the files when the block begins.
    """
    with ThreadPoolExecutor(1) as threads, held(database):
        create = threads.submit(post, client)
        assert not wait([create], timeout=0.1).done
        yield create


def copy_as_of_kill_9(database: Path, copy: Path) -> None:
    """Copy the files as they are on the disk, while the store has them open."""
    shutil.copy(database, copy)
    if wal_of(database).exists():
        shutil.copy(wal_of(database), wal_of(copy))


def pets_after_kill_9(database: Path) -> list[dict[str, Any]]:
    """Return the pets that a new start would find if this process ended now."""
    copy = Path(mkdtemp(dir=database.parent), "pets.db")
    copy_as_of_kill_9(database, copy)
    return all_pets(client_of(copy))


def open_files(folder: Path) -> list[str]:
    """Return the files in a folder that this process has open, each as often."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # The one that lists the others is closed by now.
        with suppress(FileNotFoundError):
            paths.append(os.readlink(descriptor))
    return [path for path in paths if path.startswith(str(folder))]


# The file.


def test_pets_outlive_the_process(client: FlaskClient, database: Path) -> None:
    pet = add_pet(client)
    assert client_of(database).get("/v1/pets").get_json() == [pet]


def test_the_file_is_made_as_designed(client: FlaskClient, database: Path) -> None:
    add_pet(client)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT * FROM pets").fetchall() == [
            (1, "Rex", 1, "available")
        ]


@pytest.mark.parametrize(
    "fault",
    [
        "name = NULL",
        "name = x'00'",
        "category_id = NULL",
        "category_id = 'x'",
        "category_id = 1.5",
        "status = NULL",
        "status = 'lost'",
    ],
)
def test_nobody_can_put_into_the_file_what_is_no_pet(
    client: FlaskClient, database: Path, fault: str
) -> None:
    add_pet(client)
    with pytest.raises(sqlite3.IntegrityError):
        execute(database, f"UPDATE pets SET {fault}")


def test_a_page_of_one_status_is_found_in_the_index(
    client: FlaskClient, database: Path
) -> None:
    query = f"EXPLAIN QUERY PLAN {storage.SELECT_PAGE_OF_STATUS}"
    with closing(sqlite3.connect(database)) as connection:
        values = {"limit": 20, "status": "sold", "after": 0}
        plan = [detail for *_, detail in connection.execute(query, values)]
    steps = [step for step in plan if "pets" in step]
    assert steps
    for step in steps:
        assert step.startswith("SEARCH pets USING ")
        assert "INDEX pets_by_status (status=? AND id>?" in step
    assert not any("TEMP B-TREE" in step for step in plan)


def test_every_commit_is_synced_though_sqlite_was_built_not_to(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []
    connect = sqlite3.connect

    def connect_without_sync(*args: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*args, **options))
        connections[-1].execute("PRAGMA synchronous = OFF")
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_without_sync)
    client = client_of(database)
    add_pet(client)
    modes = []
    for connection in connections:
        with suppress(sqlite3.ProgrammingError):  # it is closed
            if connection.total_changes:
                modes += connection.execute("PRAGMA synchronous").fetchall()
    assert modes == [(2,)]  # FULL


def test_the_id_of_a_removed_pet_is_not_used_again(
    client: FlaskClient, database: Path
) -> None:
    add_pets(client, "sold", "sold")
    execute(database, "DELETE FROM pets")
    assert add_pet(client)["id"] == 3


def test_when_the_ids_run_out_no_pet_is_taken(
    client: FlaskClient, database: Path
) -> None:
    add_pet(client)
    execute(database, "UPDATE sqlite_sequence SET seq = 9223372036854775806")
    assert add_pet(client)["id"] == 2**63 - 1
    assert_unavailable(post(client))
    assert len(client.get("/v1/pets").get_json()) == 2
    assert "Link" not in client.get("/v1/pets?limit=2").headers
    execute(database, "DELETE FROM pets WHERE id > 1")
    execute(database, "UPDATE sqlite_sequence SET seq = 1")
    assert add_pet(client)["id"] == 2


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?b.db", "a#b.db", "é😀.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    add_pet(client_of(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("names", [("a.db", "b.db"), (":memory:", ":memory:")])
def test_two_applications_do_not_touch_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = map(client_of, names)
    add_pets(one, "sold", "sold")
    assert add_pet(other)["id"] == 1
    assert len(one.get("/v1/pets").get_json()) == 2


def test_requests_leave_no_file_open(client: FlaskClient, database: Path) -> None:
    def work() -> list[str]:
        for path in ("/v1/pets", "/v1/pets?status=sold", "/v1/pets/1", "/healthz"):
            assert client.get(path).status_code == 200
        assert client.get("/v1/pets/0").status_code == 404
        add_pet(client)
        return open_files(database.parent)

    add_pet(client)
    after_a_few = work()
    for _ in range(20):
        # Once more, all is opened anew.
        wal_of(database).unlink()
        assert sorted(work()) == sorted(after_a_few)


def test_a_store_that_is_dropped_leaves_one_file_and_nothing_open(
    database: Path,
) -> None:
    threads = threading.active_count()
    client = client_of(database)
    post_at_once(client, *["Rex"] * 4)
    assert open_files(database.parent)
    del client
    gc.collect()
    assert open_files(database.parent) == []
    assert threading.active_count() == threads
    assert list(database.parent.iterdir()) == [database]


def test_a_stop_brings_a_removed_wal_into_the_file(database: Path) -> None:
    client = client_of(database)
    pet = add_pet(client)
    wal_of(database).unlink()
    del client
    gc.collect()
    assert all_pets(client_of(database)) == [pet]


# The start.


@pytest.mark.parametrize("suffixes", [[""], ["", "-wal"]])
def test_empty_files_are_filled(database: Path, suffixes: list[str]) -> None:
    for suffix in suffixes:
        Path(f"{database}{suffix}").touch()
    pet = add_pet(client_of(database))
    assert pets_after_kill_9(database) == [pet]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_start_does_not_wait_for_ever_for_a_file_that_is_locked(
    database: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    if not is_new:
        client_of(database)
    monkeypatch.setattr(storage, "START_WAIT", 0.1)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        assert f"{database}: database is locked" in start_refusal(database)
    assert add_pet(client_of(database))["id"] == 1


def test_nothing_starts_where_there_can_be_no_wal(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_without_wal(path: str, **options: Any) -> sqlite3.Connection:
        # This part of SQLite knows no shared memory, as some file systems do not.
        return connect(f"{path}&vfs=unix-dotfile", **options)

    monkeypatch.setattr(sqlite3, "connect", connect_without_wal)
    reason = "its file system does not support WAL"
    assert f"{database}: {reason}" in start_refusal(database)


# The queue.


def post_twelve(
    client: FlaskClient, database: Path, names: Sequence[str] = ("Rex",) * 12
) -> tuple[list[TestResponse], list[TestResponse]]:
    """Send twelve pets at once while the file is held, until four have their answer.

    Then all have been sent. Return the answers until then, and those after it.
    """
    with ThreadPoolExecutor(12) as threads:
        with held(database):
            creates = [threads.submit(post, client, name) for name in names]
            assert len(list(islice(as_completed(creates, timeout=4), 4))) == 4
            early = [create for create in creates if create.done()]
        late = [create for create in creates if create not in early]
    return [one.result() for one in early], [one.result() for one in late]


def evaluate_at_insert(database: Path, name: str, expression: str) -> None:
    """Have SQLite evaluate an expression whenever a pet of this name is inserted."""
    execute(
        database,
        f"CREATE TRIGGER of_{name} BEFORE INSERT ON pets WHEN new.name = '{name}' "
        f"BEGIN SELECT {expression}; END",
    )


def count_to(number: int) -> str:
    """Return an expression that takes SQLite a while."""
    numbers = f"SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {number}"
    return f"(WITH RECURSIVE n (i) AS ({numbers}) SELECT max(i) FROM n)"


def commits(database: Path) -> int:
    """Return how many transactions are in the WAL (sqlite.org/fileformat2.html).

    The last frame of each has the length of the database in its header.
    """
    wal = wal_of(database).read_bytes()
    frame = 24 + int.from_bytes(wal[8:12])
    return sum(any(wal[at + 4 : at + 8]) for at in range(32, len(wal), frame))


def test_no_more_than_eight_creates_wait_for_another_process(
    client: FlaskClient, database: Path
) -> None:
    with ThreadPoolExecutor(12) as threads:
        with held(database):
            first = threads.submit(post, client)
            assert not wait([first], timeout=0.2).done
            others = [threads.submit(post, client) for _ in range(11)]
            refused = list(islice(as_completed(others, timeout=4), 4))
        waited = [first, *(create for create in others if create not in refused)]
    assert_unavailable(*(create.result() for create in refused))
    assert [create.result().status_code for create in waited] == [201] * 8
    assert len(all_pets(client)) == 8


def test_creates_that_wait_together_are_stored_in_one_transaction(
    client: FlaskClient, database: Path
) -> None:
    _, waited = post_twelve(client, database)
    pets = sorted((answer.get_json() for answer in waited), key=lambda pet: pet["id"])
    assert [pet["id"] for pet in pets] == list(range(1, 9))
    assert commits(database) == 1
    assert pets_after_kill_9(database) == pets


def test_any_number_waits_for_a_slow_write_even_after_the_file_was_held(
    client: FlaskClient, database: Path
) -> None:
    evaluate_at_insert(database, "slow", count_to(1_000_000))
    post_twelve(client, database)
    answers = post_at_once(client, "slow", *["Rex"] * 31)
    assert [answer.status_code for answer in answers] == [201] * 32


def test_a_pet_whose_transaction_has_begun_is_waited_for(
    client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_at_insert(database, "slow", count_to(2_300_000))
    monkeypatch.setattr(storage, "STORE_WAIT", 0.6)
    with ThreadPoolExecutor(2) as threads:
        with held(database):
            creates = [threads.submit(post, client, "slow") for _ in range(2)]
            assert not wait(creates, timeout=0.05).done
        assert [create.result().status_code for create in creates] == [201, 201]


def test_a_pet_that_waits_for_a_slow_write_is_refused_in_time(
    client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_at_insert(database, "slow", count_to(3_000_000))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(post, client, "slow")
        assert not wait([slow], timeout=0.05).done
        monkeypatch.setattr(storage, "STORE_WAIT", 0.05)
        assert_unavailable(post(client))
        assert not slow.done()
        pet = slow.result().get_json()
    assert all_pets(client) == [pet]


def test_two_creates_wait_for_another_process_whenever_there_is_one(
    client: FlaskClient, database: Path
) -> None:
    for _ in range(2):
        with ThreadPoolExecutor(2) as threads:
            with held(database):
                creates = [threads.submit(post, client) for _ in range(2)]
                assert not wait(creates, timeout=0.3).done
            assert [create.result().status_code for create in creates] == [201, 201]


def test_a_pet_that_was_refused_is_not_stored_later(
    client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "STORE_WAIT", 0.3)
    with held(database):
        assert_unavailable(*post_at_once(client, *["Rex"] * 4))
    assert client.get("/v1/pets").get_json() == []
    assert add_pet(client)["id"] == 1
    assert len(all_pets(client)) == 1


@contextmanager
def interrupted() -> Iterator[None]:
    """Interrupt a `with` block as Ctrl-C would, after a moment."""
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGALRM, handler)


def test_a_create_that_is_interrupted_while_it_waits_is_not_stored(
    client: FlaskClient, database: Path
) -> None:
    with a_create_that_waits(client, database) as create, interrupted():
        post(client, "interrupted")
    pet = create.result().get_json()
    assert all_pets(client) == [pet]


def test_a_create_that_is_interrupted_while_it_is_written_is_not_stored(
    client: FlaskClient, database: Path
) -> None:
    evaluate_at_insert(database, "slow", count_to(2_000_000))
    with interrupted():
        post(client, "slow")
    pet = add_pet(client)
    assert pets_after_kill_9(database) == all_pets(client) == [pet]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow past `size` bytes, for a `with` block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_commit_that_fails_fails_for_each_of_its_pets_and_for_no_other(
    client: FlaskClient, database: Path
) -> None:
    with full_disk(200_000):
        _, waited = post_twelve(client, database, ["x" * 60_000] * 12)
        assert_unavailable(*waited)
        pets = [add_pet(client)]
    assert pets[0]["id"] == 1
    pets.append(add_pet(client, name="x" * 60_000))
    assert pets_after_kill_9(database) == all_pets(client) == pets


# SQLite blames the statement, with an exception of its own kind for each.
BUGS = {
    "sqlite3.IntegrityError": "RAISE(ABORT, 'bug')",
    "sqlite3.DataError": "zeroblob(2000000000)",
}


@pytest.mark.parametrize("error", BUGS)
def test_a_bug_in_a_create_is_no_fault_of_the_store(
    client: FlaskClient, database: Path, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate_at_insert(database, "bug", BUGS[error])
    assert_error(post(client, "bug"), 500, "internal_error")
    assert error in caplog.text
    assert add_pet(client)["id"] == 1


def test_a_bug_in_a_query_is_no_fault_of_the_store(
    client: FlaskClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(storage, "SELECT_PET", "SELECT :forgotten")
    assert_error(client.get("/v1/pets/1"), 500, "internal_error")
    assert "sqlite3.ProgrammingError" in caplog.text
    assert client.get("/v1/pets").status_code == 200


def test_a_bug_in_one_create_leaves_the_others_of_its_transaction(
    client: FlaskClient, database: Path
) -> None:
    evaluate_at_insert(database, "bug", BUGS["sqlite3.IntegrityError"])
    # Of the eight that share a transaction, two at least are of either kind.
    _, waited = post_twelve(client, database, ["bug", "Rex"] * 6)
    bugs = [answer for answer in waited if answer.status_code != 201]
    assert 2 <= len(bugs) <= 6
    for bug in bugs:
        assert_error(bug, 500, "internal_error")
    stored = [answer.get_json() for answer in waited if answer not in bugs]
    assert sorted(stored, key=lambda pet: pet["id"]) == all_pets(client)
    assert {pet["name"] for pet in stored} == {"Rex"}
    assert commits(database) == 1


# Faults of the files.


def test_a_moved_file_takes_no_pet_until_it_is_back(
    client: FlaskClient, database: Path
) -> None:
    away = database.with_suffix(".away")
    pets = [add_pet(client)]
    database.rename(away)
    assert_unavailable(*post_at_once(client, *["Rex"] * 4))
    assert_unavailable(client.get("/v1/pets"), client.get("/healthz"))
    assert not database.exists()
    assert pets_after_kill_9(away) == pets
    away.rename(database)
    pets.append(add_pet(client))
    assert pets[1]["id"] == 2
    assert client.get("/v1/pets").get_json() == pets


def test_a_directory_in_place_of_the_file_takes_no_pet_until_it_is_back(
    client: FlaskClient, database: Path
) -> None:
    away = database.with_suffix(".away")
    pets = [add_pet(client)]
    database.rename(away)
    database.mkdir()
    assert_unavailable(post(client), client.get("/v1/pets"), client.get("/healthz"))
    database.rmdir()
    away.rename(database)
    pets.append(add_pet(client))
    assert client.get("/v1/pets").get_json() == pets


def test_a_restored_file_is_used_at_the_next_write(
    client: FlaskClient, database: Path
) -> None:
    backup = database.with_suffix(".backup")
    pets = [add_pet(client, name="kept")]
    execute(database, "VACUUM INTO ?", str(backup))
    add_pet(client, name="made after the backup")
    backup.rename(database)
    for companion in database.parent.glob("pets.db-*"):
        companion.unlink()
    pets.append(add_pet(client, name="made after the restore"))
    assert client.get("/v1/pets").get_json() == pets
    assert client_of(database).get("/v1/pets").get_json() == pets


def replace(database: Path, other: Path, old: Path) -> None:
    old.hardlink_to(database)
    execute(other, "PRAGMA journal_mode = DELETE")
    other.replace(database)


def replace_with_wal(database: Path, other: Path, old: Path) -> None:
    old.hardlink_to(database)
    wal_of(other).replace(wal_of(database))
    other.replace(database)


def move_away_and_replace(database: Path, other: Path, old: Path) -> None:
    database.rename(old)
    execute(other, "PRAGMA journal_mode = DELETE")
    other.rename(database)


def read_a_little_later(client: FlaskClient) -> None:
    sleep(LOOK_EVERY)
    assert client.get("/v1/pets").status_code == 200


@pytest.mark.parametrize("move", [replace, replace_with_wal, move_away_and_replace])
@pytest.mark.parametrize("use", [add_pet, read_a_little_later])
def test_another_store_at_the_path_is_not_mixed_with_the_old_one(
    client: FlaskClient,
    database: Path,
    move: Callable[[Path, Path, Path], None],
    use: Callable[[FlaskClient], object],
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    source = client_of(database.with_suffix(".source"))
    pets = [add_pet(source, name="other") for _ in range(3)]
    copy_as_of_kill_9(database.with_suffix(".source"), other)
    old_pets = [add_pet(client, name="old") for _ in range(5)]
    move(database, other, old)
    use(client)
    add_pet(client)
    assert all_pets(client)[:3] == pets
    assert all_pets(client)[3:] == pets_after_kill_9(database)[3:] != []
    assert pets_after_kill_9(database)[:3] == pets
    assert pets_after_kill_9(old) == old_pets


def test_a_store_moved_over_one_that_is_being_read_is_not_mixed_with_it(
    client: FlaskClient, database: Path
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    source = client_of(database.with_suffix(".source"))
    # More than fits into a page: its first pages are of another kind than the old ones.
    pets = [add_pet(source, name="x" * 1000) for _ in range(10)]
    copy_as_of_kill_9(database.with_suffix(".source"), other)
    old_pets = [add_pet(client, name="old") for _ in range(5)]
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM pets").fetchall()
        replace(database, other, old)
        answers = [post(client)]
    answers.append(post(client))
    assert answers[1].status_code == 201
    pets += [answer.get_json() for answer in answers if answer.status_code == 201]
    assert pets_after_kill_9(database) == all_pets(client) == pets
    assert pets_after_kill_9(old) == old_pets


@contextmanager
def after_statement(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Act after a statement, by its number, of what is opened in a `with` block."""
    numbers = count()

    class Connection(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            cursor = super().execute(*args)
            if next(numbers) == number:
                act()
            return cursor

    connect = partial(sqlite3.connect, factory=Connection)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        yield
    assert next(numbers) > number


def replace_by_a_copy(file: Path) -> None:
    copy = file.with_suffix(".copy")
    shutil.copy(file, copy)
    copy.replace(file)


@pytest.mark.parametrize("statement", range(9))
@pytest.mark.parametrize("meddle", [Path.unlink, replace_by_a_copy])
def test_a_wal_that_is_removed_or_replaced_while_it_is_opened_costs_no_pet(
    client: FlaskClient,
    database: Path,
    meddle: Callable[[Path], None],
    statement: int,
) -> None:
    pets = [add_pet(client)]
    wal_of(database).unlink()
    with after_statement(statement, lambda: meddle(wal_of(database))):
        answers = [post(client), post(client)]
    assert [answer.status_code for answer in answers] in ([201, 201], [503, 201])
    pets += [answer.get_json() for answer in answers if answer.status_code == 201]
    assert pets_after_kill_9(database) == all_pets(client) == pets


@pytest.mark.parametrize("statement", range(9))
def test_a_store_moved_over_one_that_is_being_opened_is_not_mixed_with_it(
    client: FlaskClient, database: Path, statement: int
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    pets = [add_pet(client_of(other), name="other") for _ in range(3)]
    old_pets = [add_pet(client, name="old") for _ in range(5)]
    wal_of(database).unlink()
    with after_statement(statement, lambda: replace(database, other, old)):
        answers = [post(client), post(client)]
    assert [answer.status_code for answer in answers] in ([201, 201], [503, 201])
    stored, old_stored = pets_after_kill_9(database), pets_after_kill_9(old)
    assert (stored[:3], old_stored[:5]) == (pets, old_pets)
    assert old_stored[5:] + stored[3:] == [
        answer.get_json() for answer in answers if answer.status_code == 201
    ]
    assert all_pets(client) == stored


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_newer_store_at_the_path_is_left_as_it_is(
    client: FlaskClient, database: Path, mode: str
) -> None:
    newer = database.with_suffix(".newer")
    add_pet(client)
    execute(database, "VACUUM INTO ?", str(newer))
    execute(newer, "PRAGMA user_version = 2")
    execute(newer, f"PRAGMA journal_mode = {mode}")
    content = newer.read_bytes()
    newer.replace(database)
    assert_unavailable(post(client), client.get("/v1/pets"), client.get("/healthz"))
    assert database.read_bytes() == content


def test_a_file_that_turns_corrupt_is_never_an_empty_list(
    client: FlaskClient, database: Path
) -> None:
    add_pets(client, *["sold"] * 100)
    reader = client_of(database)
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    database.write_bytes(os.urandom(database.stat().st_size))
    assert_unavailable(reader.get("/v1/pets"), reader.get("/v1/pets/1"))
    assert_unavailable(post(reader), reader.get("/healthz"))


def test_an_emptied_file_takes_no_pet_and_keeps_its_wal(
    client: FlaskClient, database: Path
) -> None:
    add_pet(client)
    content = wal_of(database).read_bytes()
    os.truncate(database, 0)
    assert_unavailable(post(client), client.get("/healthz"))
    assert "it is empty, but" in start_refusal(database)
    assert wal_of(database).read_bytes() == content


@pytest.mark.parametrize(
    ("path", "after"),
    [("/v1/pets", LOOK_EVERY), ("/v1/pets/1", LOOK_EVERY), ("/healthz", 0)],
)
def test_a_wal_that_is_removed_costs_no_pet(
    client: FlaskClient, database: Path, path: str, after: float
) -> None:
    pets = [add_pet(client)]
    wal_of(database).unlink()
    sleep(after)
    assert client.get(path).status_code == 200
    assert pets_after_kill_9(database) == pets
    pets.append(add_pet(client))
    wal_of(database).unlink()
    pets.append(add_pet(client))
    assert pets_after_kill_9(database) == all_pets(client) == pets


def test_a_wal_that_is_removed_while_the_disk_is_full_costs_no_pet(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client, name="x" * 60_000)]
    with full_disk(30_000):
        wal_of(database).unlink()
        assert_unavailable(post(client), client.get("/healthz"))
    pets.append(add_pet(client))
    assert pets_after_kill_9(database) == all_pets(client) == pets


def test_requests_go_on_while_the_files_are_opened_anew(
    client: FlaskClient, database: Path
) -> None:
    is_over = threading.Event()

    def use(number: int) -> Counter[int]:
        answers: Counter[int] = Counter()
        own = client_with_key(client.application)
        while not is_over.is_set():
            answer = own.get("/v1/pets?limit=1") if number else post(own)
            answers[answer.status_code] += 1
        return answers

    with ThreadPoolExecutor(4) as threads:
        uses = threads.map(use, range(4))
        deadline = monotonic() + PATIENCE
        try:
            for _ in range(40):
                while not wal_of(database).exists():
                    assert monotonic() < deadline
                wal_of(database).unlink()
        finally:
            is_over.set()
    creates, *reads = uses
    # One that meets the removal while the files are being opened is 503.
    assert set(creates) <= {201, 503}
    assert set().union(*reads) <= {200, 503}
    assert len(all_pets(client)) == creates[201]
    assert all_pets(client) == pets_after_kill_9(database)


def test_a_wal_that_is_replaced_costs_no_pet_created_later(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    replace_by_a_copy(wal_of(database))
    pets.append(add_pet(client))
    assert pets_after_kill_9(database) == all_pets(client) == pets


def test_a_directory_in_place_of_the_wal_takes_no_pet_until_it_is_gone(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    wal_of(database).unlink()
    wal_of(database).mkdir()
    assert_unavailable(post(client), client.get("/healthz"))
    wal_of(database).rmdir()
    pets.append(add_pet(client))
    assert pets_after_kill_9(database) == all_pets(client) == pets


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_is_moved_in_the_middle_of_a_create_costs_no_pet(
    client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    away = database.with_suffix(".away")
    monkeypatch.setattr(storage, "BUSY_WAIT", 5.0)  # and looks at them only once
    with a_create_that_waits(client, database) as create:
        Path(f"{database}{suffix}").rename(away)
    assert create.result().status_code == 201
    pet = create.result().get_json()
    assert pets_after_kill_9(database if suffix else away) == [pet]


def test_a_wal_that_is_emptied_costs_no_pet_created_later(
    client: FlaskClient, database: Path
) -> None:
    add_pets(client, "sold", "sold")
    os.truncate(wal_of(database), 0)
    pet = add_pet(client, name="later")
    assert pets_after_kill_9(database) == all_pets(client)
    assert pet in all_pets(client)


def test_a_wal_that_is_emptied_in_the_middle_of_a_create_spoils_no_database(
    client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [add_pet(client)]
    with closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA wal_checkpoint").fetchall()
    add_pet(client, name="x" * 60_000)
    monkeypatch.setattr(storage, "BUSY_WAIT", 5.0)  # and looks at them only once
    with a_create_that_waits(client, database) as create:
        os.truncate(wal_of(database), 0)
    assert_unavailable(create.result())
    kept.append(add_pet(client, name="later"))
    assert pets_after_kill_9(database) == all_pets(client) == kept


def look(client: FlaskClient) -> TestResponse:
    return client.get("/healthz")


@pytest.mark.parametrize("find", [post, look])
def test_a_wal_that_is_overwritten_costs_no_pet_created_later(
    client: FlaskClient, database: Path, find: Callable[[FlaskClient], TestResponse]
) -> None:
    kept = [add_pet(client)]
    with closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA wal_checkpoint").fetchall()
    add_pet(client, name="x" * 60_000)
    wal_of(database).write_bytes(os.urandom(wal_of(database).stat().st_size))
    assert_unavailable(find(client))
    kept.append(add_pet(client, name="later"))
    assert pets_after_kill_9(database) == all_pets(client) == kept


@pytest.mark.parametrize("suffixes", [[""], ["", "-wal"]])
def test_no_pet_is_taken_once_health_has_found_the_file_overwritten(
    client: FlaskClient, database: Path, suffixes: list[str]
) -> None:
    add_pet(client)
    execute(database, "PRAGMA wal_checkpoint(PASSIVE)")
    content = database.read_bytes()
    for suffix in suffixes:
        path = Path(f"{database}{suffix}")
        path.write_bytes(os.urandom(path.stat().st_size))
    assert_unavailable(client.get("/healthz"), post(client))
    database.write_bytes(content)
    assert add_pet(client)["id"] == 2
    assert pets_after_kill_9(database) == all_pets(client)


# Memory.


def test_memory_is_one_store_for_all_threads() -> None:
    client = client_of(":memory:")

    def use(number: int) -> int:
        reader = client_with_key(client.application)
        answer = reader.get("/v1/pets?limit=1") if number % 2 else post(client)
        return answer.status_code

    with ThreadPoolExecutor(8) as threads:
        assert Counter(threads.map(use, range(400))) == {200: 200, 201: 200}
    assert [pet["id"] for pet in all_pets(client)] == list(range(1, 201))


def test_memory_is_not_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = client_of(":memory:")
    add_pet(client)
    assert client.get("/healthz").status_code == 200
    assert list(tmp_path.iterdir()) == []


# Forks.


def status_of_child(work: Callable[[], object]) -> int:
    """Do the work in a fork of this process; return how it ended: 0 if it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(10)  # ends it if it hangs
            work()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def assert_no_open_file(database: Path) -> None:
    assert open_files(database.parent) == []


# Newer Pythons warn of every fork of a process that has threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_of_a_busy_application_carries_no_open_file_along(
    client: FlaskClient, database: Path
) -> None:
    is_over = threading.Event()

    def create_until_it_is_over(thread: int) -> list[str]:
        names: list[str] = []
        while not is_over.is_set():
            names.append(f"{thread} {len(names)}")
            assert post(client, names[-1]).status_code == 201
        return names

    def create_one(name: str) -> None:
        assert_no_open_file(database)
        [answer] = post_at_once(client, name)
        assert answer.status_code == 201

    names = [f"child {number}" for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        creates = [threads.submit(create_until_it_is_over, n) for n in range(4)]
        try:
            while not client.get("/v1/pets").get_json():
                pass
            for name in names:
                assert status_of_child(lambda name=name: create_one(name)) == 0
        finally:
            is_over.set()
    for create in creates:
        names += create.result()
    assert Counter(pet["name"] for pet in all_pets(client)) == Counter(names)


READER = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM pets").fetchall()
    print("reads", flush=True)
    sys.stdin.read()
"""


def test_a_fork_carries_no_open_file_along_though_another_process_reads(
    client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(client)]
    with subprocess.Popen(
        ["python", "-c", READER, database],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout.readline() == b"reads\n"
        pets.append(add_pet(client))
        assert status_of_child(lambda: assert_no_open_file(database)) == 0
    assert all_pets(client) == pets


# A program of its own: those of the tests import executors, which let only one thread
# fork at a time.
FORK_AT_ONCE = """
import os, sys, threading
from app import create_app

def fork():
    for _ in range(40):
        os.waitpid(os.fork() or os._exit(0), 0)

client = create_app({"API_KEYS": "key", "DATABASE": sys.argv[1]}).test_client()
sys.setswitchinterval(1e-6)  # so that the threads meet
threads = [threading.Thread(target=fork) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(client.get("/healthz").status_code)
"""


def test_threads_that_fork_at_once_do_not_block_each_other(database: Path) -> None:
    run = subprocess.run(
        ["python", "-W", "ignore", "-c", FORK_AT_ONCE, database],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=10,
    )
    assert (run.stdout, run.stderr) == ("200\n", "")


def test_each_process_goes_on_with_a_memory_of_its_own_after_a_fork() -> None:
    client = client_of(":memory:")
    pets = [add_pet(client)]

    def add_another() -> None:
        assert all_pets(client) == pets
        assert add_pet(client, name="child")["id"] == 2
        assert len(all_pets(client)) == 2

    assert status_of_child(add_another) == 0
    assert all_pets(client) == pets
    assert add_pet(client)["id"] == 2
