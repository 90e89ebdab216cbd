"""examples/rqlite.py: the service with a cluster of three rqlite nodes."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event

import pytest
from flask.testing import FlaskClient

from examples.rqlite import Cluster
from tests.helpers import (
    NEW_PET,
    add_pet,
    all_pets,
    assert_error,
    assert_unavailable,
    create_client,
    is_in_wal_mode,
    post_pet,
)
from tests.request_table import REQUESTS
from tests.service import GUNICORN, ROOT, TIMEOUT, Service, request, run, serving

RQLITED = str(ROOT / ".ci" / "node_modules" / ".bin" / "rqlited")
# A node by its HTTP address.
Nodes = dict[str, subprocess.Popen[bytes]]

NAMES = ["", "\0", "a\0b", "\"'\\", "'; DROP TABLE pets; --", "Zoë", "🐈", "x'41'"]
NUMBERS = [-(2**63), 2**53 + 1, 2**63 - 1]


def ask(address: str, method: str, path: str, body: bytes | None = None) -> bytes:
    """Send a request to a node, and return the body of the response."""
    with closing(HTTPConnection(address, timeout=TIMEOUT)) as connection:
        headers = {"Content-Type": "application/octet-stream"}
        connection.request(method, path, body, headers)
        return connection.getresponse().read()


def find_leader(nodes: Nodes) -> str:
    """Wait until the nodes have a leader, and return its address."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        for address in nodes:
            try:
                if b'"state":"Leader"' in ask(address, "GET", "/status"):
                    return address
            except (OSError, HTTPException):
                time.sleep(0.1)
    raise TimeoutError("the nodes have elected no leader")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Run three nodes that have elected a leader."""
    with ExitStack() as stack:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
        for server in servers:
            server.close()
        nodes: Nodes = {}
        for http, raft in zip(addresses[:3], addresses[3:], strict=True):
            command = [RQLITED, f"-node-id={raft}", f"-http-addr={http}"]
            command += [f"-raft-addr={raft}", f"-join={','.join(addresses[3:])}"]
            command += ["-bootstrap-expect=3", str(tmp_path / raft)]
            with (tmp_path / f"{raft}.log").open("wb") as log:
                node = subprocess.Popen(command, stdout=log, stderr=log)
            nodes[http] = stack.enter_context(node)
            stack.callback(node.kill)
        find_leader(nodes)
        yield nodes


@pytest.fixture
def client(nodes: Nodes) -> FlaskClient:
    """Return a client of an application that asks the leader of the cluster."""
    return create_client("", Cluster([find_leader(nodes)]))


def test_each_request_gets_the_response_of_the_table(client: FlaskClient) -> None:
    # Two machines may create the table at the same time.
    with ThreadPoolExecutor(16) as threads:
        lists = [threads.submit(all_pets, client) for _ in range(16)]
    assert [each.result() for each in lists] == [[]] * 16
    add_pet(client)
    # The row that adds a second pet comes last.
    for row in sorted(REQUESTS, key=lambda row: row.status == 201):
        response = row.send(client)
        assert response.status_code == row.status, row
        if row.code:
            assert_error(response, row.status, row.code)


def test_names_and_numbers_are_returned_as_they_were_sent(client: FlaskClient) -> None:
    pets = []
    for name in NAMES:
        for number in NUMBERS:
            pets.append(add_pet(client, name=name, categoryId=number))
            assert pets[-1]["name"] == name
            assert pets[-1]["categoryId"] == number
    assert all_pets(client, "/v1/pets?limit=5") == pets
    assert client.get(f"/v1/pets/{pets[-1]['id']}").get_json() == pets[-1]


def test_a_node_that_hangs_is_asked_last_and_without_nodes_all_is_503(
    nodes: Nodes, client: FlaskClient
) -> None:
    pet = add_pet(client)
    leader = find_leader(nodes)
    [follower, _] = nodes.keys() - {leader}
    client = create_client("", Cluster([follower, leader]))
    nodes[follower].send_signal(signal.SIGSTOP)
    assert_unavailable(client.get("/v1/pets"))
    assert all_pets(client) == [pet]
    for node in nodes.values():
        node.kill()
        node.wait()
    assert_unavailable(client.get("/v1/pets"), post_pet(client), client.get("/healthz"))


def test_a_backup_moves_between_a_cluster_and_a_single_machine(
    nodes: Nodes, client: FlaskClient, tmp_path: Path
) -> None:
    pets = [add_pet(client, name=name) for name in NAMES]
    [follower, *_] = nodes.keys() - {find_leader(nodes)}
    backup, database = tmp_path / "backup.db", tmp_path / "pets.db"
    backup.write_bytes(ask(follower, "GET", "/db/backup?vacuum"))
    # In WAL mode, petstore could not read it in a folder of root.
    assert not is_in_wal_mode(backup)
    for half in ("copy", "swap"):
        restored = run("deploy/restore", str(backup), str(database), half)
        assert restored.returncode == 0, restored.stderr
    single = create_client(database)
    assert all_pets(single) == pets
    pets.append(add_pet(single))
    (tmp_path / "backups").mkdir()
    run("deploy/backup", str(database), str(tmp_path / "backups"))
    [backup] = (tmp_path / "backups").iterdir()
    add_pet(client, name="This pet is replaced.")
    assert b"error" not in ask(follower, "POST", "/db/load", backup.read_bytes())
    assert all_pets(client) == pets


def add_pets(
    service: Service, writer: int, statuses: dict[str, int], is_over: Event
) -> None:
    """Add pets on one connection, and note the status for each name."""
    with closing(service.connect()) as connection:
        for count in range(100_000):
            name = f"{writer} {count}"
            pet = {**NEW_PET, "name": name}
            statuses[name] = request(connection, "POST", "/v1/pets", pet).status
            if is_over.wait(0 if statuses[name] == 201 else 0.05):
                return


def test_no_pet_is_lost_or_stored_twice_if_the_leader_is_killed(
    nodes: Nodes, tmp_path: Path
) -> None:
    command = [*GUNICORN, "--workers", "2", "examples.rqlite:create_app()"]
    command.remove("app:create_app()")
    statuses: dict[str, int] = {}
    is_over = Event()
    with ExitStack() as stack:
        services = [
            stack.enter_context(
                serving(tmp_path / name, command, RQLITE_NODES=",".join(nodes))
            )
            for name in ("first.db", "second.db")
        ]
        threads = stack.enter_context(ThreadPoolExecutor(16))
        stack.callback(is_over.set)
        writers = [
            threads.submit(add_pets, services[number % 2], number, statuses, is_over)
            for number in range(16)
        ]
        # Follow the pages, and kill the leader meanwhile.
        seen: list[str] = []
        after = 0
        leader = None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            are_done = all(writer.done() for writer in writers)
            path = f"/v1/pets?limit=100&after={after}"
            answer = services[len(seen) % 2].request("GET", path)
            assert answer.status in (200, 503)
            if answer.status == 200 and answer.body:
                seen += [pet["name"] for pet in answer.body]
                after = answer.body[-1]["id"]
            elif answer.status == 200 and are_done:
                break
            if leader is None and len(seen) > 300:
                leader = find_leader(nodes)
                nodes[leader].kill()
            # The new leader has accepted pets, too.
            if len(seen) > 900:
                is_over.set()
    added = {name for name, status in statuses.items() if status == 201}
    assert {*statuses.values()} == {201, 503}
    assert len({*seen}) == len(seen)
    assert added <= {*seen} <= {*statuses}
    assert [writer.result() for writer in writers] == [None] * 16
