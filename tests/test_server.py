"""The served program: the Procfile's command, in load, through faults, to its stop."""

import random
import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.checks import PET
from tests.service import (
    COMMAND,
    KEY,
    PATIENCE,
    Answer,
    Service,
    run,
    serving,
)


@pytest.fixture
def service(database: Path) -> Iterator[Service]:
    with serving(database) as service:
        yield service
        assert "Traceback" not in service.log()


def assert_unavailable(answer: Answer) -> None:
    assert (answer.status, answer.body["code"]) == (503, "storage_unavailable")
    assert answer.headers["Retry-After"] == "1"


def test_the_settings_of_the_platform_bind_but_do_not_multiply() -> None:
    settings = run(
        *COMMAND,
        "--print-config",
        PORT="5123",
        WEB_CONCURRENCY="7",
        PETSTORE_API_KEYS=KEY,
        PETSTORE_DATABASE=":memory:",
    ).stdout
    values = dict(line.split("=", 1) for line in settings.split("\n") if "=" in line)
    values = {name.strip(): value.strip() for name, value in values.items()}
    assert values["bind"] == "['0.0.0.0:5123']"
    assert values["workers"] == "1"
    assert values["control_socket_disable"] == "True"
    assert values["accesslog"] == "-"


# Faults.


class Load:
    """Eight clients that create pets, and what they were told of each."""

    clients = 8

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.acknowledged: dict[str, int] = {}

    @contextmanager
    def until_kill_9(self, service: Service) -> Iterator[None]:
        """Create pets for the length of a `with` block, and kill the service in it."""
        with ThreadPoolExecutor(self.clients) as threads:
            try:
                creates = [
                    threads.submit(self.create, service) for _ in range(self.clients)
                ]
                self.wait_for_news()
                yield
            finally:
                service.kill()
        for create in creates:
            create.result()

    def create(self, service: Service) -> None:
        """Create pets until the service is gone, each with a name of its own."""
        with service.client() as client, suppress(OSError, HTTPException):
            while True:
                name = f"{uuid4()} {'x' * 500}"
                self.sent.add(name)
                pet = {"name": name, "categoryId": 1}
                answer = client.request("POST", "/v1/pets", pet)
                if answer.status == 201:
                    self.acknowledged[name] = answer.body["id"]
                else:
                    assert_unavailable(answer)

    def wait_for_news(self) -> None:
        """Wait until a pet that was sent after now is acknowledged, and some more."""
        deadline = time.monotonic() + PATIENCE
        enough = len(self.acknowledged) + 2 * self.clients
        while len(self.acknowledged) < enough:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {enough}"
            time.sleep(0.001)

    def assert_stored(self, pets: list[dict[str, Any]]) -> None:
        """Check: acknowledged within stored within sent, and none twice."""
        stored = {pet["name"]: pet["id"] for pet in pets}
        assert len(stored) == len(pets)
        assert self.acknowledged.items() <= stored.items()
        assert stored.keys() <= self.sent


def pets_in(database: Path) -> list[dict[str, Any]]:
    """Return the pets in a file that nobody has open, and check that it is whole."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        pets = connection.execute("SELECT id, name FROM pets ORDER BY id")
        return [{"id": id_, "name": name} for id_, name in pets]


def test_what_was_acknowledged_outlives_kill_9(database: Path) -> None:
    load = Load()
    for _ in range(3):
        with serving(database) as service, load.until_kill_9(service):
            time.sleep(random.uniform(0, 0.2))
    with serving(database) as service:
        load.assert_stored(service.all_pets())
    load.assert_stored(pets_in(database))


def test_a_wal_that_is_removed_under_load_costs_no_pet_even_at_kill_9(
    service: Service, database: Path
) -> None:
    load = Load()
    with load.until_kill_9(service):
        for _ in range(5):
            # It is not there yet where the service has just seen that it was gone.
            Path(f"{database}-wal").unlink(missing_ok=True)
            load.wait_for_news()
    load.assert_stored(pets_in(database))


def test_another_store_moved_over_the_file_under_load_costs_no_pet_of_either(
    service: Service, database: Path
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", [str(other)])
    with closing(sqlite3.connect(other, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO pets VALUES (7, 'of the other store', 1, 'sold')"
        )
    load = Load()
    with load.until_kill_9(service):
        old.hardlink_to(database)
        acknowledged_before = set(load.acknowledged)
        other.rename(database)
        sent_before = set(load.sent)
        load.wait_for_news()
    old_pets, new_pets = pets_in(old), pets_in(database)
    assert new_pets.pop(0) == {"id": 7, "name": "of the other store"}
    load.assert_stored(old_pets + new_pets)
    assert acknowledged_before <= {pet["name"] for pet in old_pets}
    acknowledged_later = set(load.acknowledged) - sent_before
    assert acknowledged_later
    assert acknowledged_later <= {pet["name"] for pet in new_pets}


def test_writes_are_refused_in_time_and_reads_go_on_while_the_file_is_held(
    service: Service, database: Path
) -> None:
    writers = 32
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(writers) as threads:
            refusals = [
                threads.submit(service.request, "POST", "/v1/pets", PET, timeout=8)
                for _ in range(writers)
            ]
            while not all(refusal.done() for refusal in refusals):
                assert service.request("GET", "/v1/pets", timeout=1).status == 200
                time.sleep(0.1)
        for refusal in refusals:
            assert_unavailable(refusal.result())
        other.execute("ROLLBACK")
    assert service.request("POST", "/v1/pets", PET).body["id"] == 1


def test_a_full_disk_refuses_writes_until_there_is_room(service: Service) -> None:
    service.limit_file_size(1_000_000)
    acknowledged = []
    while (answer := service.request("POST", "/v1/pets", large_pet())).status == 201:
        acknowledged.append(answer.body)
        assert len(acknowledged) < 100
    assert_unavailable(answer)
    assert service.all_pets() == acknowledged
    service.limit_file_size(resource.RLIM_INFINITY)
    acknowledged.append(service.request("POST", "/v1/pets", large_pet()).body)
    assert service.all_pets() == acknowledged


def large_pet() -> dict[str, object]:
    return {"name": random.randbytes(20_000).hex(), "categoryId": 1}


# Start and stop.


def test_sigterm_lets_every_request_finish(service: Service) -> None:
    begun = threading.Barrier(9)

    def work(_: int) -> int:
        """Send requests on one connection until the service says it closes."""
        with service.client() as client:
            assert client.request("POST", "/v1/pets", PET).status == 201
            begun.wait()
            for count in range(2, 10_000):
                answer = client.request("POST", "/v1/pets", PET)
                assert answer.status == 201
                if answer.headers["Connection"] == "close":
                    return count
        raise AssertionError("it went on")

    with ThreadPoolExecutor(8) as threads:
        counts = [threads.submit(work, number) for number in range(8)]
        begun.wait()
        assert service.stop() == 0
        answered = sum(count.result() for count in counts)
    assert service.log().count('"POST /v1/pets HTTP/1.1" 201') == answered
    with closing(sqlite3.connect(service.database)) as connection:
        [(stored,)] = connection.execute("SELECT count(*) FROM pets")
    assert stored == answered
