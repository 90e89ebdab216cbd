"""The store behind the operations: its file, its queue, its faults, memory, forks."""

import gc
import os
import resource
import shutil
import signal
import sqlite3
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

import storage
from app import StartError
from tests.checks import (
    PET,
    add_pet,
    add_pets,
    all_pets,
    assert_error,
    assert_unavailable,
)
from tests.conftest import client_of, client_with_key
from tests.service import PATIENCE, run


def post(client: FlaskClient, name: str = "Rex") -> TestResponse:
    """Send a pet, as a client of its own: several threads may do so at once."""
    client = client_with_key(client.application)
    return client.post("/v1/pets", json={**PET, "name": name})


def post_at_once(client: FlaskClient, *names: str) -> list[TestResponse]:
    """Send several pets, each from a thread of its own."""
    with ThreadPoolExecutor(len(names)) as threads:
        return list(threads.map(lambda name: post(client, name), names))


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
def read_by_another(database: Path) -> Iterator[None]:
    """Read the file as another program would, for the length of a `with` block."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM pets").fetchall()
        yield


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
    return sorted(path for path in paths if path.startswith(str(folder)))


# The file.


def test_the_file_is_made_as_designed(file_client: FlaskClient, database: Path) -> None:
    add_pet(file_client)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT * FROM pets").fetchall() == [
            (1, "Rex", 1, "available")
        ]


@pytest.mark.parametrize(
    "fault", ["name = NULL", "category_id = 'x'", "category_id = 1.5", "status = 'x'"]
)
def test_nobody_can_put_into_the_file_what_is_no_pet(
    file_client: FlaskClient, database: Path, fault: str
) -> None:
    add_pet(file_client)
    with pytest.raises(sqlite3.IntegrityError):
        execute(database, f"UPDATE pets SET {fault}")


def test_a_page_of_one_status_is_found_in_the_index(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    query = f"EXPLAIN QUERY PLAN {storage.SELECT_PAGE_OF_STATUS}"
    with closing(sqlite3.connect(database)) as connection:
        values = {"limit": 20, "status": "sold", "after": 0}
        plan = [detail for *_, detail in connection.execute(query, values)]
    steps = [step for step in plan if "pets" in step]
    assert len(steps) == 3
    assert all("INDEX pets_by_status (status=? AND id>?" in step for step in steps)
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
    file_client: FlaskClient, database: Path
) -> None:
    add_pets(file_client, "sold", "sold")
    execute(database, "DELETE FROM pets")
    assert add_pet(file_client)["id"] == 3


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "a?b.db", "a#b.db", "é😀.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    add_pet(client_of(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("target", ["real/pets.db", "missing.db", "../real/pets.db"])
def test_the_path_may_be_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    for folder in ("real", "here"):
        (tmp_path / folder).mkdir()
    link = tmp_path / "here" / "pets.db"
    link.symlink_to(target if target.startswith("..") else tmp_path / target)
    (tmp_path / "folder").symlink_to(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    pets = []
    for path in (link, Path("folder/pets.db")):
        client = client_of(path)
        pets += [add_pet(client), add_pet(client)]
        assert all_pets(client) == pets
        assert client.get("/healthz").status_code == 200
    assert link.is_symlink()
    assert link.resolve().stat().st_size > 0


@pytest.mark.parametrize("names", [("a.db", "b.db"), (":memory:", ":memory:")])
def test_two_applications_do_not_touch_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = map(client_of, names)
    add_pets(one, "sold", "sold")
    assert add_pet(other)["id"] == 1
    assert len(one.get("/v1/pets").get_json()) == 2


def test_requests_leave_no_file_open(file_client: FlaskClient, database: Path) -> None:
    def work() -> list[str]:
        for path in ("/v1/pets", "/v1/pets?status=sold", "/v1/pets/1", "/healthz"):
            assert file_client.get(path).status_code == 200
        add_pet(file_client)
        return open_files(database.parent)

    add_pet(file_client)
    after_a_few = work()
    for _ in range(20):
        # Once more, all is opened anew.
        wal_of(database).unlink()
        assert work() == after_a_few


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_store_that_is_dropped_leaves_one_whole_file_and_nothing_open(
    database: Path, is_removed: bool
) -> None:
    threads = threading.active_count()
    client = client_of(database)
    pets = [answer.get_json() for answer in post_at_once(client, *["Rex"] * 4)]
    if is_removed:
        wal_of(database).unlink()
    del client
    gc.collect()
    assert open_files(database.parent) == []
    assert list(database.parent.iterdir()) == [database]
    wait_until(lambda: threading.active_count() <= threads)
    assert all_pets(client_of(database)) == sorted(pets, key=lambda pet: pet["id"])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# The start.


def test_an_empty_file_is_filled(database: Path) -> None:
    database.touch()
    pet = add_pet(client_of(database))
    assert all_pets(client_of(database)) == [pet]


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
        with pytest.raises(StartError, match=f"{database}: database is locked"):
            client_of(database)
    assert add_pet(client_of(database))["id"] == 1


def test_nothing_starts_where_there_can_be_no_wal(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_without_wal(path: str, **options: Any) -> sqlite3.Connection:
        # This part of SQLite knows no shared memory, as some file systems do not.
        return connect(f"{path}&vfs=unix-dotfile", **options)

    monkeypatch.setattr(sqlite3, "connect", connect_without_wal)
    with pytest.raises(StartError, match="its file system does not support WAL"):
        client_of(database)


def test_a_backup_is_ready_when_another_program_uses_it_from_the_start(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    backup = database.with_suffix(".backup")
    execute(database, "VACUUM INTO ?", str(backup))
    client = client_of(backup)
    with read_by_another(backup), held(backup):
        assert all_pets(client) == pets
    with read_by_another(backup):
        pets.append(add_pet(client))
        assert all_pets(client) == pets


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
            early = list(islice(as_completed(creates, timeout=4), 4))
            # Eight wait; who comes later is refused at once.
            later = threads.submit(post, client)
            assert wait([later, *creates], timeout=0.4).done == {later, *early}
        late = [create for create in creates if create not in early]
    return [one.result() for one in (*early, later)], [one.result() for one in late]


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


def test_eight_creates_wait_for_another_process_and_share_a_transaction(
    file_client: FlaskClient, database: Path
) -> None:
    refused, waited = post_twelve(file_client, database)
    assert_unavailable(*refused)
    pets = sorted((answer.get_json() for answer in waited), key=lambda pet: pet["id"])
    assert [pet["id"] for pet in pets] == list(range(1, 9))
    assert commits(database) == 1
    assert pets_after_kill_9(database) == pets


def test_any_number_waits_for_a_slow_write_even_after_the_file_was_held(
    file_client: FlaskClient, database: Path
) -> None:
    evaluate_at_insert(database, "slow", count_to(1_000_000))
    post_twelve(file_client, database)
    answers = post_at_once(file_client, "slow", *["Rex"] * 31)
    assert [answer.status_code for answer in answers] == [201] * 32


def test_a_pet_whose_transaction_has_begun_is_waited_for(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_at_insert(database, "slow", count_to(1_000_000))
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.05)
    assert post(file_client, "slow").status_code == 201


def test_a_pet_that_waits_for_a_slow_write_is_refused_in_time(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate_at_insert(database, "slow", count_to(2_000_000))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(post, file_client, "slow")
        assert not wait([slow], timeout=0.05).done
        # Reads do not wait.
        assert all_pets(file_client) == []
        monkeypatch.setattr(storage, "WRITE_WAIT", 0.05)
        assert_unavailable(post(file_client))
        assert not slow.done()
        pet = slow.result().get_json()
    assert all_pets(file_client) == [pet]


def test_pets_that_were_refused_leave_their_seats_and_are_not_stored_later(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.3)
    with ThreadPoolExecutor(8) as threads, held(database):
        assert_unavailable(*post_at_once(file_client, *["Rex"] * 12))
        assert all_pets(file_client) == []
        monkeypatch.setattr(storage, "WRITE_WAIT", PATIENCE)
        creates = [threads.submit(post, file_client) for _ in range(8)]
        assert not wait(creates, timeout=0.3).done
    ids = [create.result().get_json()["id"] for create in creates]
    assert sorted(ids) == [pet["id"] for pet in all_pets(file_client)]
    assert len(ids) == 8


def test_a_pet_that_is_being_withdrawn_takes_no_other_with_it(
    file_client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowToLeave(Future[Any]):
        def cancel(self) -> bool:
            if is_cancelled := super().cancel():
                time.sleep(0.5)
            return is_cancelled

    monkeypatch.setattr(storage, "Future", SlowToLeave)
    monkeypatch.setattr(storage, "WRITE_WAIT", 0.1)
    with ThreadPoolExecutor(2) as threads:
        with held(database):
            withdrawn = threads.submit(post, file_client)
            assert not wait([withdrawn], timeout=0.2).done
            monkeypatch.setattr(storage, "WRITE_WAIT", PATIENCE)
            other = threads.submit(post, file_client)
            assert not wait([withdrawn, other], timeout=0.1).done
        assert other.result().get_json()["id"] == 1
        assert add_pet(file_client)["id"] == 2
        assert not withdrawn.done()
    assert_unavailable(withdrawn.result())
    assert len(all_pets(file_client)) == 2


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
    file_client: FlaskClient, database: Path
) -> None:
    with held(database), interrupted():
        post(file_client, "interrupted")
    pet = add_pet(file_client)
    assert all_pets(file_client) == [pet]


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
    file_client: FlaskClient, database: Path
) -> None:
    with full_disk(200_000):
        _, waited = post_twelve(file_client, database, ["x" * 60_000] * 12)
        assert_unavailable(*waited)
        pets = [add_pet(file_client)]
    assert pets[0]["id"] == 1
    pets.append(add_pet(file_client, name="x" * 60_000))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


# ROLLBACK ends the transaction, as where SQLite runs out of memory.
@pytest.mark.parametrize("action", ["ABORT", "ROLLBACK"])
def test_a_bug_in_one_write_fails_its_transaction_and_no_other(
    file_client: FlaskClient,
    database: Path,
    caplog: pytest.LogCaptureFixture,
    action: str,
) -> None:
    evaluate_at_insert(database, "bug", f"RAISE({action}, 'bug')")
    # Of the eight that share a transaction, two at least are of either kind.
    _, waited = post_twelve(file_client, database, ["bug", "Rex"] * 6)
    for answer in waited:
        assert_error(answer, 500, "internal_error")
    assert "sqlite3.IntegrityError" in caplog.text
    pet = add_pet(file_client)
    assert pets_after_kill_9(database) == all_pets(file_client) == [pet]


def test_a_bug_in_a_query_is_no_fault_of_the_store(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bug in ("SELECT :forgotten", "SELECT misspelt FROM pets"):
        monkeypatch.setattr(storage, "SELECT_PET", bug)
        assert_error(client.get("/v1/pets/1"), 500, "internal_error")
    assert client.get("/v1/pets").status_code == 200


# Says which pets were stored and which refused, and ends while others are sent.
ENDS_UNDER_LOAD = """
import sys, threading, time
from app import create_app

app = create_app({"API_KEYS": "key", "DATABASE": sys.argv[1]})
headers = {"Authorization": "Bearer key"}

def create(thread):
    client = app.test_client()
    for number in range(10_000):
        name = f"{thread} {number}"
        pet = {"name": name, "categoryId": 1}
        answer = client.post("/v1/pets", json=pet, headers=headers)
        sys.stdout.write(f"{answer.status_code} {name}\\n")
        sys.stdout.flush()

for number in range(8):
    threading.Thread(target=create, args=[number], daemon=True).start()
time.sleep(0.2)
"""


def test_a_program_that_ends_loses_nothing_and_stores_nothing_refused(
    database: Path,
) -> None:
    ended = run("python", "-c", ENDS_UNDER_LOAD, str(database))
    stored = {pet["name"] for pet in all_pets(client_of(database))}
    answers = [line.partition(" ")[::2] for line in ended.stdout.splitlines()]
    assert {name for status, name in answers if status == "201"} <= stored != set()
    assert not stored & {name for status, name in answers if status == "503"}


# Faults of the files.


def test_a_moved_file_takes_no_pet_until_it_is_back(
    file_client: FlaskClient, database: Path
) -> None:
    away = database.with_suffix(".away")
    pets = [add_pet(file_client)]
    database.rename(away)
    assert_unavailable(*post_at_once(file_client, *["Rex"] * 4))
    assert_unavailable(file_client.get("/v1/pets"), file_client.get("/healthz"))
    assert not database.exists()
    assert pets_after_kill_9(away) == pets
    away.rename(database)
    pets.append(add_pet(file_client))
    assert pets[1]["id"] == 2
    assert file_client.get("/v1/pets").get_json() == pets


def test_an_emptied_file_takes_no_pet_and_keeps_its_wal(
    file_client: FlaskClient, database: Path
) -> None:
    add_pet(file_client)
    content = wal_of(database).read_bytes()
    os.truncate(database, 0)
    assert_unavailable(post(file_client), file_client.get("/healthz"))
    assert wal_of(database).read_bytes() == content


def test_a_damaged_file_is_never_an_empty_list_and_opened_anew_once_mended(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client, name="x" * 1000) for _ in range(100)]
    reader = client_of(database)
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = database.read_bytes()
    database.write_bytes(os.urandom(len(content)))
    assert_unavailable(reader.get("/v1/pets"), reader.get("/v1/pets/1"))
    assert_unavailable(post(reader), reader.get("/healthz"))
    database.write_bytes(content)
    assert all_pets(reader) == pets


def replace(database: Path, other: Path, old: Path) -> None:
    old.hardlink_to(database)
    execute(other, "PRAGMA journal_mode = DELETE")
    other.replace(database)


def replace_with_wal(database: Path, other: Path, old: Path) -> None:
    old.hardlink_to(database)
    wal_of(other).replace(wal_of(database))
    other.replace(database)


def backup(database: Path, other: Path, old: Path) -> None:
    old.hardlink_to(database)
    restored = other.with_suffix(".restored")
    execute(other, "VACUUM INTO ?", str(restored))
    restored.replace(database)


@pytest.mark.parametrize("move", [replace, replace_with_wal, backup])
@pytest.mark.parametrize("use", [add_pet, all_pets])
def test_another_store_at_the_path_is_not_mixed_with_the_old_one(
    file_client: FlaskClient,
    database: Path,
    move: Callable[[Path, Path, Path], None],
    use: Callable[[FlaskClient], object],
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    source = client_of(database.with_suffix(".source"))
    pets = [add_pet(source, name="other") for _ in range(3)]
    copy_as_of_kill_9(database.with_suffix(".source"), other)
    old_pets = [add_pet(file_client, name="old") for _ in range(5)]
    move(database, other, old)
    use(file_client)
    add_pet(file_client)
    assert all_pets(file_client)[:3] == pets
    assert all_pets(file_client)[3:] == pets_after_kill_9(database)[3:] != []
    assert pets_after_kill_9(database)[:3] == pets
    assert pets_after_kill_9(old) == old_pets


def test_a_store_moved_over_one_that_is_being_read_is_not_mixed_with_it(
    file_client: FlaskClient, database: Path
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    # More than fits into a page: its first pages are of another kind than the old ones.
    pets = [add_pet(client_of(other), name="x" * 1000) for _ in range(10)]
    old_pets = [add_pet(file_client, name="old") for _ in range(5)]
    with read_by_another(database):
        replace(database, other, old)
        assert_unavailable(post(file_client))
    pets.append(add_pet(file_client))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets
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


@pytest.mark.parametrize("statement", range(7))
@pytest.mark.parametrize("meddle", [Path.unlink, replace_by_a_copy])
def test_a_wal_that_is_removed_or_replaced_while_it_is_opened_costs_no_pet(
    file_client: FlaskClient,
    database: Path,
    meddle: Callable[[Path], None],
    statement: int,
) -> None:
    pets = [add_pet(file_client)]
    wal_of(database).unlink()
    with after_statement(statement, lambda: meddle(wal_of(database))):
        answers = [post(file_client), post(file_client)]
    assert [answer.status_code for answer in answers] in ([201, 201], [503, 201])
    pets += [answer.get_json() for answer in answers if answer.status_code == 201]
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_newer_store_at_the_path_is_left_as_it_is(
    file_client: FlaskClient, database: Path, mode: str
) -> None:
    newer = database.with_suffix(".newer")
    add_pet(file_client)
    execute(database, "VACUUM INTO ?", str(newer))
    execute(newer, "PRAGMA user_version = 2")
    execute(newer, f"PRAGMA journal_mode = {mode}")
    content = newer.read_bytes()
    newer.replace(database)
    assert_unavailable(post(file_client), file_client.get("/v1/pets"))
    assert database.read_bytes() == content


@pytest.mark.parametrize("path", ["/v1/pets", "/v1/pets/1", "/healthz"])
@pytest.mark.parametrize("meddle", [Path.unlink, replace_by_a_copy])
def test_a_wal_that_is_removed_or_replaced_costs_no_pet(
    file_client: FlaskClient, database: Path, path: str, meddle: Callable[[Path], None]
) -> None:
    pets = [add_pet(file_client)]
    meddle(wal_of(database))
    assert file_client.get(path).status_code == 200
    assert pets_after_kill_9(database) == pets
    pets.append(add_pet(file_client))
    meddle(wal_of(database))
    pets.append(add_pet(file_client))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


def test_a_wal_that_is_removed_while_the_disk_is_full_costs_no_pet(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client, name="x" * 60_000)]
    with full_disk(30_000):
        wal_of(database).unlink()
        assert_unavailable(post(file_client), file_client.get("/healthz"))
    pets.append(add_pet(file_client))
    assert pets_after_kill_9(database) == all_pets(file_client) == pets


def test_a_wal_that_another_program_empties_and_reads_stops_nobody(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client, name="x" * 60_000)]
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    execute(database, "UPDATE pets SET status = 'sold'")
    pets[0]["status"] = "sold"
    with read_by_another(database):
        assert all_pets(file_client) == pets
        pets.append(add_pet(file_client))
        assert file_client.get("/healthz").status_code == 200
        assert all_pets(file_client) == pets


# Memory.


def test_memory_is_one_store_for_all_threads_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = client_of(":memory:")

    def use(number: int) -> int:
        reader = client_with_key(client.application)
        answer = reader.get("/v1/pets?limit=1") if number % 2 else post(client)
        return answer.status_code

    with ThreadPoolExecutor(8) as threads:
        assert Counter(threads.map(use, range(400))) == {200: 200, 201: 200}
    assert [pet["id"] for pet in all_pets(client)] == list(range(1, 201))
    assert client.get("/healthz").status_code == 200
    assert list(tmp_path.iterdir()) == []


# Forks. Newer Pythons warn of every fork of a process that has threads.
ignore_warning = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)


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


@ignore_warning
def test_a_fork_of_a_busy_application_carries_no_open_file_along(
    file_client: FlaskClient, database: Path
) -> None:
    is_over = threading.Event()

    def create_until_it_is_over(thread: int) -> list[str]:
        names: list[str] = []
        while not is_over.is_set():
            names.append(f"{thread} {len(names)}")
            assert post(file_client, names[-1]).status_code == 201
        return names

    def create_one(name: str) -> None:
        assert open_files(database.parent) == []
        [answer] = post_at_once(file_client, name)
        assert answer.status_code == 201

    names = [f"child {number}" for number in range(8)]
    with ThreadPoolExecutor(4) as threads:
        creates = [threads.submit(create_until_it_is_over, n) for n in range(4)]
        try:
            wait_until(lambda: bool(file_client.get("/v1/pets").get_json()))
            for name in names:
                assert status_of_child(lambda name=name: create_one(name)) == 0
        finally:
            is_over.set()
    for create in creates:
        names += create.result()
    stored = Counter(pet["name"] for pet in all_pets(file_client))
    assert stored == Counter(names)


@ignore_warning
def test_a_fork_before_the_first_use_and_each_fork_later_may_write(
    file_client: FlaskClient, database: Path
) -> None:
    for number in range(1, 4):
        child = partial(add_pet, file_client, name="child")
        assert status_of_child(child) == 0
        assert len(all_pets(file_client)) == number


@ignore_warning
def test_a_child_may_make_an_application_on_the_file_of_its_parent(
    file_client: FlaskClient, database: Path
) -> None:
    pets = [add_pet(file_client)]
    with read_by_another(database):
        assert status_of_child(lambda: add_pet(client_of(database))) == 0
    pets.append(add_pet(file_client))
    assert [pet["id"] for pet in all_pets(file_client)] == [1, 2, 3]
    assert all_pets(client_of(database)) == all_pets(file_client)


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
    database.touch()
    ended = run("python", "-W", "ignore", "-c", FORK_AT_ONCE, str(database))
    assert (ended.stdout, ended.returncode) == ("200\n", 0)


@ignore_warning
def test_each_process_goes_on_with_a_memory_of_its_own_after_a_fork(
    client: FlaskClient,
) -> None:
    pets = [add_pet(client)]

    def add_another() -> None:
        assert all_pets(client) == pets
        assert add_pet(client, name="child")["id"] == 2
        assert len(all_pets(client)) == 2

    assert status_of_child(add_another) == 0
    assert all_pets(client) == pets
    assert add_pet(client)["id"] == 2
