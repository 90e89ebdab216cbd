"""Compare the service with one that uses a plain store.

Run it with: python -m tests.benchmark

Both are served by the Procfile's command and get the same requests in turn. The table
shows requests per second and the 99th percentile of the time that a request takes.
"""

import json
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from flask import Flask

import storage
from app import create_app
from tests.process import AUTHORIZED, COMMAND, Service, serving

ROUNDS = 5
SECONDS = 2.0
PETS = 1_000
CONNECTIONS = (1, 16)

NEW_PET = json.dumps({"name": "Rex", "categoryId": 1})
REQUESTS = {
    "list 20": ("GET", "/v1/pets", ""),
    "list 100": ("GET", "/v1/pets?limit=100", ""),
    "get": ("GET", "/v1/pets/7", ""),
    "create": ("POST", "/v1/pets", NEW_PET),
}


class PlainStore:
    """A store as a tutorial would write it: a connection for each thread, in WAL mode.

    It uses the statements of storage.py, and commits every pet separately.
    """

    def __init__(self, path: str) -> None:
        # It creates the file.
        storage.PetStore(path)
        self.path = path
        self.local = threading.local()

    def connection(self) -> sqlite3.Connection:
        """Return the connection of the current thread."""
        if not hasattr(self.local, "connection"):
            connection = sqlite3.connect(self.path, isolation_level=None)
            connection.text_factory = bytes
            connection.execute("PRAGMA synchronous = FULL")
            self.local.connection = connection
        result: sqlite3.Connection = self.local.connection
        return result

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        """Return a page; the benchmark uses no status."""
        values = {"limit": limit, "after": after}
        rows = self.connection().execute(storage.SELECT_PAGE, values).fetchall()
        page = b"[" + b",".join([pet for _, pet in rows[:limit]]) + b"]"
        return page, rows[limit - 1][0] if len(rows) > limit else None

    def add(self, **values: Any) -> tuple[int, bytes]:
        """Store a pet."""
        [(pet_id, pet)] = self.connection().execute(storage.INSERT_PET, values)
        return pet_id, pet

    def get(self, pet_id: int) -> bytes | None:
        """Return a pet."""
        rows = self.connection().execute(storage.SELECT_PET, {"id": pet_id}).fetchall()
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise if the database does not respond."""
        self.connection().execute(storage.PROBE).fetchall()


def create_plain_app(database: str) -> Flask:
    """Return the service with a plain store."""
    return create_app(store=PlainStore(database))


def raw_request(method: str, path: str, body: str) -> bytes:
    """Return the bytes of a request that keeps its connection open."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: {AUTHORIZED['Authorization']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "",
        body,
    ]
    return "\r\n".join(lines).encode()


def read_response(connection: socket.socket) -> bytes:
    """Return the status line of a response after reading all of it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65_536)
    return head.split(b"\r\n")[0]


def send_requests(service: Service, request: bytes, end: float) -> list[float]:
    """Send a request again and again until `end`; return the seconds that each took."""
    times = []
    with socket.create_connection(("127.0.0.1", service.port), 30) as connection:
        while time.perf_counter() < end:
            start = time.perf_counter()
            connection.sendall(request)
            status_line = read_response(connection)
            assert b" 20" in status_line, status_line
            times.append(time.perf_counter() - start)
    return times


def measure(
    service: Service, request: bytes, connections: int
) -> tuple[float, list[float]]:
    """Return requests per second on this many connections, and the seconds of each."""
    start = time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        runs = [
            threads.submit(send_requests, service, request, start + SECONDS)
            for _ in range(connections)
        ]
        times = [seconds for run in runs for seconds in run.result()]
    return len(times) / (time.perf_counter() - start), times


def main() -> None:
    """Print the table of docs/server.md."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        services = []
        for name in ("service", "plain"):
            database = Path(folder, f"{name}.db")
            plain = f"tests.benchmark:create_plain_app({str(database)!r})"
            command = COMMAND if name == "service" else [*COMMAND[:-1], plain]
            services.append(stack.enter_context(serving(database, command)))
            with services[-1].client() as client:
                for _ in range(PETS):
                    client.request("POST", "/v1/pets", json.loads(NEW_PET))
        print(
            "| | requests/s | 99th percentile | plain: requests/s | 99th percentile |"
        )
        print("|---|---|---|---|---|")
        for name, parts in REQUESTS.items():
            for connections in CONNECTIONS:
                rounds = [
                    [measure(one, raw_request(*parts), connections) for one in services]
                    for _ in range(ROUNDS)
                ]
                cells = []
                for results in zip(*rounds, strict=True):
                    rate = median(rate for rate, _ in results)
                    times = [seconds for _, times in results for seconds in times]
                    cells += [
                        f"{rate:,.0f}",
                        f"{1000 * quantiles(times, n=100)[98]:.1f} ms",
                    ]
                unit = "connection" if connections == 1 else "connections"
                print("|", " | ".join([f"{name}, {connections} {unit}", *cells]), "|")


if __name__ == "__main__":
    main()
