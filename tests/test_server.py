"""The served program: the Procfile's command, in load, through faults, to its stop."""

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.checks import PET, all_pets, execute, held
from tests.conftest import client_of
from tests.service import COMMAND, PATIENCE, Service, run, serving


@pytest.fixture
def service(database: Path) -> Iterator[Service]:
    with serving(database) as service:
        yield service
        assert "Traceback" not in service.log()


def test_the_settings_of_the_platform_bind_but_do_not_multiply() -> None:
    settings = {"PORT": "5123", "WEB_CONCURRENCY": "7", "PETSTORE_API_KEYS": "key"}
    settings |= {"PETSTORE_DATABASE": ":memory:"}
    shown = run(*COMMAND, "--print-config", **settings).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["bind", "=", "['0.0.0.0:5123']"] in lines
    assert ["workers", "=", "1"] in lines
    assert ["threads", "=", "16"] in lines
    assert ["control_socket_disable", "=", "True"] in lines


# Faults.


class Load:
    """Clients that create pets in a service, and what they were told of each."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.sent: set[str] = set()
        self.acknowledged: dict[str, int] = {}
        self.news = threading.Condition()

    def create(self) -> None:
        """Create pets until the service is gone, each with a name of its own."""
        with self.service.client() as client, suppress(OSError, HTTPException):
            while True:
                name = f"{uuid4()} {'x' * 500}"
                self.sent.add(name)
                answer = client.request("POST", "/v1/pets", {**PET, "name": name})
                assert answer.status in (201, 503)
                if answer.status == 201:
                    with self.news:
                        self.acknowledged[name] = answer.body["id"]
                        self.news.notify()

    def wait_for_news(self) -> None:
        """Wait until a pet that was sent after now is acknowledged, and some more."""
        with self.news:
            enough = len(self.acknowledged) + 16
            assert self.news.wait_for(
                lambda: len(self.acknowledged) >= enough, PATIENCE
            )

    def assert_stored(self, pets: list[dict[str, Any]]) -> None:
        """Check: acknowledged within stored within sent, and none twice."""
        stored = {pet["name"]: pet["id"] for pet in pets}
        assert len(stored) == len(pets)
        assert self.acknowledged.items() <= stored.items()
        assert stored.keys() <= self.sent


@contextmanager
def load_until_kill_9(database: Path) -> Iterator[Load]:
    """Create pets by eight clients for a `with` block, then kill the service."""
    with ThreadPoolExecutor(8) as threads, serving(database) as service:
        load = Load(service)
        creates = [threads.submit(load.create) for _ in range(8)]
        load.wait_for_news()
        yield load
    for create in creates:
        create.result()
    assert "Traceback" not in service.log()


def test_what_was_acknowledged_outlives_kill_9_even_where_the_wal_is_removed(
    database: Path,
) -> None:
    with load_until_kill_9(database) as load:
        for _ in range(5):
            # It is not there yet where the service has just seen that it was gone.
            Path(f"{database}-wal").unlink(missing_ok=True)
            load.wait_for_news()
    load.assert_stored(all_pets(client_of(database)))


def test_another_store_moved_over_the_file_under_load_costs_no_pet_of_either(
    database: Path,
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    client_of(database)
    execute(database, f"VACUUM INTO '{other}'")
    execute(other, "INSERT INTO pets VALUES (7, 'of the other store', 1, 'sold')")
    with load_until_kill_9(database) as load:
        old.hardlink_to(database)
        acknowledged_before = set(load.acknowledged)
        other.rename(database)
        sent_before = set(load.sent)
        load.wait_for_news()
    old_pets, pets = all_pets(client_of(old)), all_pets(client_of(database))
    assert pets.pop(0)["name"] == "of the other store"
    load.assert_stored(old_pets + pets)
    assert acknowledged_before <= {pet["name"] for pet in old_pets}
    assert load.acknowledged.keys() - sent_before <= {pet["name"] for pet in pets}


def test_reads_go_on_while_the_file_is_held_and_only_eight_writes_wait(
    service: Service, database: Path
) -> None:
    with ThreadPoolExecutor(32) as threads:
        with held(database):
            creates = [
                threads.submit(service.request, "POST", "/v1/pets", PET)
                for _ in range(32)
            ]
            refused = list(islice(as_completed(creates, timeout=4), 24))
            assert {create.result().status for create in refused} == {503}
            assert service.request("GET", "/v1/pets", timeout=1).body == []
        waited = [create for create in creates if create not in refused]
        assert [create.result().status for create in waited] == [201] * 8


def test_a_full_disk_refuses_writes_until_there_is_room(service: Service) -> None:
    def limit_file_size(size: int) -> None:
        limits = size, resource.RLIM_INFINITY
        resource.prlimit(service.worker(), resource.RLIMIT_FSIZE, limits)

    large_pet = {**PET, "name": "x" * 60_000}
    limit_file_size(1_000_000)
    pets = []
    while (answer := service.request("POST", "/v1/pets", large_pet)).status == 201:
        pets.append(answer.body)
        assert len(pets) < 20
    assert answer.status == 503
    assert service.request("GET", "/v1/pets").body == pets
    limit_file_size(resource.RLIM_INFINITY)
    pets.append(service.request("POST", "/v1/pets", large_pet).body)
    assert service.request("GET", "/v1/pets").body == pets


# The stop.


def test_sigterm_lets_every_request_finish(service: Service) -> None:
    begun = threading.Barrier(9)

    def create_until_it_closes() -> int:
        """Create pets on one connection until the service says that it closes."""
        with service.client() as client:
            for count in range(1, 10_000):
                answer = client.request("POST", "/v1/pets", PET)
                assert answer.status == 201
                if answer.headers["Connection"] == "close":
                    return count
                if count == 1:
                    begun.wait()
        raise AssertionError("it went on")

    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(create_until_it_closes) for _ in range(8)]
        begun.wait()
        assert service.stop() == 0
    answered = sum(create.result() for create in creates)
    assert service.log().count('"POST /v1/pets HTTP/1.1" 201') == answered
    assert execute(service.database, "SELECT count(*) FROM pets") == [(answered,)]
