"""Try examples/rqlite.py on a cluster. Usage: cluster.py PATH_OF_RQLITED.

Three nodes of rqlite run on the loopback interface. First, each request in
tests/request_table.py has to get the status in that table. Then, 16 clients add pets
through two instances of the service, and one client follows the pages, while the leader
is killed. Every pet that got a 201 has to be stored, no pet may be stored twice, and
the client that follows the pages has to see all of them. At last, values such as U+0000
are added through one instance and read through the other.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from itertools import cycle, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest

from examples.rqlite import RqliteStore
from tests.helpers import BEFORE_REMOVAL, assert_error, set_clock
from tests.process import COMMAND, Service, serving
from tests.request_table import REQUESTS
from tests.test_custom_store import create_client

LOAD_SECONDS = 8.0
KILL_AFTER = 2.0
# The limits for one request, and for the time between two pets that are added.
LONGEST_REQUEST = 6.0
LONGEST_GAP = 8.0

# If this runs as root, rqlited runs as nobody.
USER: dict[str, Any] = (
    {"user": "nobody", "group": "nogroup", "extra_groups": []}
    if os.geteuid() == 0
    else {}
)

NAMES = ["", "\0", "a\0b", "\"'\\", "'; DROP TABLE pets; --", "Zoë", "🐈", "x'41'"]
NUMBERS = [-(2**63), 2**53 + 1, 2**63 - 1]


class Node:
    """A node of the cluster."""

    def __init__(self, folder: Path, port: int, raft_port: int, members: str) -> None:
        self.address = f"127.0.0.1:{port}"
        raft_address = f"127.0.0.1:{raft_port}"
        self.command = [
            *(str(folder / "rqlited"), "-node-id", raft_address),
            *("-http-addr", self.address, "-raft-addr", raft_address),
            *("-bootstrap-expect", "3", "-join", members),
            str(folder / raft_address),
        ]
        self.log_file = folder / f"{raft_address}.log"
        self.start()

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, **USER
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def is_leader(self) -> bool:
        connection = HTTPConnection(self.address, timeout=1)
        try:
            connection.request("GET", "/status")
            return b'"state":"Leader"' in connection.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def start_nodes(rqlited: str, folder: Path, stack: ExitStack) -> list[Node]:
    """Start three nodes, which the stack kills at its end."""
    # rqlited may run as the user `nobody`, who has to read it and write to the folder.
    shutil.copy(rqlited, folder / "rqlited")
    folder.chmod(0o777)
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    members = ",".join(f"127.0.0.1:{port}" for port in ports[3:])
    nodes = []
    for port, raft_port in zip(ports[:3], ports[3:], strict=True):
        nodes.append(Node(folder, port, raft_port, members))
        stack.callback(nodes[-1].kill)
    return nodes


def wait_for_leader(nodes: list[Node]) -> Node:
    deadline = monotonic() + 20
    while monotonic() < deadline:
        for node in nodes:
            if node.is_leader():
                return node
        sleep(0.1)
    raise TimeoutError("the nodes have elected no leader")


def try_table(nodes: list[Node]) -> None:
    """Send each request of the table to an empty store."""
    # The rows with status 500 log tracebacks.
    logging.disable()
    store = RqliteStore([node.address for node in nodes])
    for row in REQUESTS:
        # The rows with this code remove SQLite's file.
        if row.code == "storage_unavailable":
            continue
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_clock(monkeypatch, BEFORE_REMOVAL)
            response = row.send(create_client(store), monkeypatch)
        assert response.status_code == row.status, f"{row}: {response.text}"
        if row.code:
            assert_error(response, row.status, row.code)
        store._execute("DROP TABLE IF EXISTS pets")


class Sent(NamedTuple):
    """A pet that was sent, the status of the answer, and the times of both."""

    name: str
    status: int
    began: float
    ended: float


def add_pets(service: Service, writer: int) -> list[Sent]:
    """Add pets one after the other."""
    sent: list[Sent] = []
    deadline = monotonic() + LOAD_SECONDS
    with service.client() as client:
        while monotonic() < deadline:
            began = monotonic()
            name = f"{writer}-{len(sent)}"
            pet = {"name": name, "categoryId": writer}
            status = client.request("POST", "/v1/pets", pet).status
            sent.append(Sent(name, status, began, monotonic()))
            if status != 201:
                sleep(0.05)
    return sent


def follow_pages(services: list[Service], is_over: Event) -> list[str]:
    """Follow the pages until all pets have been added, and return the names."""
    names: list[str] = []
    after = 0
    deadline = monotonic() + 2 * LOAD_SECONDS
    for service in cycle(services):
        assert monotonic() < deadline, "the pages do not end"
        is_last = is_over.is_set()
        answer = service.request("GET", f"/v1/pets?limit=100&after={after}")
        assert answer.status in (200, 503), answer
        if answer.status == 503:
            sleep(0.05)
        elif answer.body:
            names += [pet["name"] for pet in answer.body]
            after = answer.body[-1]["id"]
        elif is_last:
            break
    return names


def try_load(nodes: list[Node], services: list[Service]) -> str:
    """Add pets and follow the pages while the leader is killed."""
    is_over = Event()
    with ThreadPoolExecutor(17) as threads:
        reader = threads.submit(follow_pages, services, is_over)
        writers = [threads.submit(add_pets, services[n % 2], n) for n in range(16)]
        try:
            sleep(KILL_AFTER)
            wait_for_leader(nodes).kill()
            sent = [pet for writer in writers for pet in writer.result()]
        finally:
            is_over.set()
        seen = reader.result()
    stored = follow_pages(services, is_over)
    added = {pet.name for pet in sent if pet.status == 201}
    assert {pet.status for pet in sent} <= {201, 503}
    assert len(set(stored)) == len(stored), "a pet is stored twice"
    assert added <= set(stored), "a pet is lost"
    assert set(stored) <= {pet.name for pet in sent}, (
        "the store has a pet that no client has sent"
    )
    assert seen == stored, "a client that follows the pages misses a pet"
    times = sorted(pet.ended for pet in sent if pet.status == 201)
    end = max(pet.ended for pet in sent)
    gap = max(later - earlier for earlier, later in pairwise([*times, end]))
    assert gap < LONGEST_GAP, "pets were refused for too long"
    assert max(pet.ended - pet.began for pet in sent) < LONGEST_REQUEST
    stored_after_503 = len(set(stored) - added)
    return (
        f"{len(added)} pets added, none lost or stored twice; {stored_after_503} "
        "answered with 503 and stored; "
        f"no 201 for {gap:.1f} s after the leader was killed"
    )


def try_values(services: list[Service]) -> None:
    """Add pets by one instance, and read exactly these by the other."""
    first, second = services
    for name in NAMES:
        for number in NUMBERS:
            pet = {"name": name, "categoryId": number, "status": "sold"}
            added = first.request("POST", "/v1/pets", pet)
            assert added.body == {"id": added.body["id"], **pet}
            page = f"/v1/pets?limit=1&after={added.body['id'] - 1}"
            assert second.request("GET", page).body == [added.body]


def main() -> None:
    [rqlited] = sys.argv[1:]
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        try:
            nodes = start_nodes(rqlited, folder, stack)
            wait_for_leader(nodes)
            try_table(nodes)
            setting = f"RQLITE_NODES={','.join(node.address for node in nodes)}"
            command = ["env", setting, *COMMAND[:-1], "--workers", "2"]
            command.append("examples.rqlite:create_app()")
            services = [
                stack.enter_context(serving(folder / file, command))
                for file in ("first.db", "second.db")
            ]
            print(try_load(nodes, services))
            try_values(services)
        except BaseException:
            for log in folder.glob("*.log"):
                print(log.name, log.read_text()[-2000:], sep="\n")
            raise


if __name__ == "__main__":
    main()
