"""The Procfile's command: under load, during faults, and when it stops."""

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

from tests.conftest import create_client
from tests.helpers import (
    NEW_PET,
    all_pets,
    execute,
    locked_by_another_program,
    wal_of,
)
from tests.process import COMMAND, TIMEOUT, Service, run, serving


@pytest.fixture
def service(database: Path) -> Iterator[Service]:
    with serving(database) as service:
        yield service
        assert "Traceback" not in service.log()


# The settings.


def test_the_environment_sets_the_port_but_not_the_number_of_workers() -> None:
    settings = {"PORT": "5123", "WEB_CONCURRENCY": "7", "PETSTORE_API_KEYS": "key"}
    settings |= {"PETSTORE_DATABASE": ":memory:"}
    shown = run(*COMMAND, "--print-config", **settings).stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["bind", "=", "['0.0.0.0:5123']"] in lines
    assert ["workers", "=", "1"] in lines
    assert ["threads", "=", "16"] in lines
    assert ["control_socket_disable", "=", "True"] in lines


def test_gunicorn_may_preload_the_application(database: Path) -> None:
    with serving(database, [*COMMAND, "--preload"]) as service:
        pet = service.request("POST", "/v1/pets", NEW_PET).body
        assert service.request("GET", "/v1/pets").body == [pet]
        assert service.stop() == 0
        assert "Traceback" not in service.log()


# Faults.


class Load:
    """Clients that create pets in a service, and the responses to them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.sent: set[str] = set()
        self.acknowledged: dict[str, int] = {}
        self.condition = threading.Condition()

    def create_pets(self) -> None:
        """Create pets with unique names until the service ends."""
        with self.service.client() as client, suppress(OSError, HTTPException):
            while True:
                name = f"{uuid4()} {'x' * 500}"
                self.sent.add(name)
                response = client.request("POST", "/v1/pets", {**NEW_PET, "name": name})
                assert response.status in (201, 503)
                if response.status == 201:
                    with self.condition:
                        self.acknowledged[name] = response.body["id"]
                        self.condition.notify()

    def wait_for_creates(self) -> None:
        """Wait for the 201 of pets that were sent after this call."""
        with self.condition:
            # Up to 8 of the next 16 responses are to requests that were sent before.
            count = len(self.acknowledged) + 16
            assert self.condition.wait_for(
                lambda: len(self.acknowledged) >= count, TIMEOUT
            )

    def assert_stored(self, pets: list[dict[str, Any]]) -> None:
        """Check that acknowledged pets are stored, none twice, and each was sent."""
        stored = {pet["name"]: pet["id"] for pet in pets}
        assert len(stored) == len(pets)
        assert self.acknowledged.items() <= stored.items()
        assert stored.keys() <= self.sent


@contextmanager
def load_until_kill_9(database: Path) -> Iterator[Load]:
    """Let eight clients create pets during a `with` block, then kill the service."""
    with ThreadPoolExecutor(8) as threads, serving(database) as service:
        load = Load(service)
        creates = [threads.submit(load.create_pets) for _ in range(8)]
        load.wait_for_creates()
        yield load
    for create in creates:
        create.result()
    assert "Traceback" not in service.log()


def test_no_acknowledged_pet_is_lost_by_kill_9_and_removed_wals(database: Path) -> None:
    with load_until_kill_9(database) as load:
        for _ in range(5):
            # The service may not have opened the file again.
            wal_of(database).unlink(missing_ok=True)
            load.wait_for_creates()
    load.assert_stored(all_pets(create_client(database)))


def test_no_acknowledged_pet_is_lost_if_another_store_replaces_the_file_under_load(
    database: Path,
) -> None:
    old, other = database.with_suffix(".old"), database.with_suffix(".other")
    create_client(database)
    execute(database, f"VACUUM INTO '{other}'")
    execute(other, "INSERT INTO pets VALUES (7, 'Tom', 1, 'sold')")
    with load_until_kill_9(database) as load:
        old.hardlink_to(database)
        acknowledged_before = set(load.acknowledged)
        other.rename(database)
        sent_before = set(load.sent)
        load.wait_for_creates()
    old_pets, pets = all_pets(create_client(old)), all_pets(create_client(database))
    assert pets.pop(0)["name"] == "Tom"
    load.assert_stored(old_pets + pets)
    assert acknowledged_before <= {pet["name"] for pet in old_pets}
    assert load.acknowledged.keys() - sent_before <= {pet["name"] for pet in pets}


def test_reads_go_on_while_another_program_holds_the_lock(
    service: Service, database: Path
) -> None:
    with ThreadPoolExecutor(24) as threads:
        with locked_by_another_program(database):
            # More than the service has threads.
            creates = [
                threads.submit(service.request, "POST", "/v1/pets", NEW_PET)
                for _ in range(24)
            ]
            refused = list(islice(as_completed(creates, timeout=4), 16))
            assert {create.result().status for create in refused} == {503}
            assert service.request("GET", "/v1/pets", timeout=2).body == []
        statuses = [create.result().status for create in creates]
        stored = service.request("GET", "/v1/pets?limit=100").body
        assert len(stored) == statuses.count(201) == 24 - statuses.count(503)


def test_a_full_disk_refuses_writes_until_there_is_room(service: Service) -> None:
    def limit_file_size(size: int) -> None:
        limits = size, resource.RLIM_INFINITY
        resource.prlimit(service.worker(), resource.RLIMIT_FSIZE, limits)

    large_pet = {**NEW_PET, "name": "x" * 60_000}
    limit_file_size(1_000_000)
    pets = []
    while (response := service.request("POST", "/v1/pets", large_pet)).status == 201:
        pets.append(response.body)
        assert len(pets) < 20
    assert response.status == 503
    assert service.request("GET", "/v1/pets").body == pets
    limit_file_size(resource.RLIM_INFINITY)
    pets.append(service.request("POST", "/v1/pets", large_pet).body)
    assert service.request("GET", "/v1/pets").body == pets


# The end.


def test_sigterm_lets_every_request_finish_and_leaves_no_wal(service: Service) -> None:
    has_begun = threading.Barrier(9)

    def create_until_it_closes() -> int:
        """Create pets on one connection until the service closes it."""
        with service.client() as client:
            for count in range(1, 10_000):
                response = client.request("POST", "/v1/pets", NEW_PET)
                assert response.status == 201
                if response.headers["Connection"] == "close":
                    return count
                if count == 1:
                    has_begun.wait()
        raise AssertionError("the service went on")

    with ThreadPoolExecutor(8) as threads:
        creates = [threads.submit(create_until_it_closes) for _ in range(8)]
        has_begun.wait()
        assert service.stop() == 0
    acknowledged = sum(create.result() for create in creates)
    assert service.log().count('"POST /v1/pets HTTP/1.1" 201') == acknowledged
    assert not wal_of(service.database).exists()
    assert execute(service.database, "SELECT count(*) FROM pets") == [(acknowledged,)]
