"""Try examples/rqlite.py on three rqlite nodes. Usage: cluster.py PATH_OF_RQLITED.

First, backups are moved out of the cluster and into it.
Then 16 clients add pets through two instances of the service, and one client follows
the pages, while the leader is killed. Every pet that got a 201 has to be stored, none
may be stored twice, and the client that follows the pages has to see all of them.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from examples.rqlite import RqliteStore
from storage import PetStore
from tests.helpers import add_pet, all_pets, create_client
from tests.request_table import REQUESTS
from tests.service import GUNICORN, Service, request, run, serving

LOAD_SECONDS = 8.0
KILL_AFTER = 2.0

# If this runs as root, rqlited runs as nobody.
USER: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
NAMES = ["", "\0", "a\0b", "\"'\\", "'; DROP TABLE pets; --", "Zoë", "🐈", "x'41'"]
NUMBERS = [-(2**63), 2**53 + 1, 2**63 - 1]


def start_nodes(
    rqlited: str, folder: Path, stack: ExitStack
) -> dict[str, subprocess.Popen[bytes]]:
    """Start three nodes, and return them by HTTP address. `stack` kills them."""
    # The user `nobody` needs permission to read the program and to write to the folder.
    shutil.copy(rqlited, folder / "rqlited")
    folder.chmod(0o777)
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    nodes = {}
    for address, raft_address in zip(addresses[:3], addresses[3:], strict=True):
        nodes[address] = subprocess.Popen(
            [folder / "rqlited", "-node-id", raft_address]
            + ["-http-addr", address, "-raft-addr", raft_address]
            + ["-bootstrap-expect", "3", "-join", ",".join(addresses[3:])]
            + [folder / raft_address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **(USER if os.geteuid() == 0 else {}),
        )
        stack.callback(nodes[address].kill)
    return nodes


def ask(address: str, method: str, path: str, body: bytes | None = None) -> bytes:
    """Send a request to a node, and return the body of the response."""
    with closing(HTTPConnection(address, timeout=5)) as connection:
        headers = {"Content-Type": "application/octet-stream"}
        connection.request(method, path, body, headers)
        return connection.getresponse().read()


def find_leader(addresses: list[str]) -> str:
    """Wait until the nodes have a leader, and return its address."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for address in addresses:
            try:
                if b'"state":"Leader"' in ask(address, "GET", "/status"):
                    return address
            except (OSError, HTTPException):
                time.sleep(0.1)
    raise TimeoutError("the nodes have elected no leader")


def load(address: str, backup: Path) -> None:
    """Replace the pets of the cluster by those of a backup."""
    loaded = ask(address, "POST", "/db/load", backup.read_bytes())
    assert b"error" not in loaded, loaded


def try_backups(addresses: list[str], folder: Path) -> str:
    """Back the cluster up, and move pets out of it and into it."""
    cluster = create_client("", RqliteStore(addresses))
    for name in NAMES:
        add_pet(cluster, name=name)
    pets = all_pets(cluster)
    follower = addresses[find_leader(addresses) == addresses[0]]
    backup, copy, empty = folder / "backup.db", folder / "copy.db", folder / "empty.db"
    backup.write_bytes(ask(follower, "GET", "/db/backup"))
    assert run("deploy/restore", str(backup), str(copy)).returncode == 0
    PetStore(str(empty))
    # One of the cluster, one of a single machine, and none for the other checks.
    for source, loaded in ((backup, pets), (copy, pets), (empty, [])):
        add_pet(cluster)
        load(follower, source)
        assert all_pets(cluster) == loaded, source
    assert all_pets(create_client(copy)) == pets
    return "3 backups loaded"


def try_requests(addresses: list[str]) -> None:
    """Send each request in the table of the tests, and values of all kinds."""
    client = create_client("", RqliteStore(addresses))
    for row in REQUESTS:
        if row.code != "pet_not_found":  # There are many pets by now.
            response = row.send(client)
            assert response.status_code == row.status, f"{row}: {response.text}"
    for name in NAMES:
        for number in NUMBERS:
            pet = add_pet(client, name=name, categoryId=number)
            assert (pet["name"], pet["categoryId"]) == (name, number)
            page = client.get(f"/v1/pets?limit=1&after={pet['id'] - 1}")
            assert page.get_json() == [pet]


def add_pets(service: Service, writer: int) -> dict[str, int]:
    """Add pets one after the other, and return the status for each name."""
    statuses: dict[str, int] = {}
    deadline = time.monotonic() + LOAD_SECONDS
    with closing(service.connect()) as connection:
        while time.monotonic() < deadline:
            name = f"{writer}-{len(statuses)}"
            pet = {"name": name, "categoryId": writer}
            statuses[name] = request(connection, "POST", "/v1/pets", pet).status
            if statuses[name] != 201:
                time.sleep(0.05)
    return statuses


def follow_pages(services: list[Service], is_over: Event) -> list[str]:
    """Follow the pages until no more pets are added, and return the names."""
    names: list[str] = []
    after = 0
    for service in cycle(services):
        is_last = is_over.is_set()
        answer = service.request("GET", f"/v1/pets?limit=100&after={after}")
        assert answer.status in (200, 503), answer
        if answer.status == 200 and answer.body:
            names += [pet["name"] for pet in answer.body]
            after = answer.body[-1]["id"]
        elif answer.status == 200 and is_last:
            break
        time.sleep(0.05)
    return names


def try_load(nodes: dict[str, subprocess.Popen[bytes]], services: list[Service]) -> str:
    """Add pets and follow the pages while the leader is killed."""
    is_over = Event()
    with ThreadPoolExecutor(17) as threads:
        reader = threads.submit(follow_pages, services, is_over)
        writers = [threads.submit(add_pets, services[n % 2], n) for n in range(16)]
        try:
            time.sleep(KILL_AFTER)
            nodes[find_leader(list(nodes))].kill()
            statuses = {
                name: status
                for writer in writers
                for name, status in writer.result().items()
            }
        finally:
            is_over.set()
        seen = reader.result()
    stored = follow_pages(services, is_over)
    added = {name for name, status in statuses.items() if status == 201}
    assert set(statuses.values()) <= {201, 503}
    assert len(set(stored)) == len(stored), "a pet is stored twice"
    assert added <= set(stored) <= set(statuses), "a pet is lost, or nobody sent it"
    assert seen == stored, "a client that follows the pages misses a pet"
    unsure = len(set(stored) - added)
    return f"{len(added)} pets added, none lost; {unsure} stored after a 503"


def main(rqlited: str) -> None:
    """Start the nodes and the services, and try them."""
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        nodes = start_nodes(rqlited, folder, stack)
        addresses = list(nodes)
        find_leader(addresses)
        command = [*GUNICORN, "--workers", "2", "examples.rqlite:create_app()"]
        command.remove("app:create_app()")
        services = [
            stack.enter_context(
                serving(folder / file, command, RQLITE_NODES=",".join(addresses))
            )
            for file in ("first.db", "second.db")
        ]
        loaded = try_backups(addresses, folder)
        print(f"{loaded}; {try_load(nodes, services)}")
        try_requests(addresses)


if __name__ == "__main__":
    main(*sys.argv[1:])
