"""examples/rqlite.py without a cluster. .ci/cluster.py tries it on three nodes."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from app import StartError
from examples.rqlite import RqliteStore, create_app
from storage import StorageUnavailable
from tests.process import COMMAND, KEY, LOOPBACK, run


@pytest.mark.parametrize(
    "nodes", ["", "a", "a:", ":4001", "a:4001,", "a:4001 b:4001", "a:65536"]
    + ["http://a:4001", "a..b:4001", "a:4001/"]
)  # fmt: skip
def test_a_malformed_list_of_nodes_stops_startup(
    monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", KEY)
    monkeypatch.setenv("RQLITE_NODES", nodes)
    with pytest.raises(StartError, match=r"^RQLITE_NODES: '.*' is not HOST:PORT; "):
        create_app()


def test_a_malformed_list_of_nodes_is_shown_once_by_two_workers() -> None:
    command = [*COMMAND[:-1], "--workers", "2", "examples.rqlite:create_app()"]
    ended = run(*command, PETSTORE_API_KEYS=KEY, **LOOPBACK)
    assert ended.returncode == 3
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith("[")]
    assert line.startswith("Error: RQLITE_NODES: '' is not HOST:PORT; ")


def test_a_request_is_sent_to_one_node_only() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
        ThreadPoolExecutor(1) as thread,
    ):
        nodes = [f"127.0.0.1:{node.getsockname()[1]}" for node in (first, second)]
        store = RqliteStore(nodes)
        for node, other in ((first, second), (second, first)):
            result = thread.submit(store.add, name="Rex", category_id=1, status="sold")
            connection, _ = node.accept()
            assert connection.recv(65_536)
            connection.close()
            with pytest.raises(StorageUnavailable):
                result.result()
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
            other.setblocking(True)


def test_the_store_is_unavailable_if_no_node_can_be_reached() -> None:
    # Nothing listens at a port that is bound only.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        store = RqliteStore([f"127.0.0.1:{bound.getsockname()[1]}"])
        with pytest.raises(StorageUnavailable, match="^no connection to any of "):
            store.check()
