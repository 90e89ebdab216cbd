"""What the service costs beside a bare Flask route: `python -m tests.benchmark`.

Every figure is a ratio of two that are measured in turn; medians of many rounds are
shown. Requests are called through WSGI in one process, beside a bare route that returns
a ready-made body of the same size. Creates are sent to gunicorn too, on disks whose
sync takes longer, beside the same service made to commit one pet at a time.
"""

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from flask import Flask, Response
from werkzeug.test import create_environ

import storage
from app import create_app
from tests.service import AUTHORIZED, COMMAND, KEY, serving

SMALL, LARGE = 1_000, 1_000_000
ROUNDS, CALLS = 40, 100
SERVED_ROUNDS, SERVED_SECONDS = 5, 1.0

NEW_PET = json.dumps({"name": "Rex", "categoryId": 1, "status": "sold"}).encode()
FILL = """
    WITH RECURSIVE numbers (n) AS (
        SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?
    )
    INSERT INTO pets (name, category_id, status)
    SELECT
        'Pet number ' || n, n % 10,
        CASE n % 3 WHEN 0 THEN 'sold' WHEN 1 THEN 'pending' ELSE 'available' END
    FROM numbers
"""

Environ = dict[str, Any]


def show(*cells: str) -> None:
    """Print a row of a table."""
    print(cells[0].ljust(34), *(cell.rjust(16) for cell in cells[1:]), flush=True)


def bare_app() -> Flask:
    """Return an application whose routes do nothing but return a ready-made body."""
    app = Flask("bare", static_folder=None)
    pet = {"id": 1, "name": "Pet number 1", "categoryId": 1, "status": "available"}

    def add(path: str, body: object) -> None:
        text = json.dumps(body, separators=(",", ":")).encode()
        app.add_url_rule(
            path,
            path,
            lambda: Response(text, mimetype="application/json"),
            methods=["GET", "POST"],
        )

    add("/pet", pet)
    add("/pets20", [pet] * 20)
    add("/pets100", [pet] * 100)
    return app


def filled_store(folder: Path, count: int) -> Path:
    """Make a database file with `count` pets."""
    path = folder / f"{count}.db"
    create_app({"API_KEYS": KEY, "DATABASE": path})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(FILL, [count])
    return path


# In process.


def request(path: str, body: bytes = b"") -> Environ:
    """Return the WSGI environment of a GET, or of a POST where there is a body."""
    environ = create_environ(
        path,
        method="POST" if body else "GET",
        headers={**AUTHORIZED, "User-Agent": "benchmark", "Accept": "*/*"},
        content_type="application/json" if body else None,
        data=body,
    )
    # gunicorn ends the input where the body ends, and says so.
    return {**environ, "wsgi.input_terminated": True, "body": body}


def seconds(app: Flask, environs: Iterator[Environ]) -> float:
    """Return how long CALLS requests take, each sent as a server would."""
    start = time.perf_counter()
    for environ in islice(environs, CALLS):
        answer: list[str] = []
        environ = {**environ, "wsgi.input": BytesIO(environ["body"])}
        result = app(environ, lambda status, *_, to=answer: to.append(status))
        b"".join(result)
        result.close()
        assert answer[0][0] == "2", (environ["PATH_INFO"], answer)
    return time.perf_counter() - start


def places(pattern: str, size: int) -> Callable[[int], list[list[str]]]:
    """Return the paths of the first place in a store of so many pets, and the last."""
    return lambda count: [[pattern.format(n)] for n in (1, count - 3 * size)]


def pages(count: int) -> list[list[str]]:
    """Return the paths of 500 pages, more than the service remembers, twice."""
    step = (count - 20) // 500
    return [[f"/v1/pets?limit=20&after={n * step}" for n in range(500)]] * 2


OPERATIONS = [
    ("list 20", "/pets20", places("/v1/pets?limit=20&after={}", 20), b""),
    ("of a status", "/pets20", places("/v1/pets?status=sold&after={}", 20), b""),
    ("another page each time", "/pets20", pages, b""),
    ("list 100", "/pets100", places("/v1/pets?limit=100&after={}", 100), b""),
    ("get", "/pet", places("/v1/pets/{}", 0), b""),
    ("create, without the sync", "/pet", places("/v1/pets", 0), NEW_PET),
]


def in_process(folder: Path) -> None:
    """Measure every operation on a small and a large store, first place and last."""
    apps = {
        count: create_app({"API_KEYS": KEY, "DATABASE": filled_store(folder, count)})
        for count in (SMALL, LARGE)
    }
    bare = bare_app()
    show(
        "as a multiple of the bare route", f"{SMALL:,} pets", f"{LARGE:,} pets", "last"
    )
    for name, bare_path, paths, body in OPERATIONS:
        measured = [(bare, cycle([request(bare_path, body)]))] + [
            (app, cycle([request(path, body) for path in place]))
            for count, app in apps.items()
            for place in paths(count)
        ]
        times = [[seconds(*one) for one in measured] for _ in range(ROUNDS)]
        first, _, large, last = (
            f"{median(row[n] / row[0] for row in times):.2f} x" for n in range(1, 5)
        )
        show(name, first, large, last)


# Served.


def requests_per_second(port: int, request: bytes, connections: int) -> float:
    """Send a request over and over on some connections, and count the answers."""
    stop = threading.Event()

    def work() -> int:
        count = 0
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            while not stop.is_set():
                connection.sendall(request)
                answer = connection.recv(65_536)
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 20"), head
                _, _, rest = head.lower().partition(b"content-length: ")
                missing = int(rest.partition(b"\r\n")[0]) - len(body)
                while missing:
                    missing -= len(connection.recv(missing))
                count += 1
        return count

    start = time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        counts = [threads.submit(work) for _ in range(connections)]
        time.sleep(SERVED_SECONDS)
        stop.set()
        answers = sum(count.result() for count in counts)
    return answers / (time.perf_counter() - start)


def compare(name: str, targets: list[tuple[int, bytes]], connections: int) -> None:
    """Send requests to two ports in turn; show the two rates and their ratio."""
    pairs = [
        [requests_per_second(*target, connections) for target in targets]
        for _ in range(SERVED_ROUNDS)
    ]
    ours, others = (median(rates) for rates in zip(*pairs, strict=True))
    ratio = median(rate / other for rate, other in pairs)
    show(f"{name}, {connections}", f"{ours:,.0f}/s", f"{others:,.0f}/s", f"{ratio:.2f}")


def http(path: str, body: bytes = b"") -> bytes:
    """Return a request as its bytes."""
    head = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", "Host: localhost"]
    head += [f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
    head += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*head, "", ""]).encode() + body


def served(delay: int, *, shares: bool) -> Flask:
    """Return the service on a disk whose sync takes `delay` milliseconds longer.

    Where it does not share, it takes one pet at a time from those that wait.
    """
    transaction = storage.Database.transaction

    @contextmanager
    def slow(database: storage.Database) -> Iterator[sqlite3.Connection]:
        with transaction(database) as connection:
            yield connection
            time.sleep(delay / 1000)

    def take_one(queue: storage.WriteQueue, _: int) -> dict[Future[Any], Any]:
        with queue._lock:
            write = next(iter(queue._waiting))
            statement = queue._waiting.pop(write)
        return {write: statement} if write.set_running_or_notify_cancel() else {}

    storage.Database.transaction = slow  # type: ignore[method-assign]
    if not shares:
        storage.WriteQueue._take = take_one  # type: ignore[method-assign]
    return create_app()


def creates(folder: Path) -> None:
    """Measure creates on disks whose sync takes longer, beside one commit a pet."""
    show("creates, connections", "shared commits", "one a pet", "ratio")
    for delay in (0, 1, 4):
        commands = [
            [*COMMAND[:-1], f"tests.benchmark:served({delay}, shares={shares})"]
            for shares in (True, False)
        ]
        with (
            serving(folder / f"shared{delay}.db", commands[0]) as ours,
            serving(folder / f"single{delay}.db", commands[1]) as other,
        ):
            for connections in (1, 8, 16):
                targets = [
                    (one.port, http("/v1/pets", NEW_PET)) for one in (ours, other)
                ]
                compare(f"sync {delay} ms longer", targets, connections)


if __name__ == "__main__":
    # Files in memory have no disk to wait for.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with TemporaryDirectory(dir=memory) as folder:
        in_process(Path(folder))
    with TemporaryDirectory() as folder:
        creates(Path(folder))
