"""What the service costs beside a bare Flask route: `python -m tests.benchmark`.

Every figure is a ratio of two that are measured in turn; medians of many rounds are
shown. Requests are called through WSGI in one process, beside a bare route that returns
a ready-made body of the same size. Creates are sent to gunicorn, on disks whose sync
takes longer, beside the same service made to commit one pet at a time.
"""

import json
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
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

INSERT = "INSERT INTO pets (name, category_id, status) VALUES (?, ?, ?)"
STATUSES = ("sold", "pending", "available")

# The name of what is asked for, its path past a pet, and how many pets it returns.
OPERATIONS = [
    ("list 20", "/v1/pets?limit=20&after={}", 20),
    ("of a status", "/v1/pets?status=sold&after={}", 20),
    ("list 100", "/v1/pets?limit=100&after={}", 100),
    ("get", "/v1/pets/{}", 1),
]


def show(*cells: str) -> None:
    """Print a row of a table."""
    print(cells[0].ljust(34), *(cell.rjust(16) for cell in cells[1:]), flush=True)


# In process.


def bare_app() -> Flask:
    """Return an application whose routes do nothing but return ready-made pets."""
    app = Flask("bare", static_folder=None)
    pet = {"id": 1, "name": "Pet number 1", "categoryId": 1, "status": "available"}
    for count in (1, 20, 100):
        body = json.dumps([pet] * count, separators=(",", ":"))
        view = partial(Response, body, mimetype="application/json")
        app.add_url_rule(f"/{count}", str(count), view)
    return app


def filled_app(folder: str, count: int) -> Flask:
    """Return the service on a new file with `count` pets."""
    path = Path(folder, f"{count}.db")
    app = create_app({"API_KEYS": KEY, "DATABASE": path})
    pets = ((f"Pet number {n}", n % 10, STATUSES[n % 3]) for n in range(count))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(INSERT, pets)
    return app


def seconds(app: Flask, path: str) -> float:
    """Return how long CALLS requests take, each sent as a server would."""
    headers = {**AUTHORIZED, "User-Agent": "benchmark", "Accept": "*/*"}
    environ = create_environ(path, headers=headers)
    start = time.perf_counter()
    for _ in range(CALLS):
        answer: list[str] = []
        result = app(environ.copy(), lambda status, *_, to=answer: to.append(status))
        b"".join(result)
        result.close()
        assert answer == ["200 OK"], (path, answer)
    return time.perf_counter() - start


def in_process(folder: str) -> None:
    """Measure every operation on a small store and on both ends of a large one."""
    bare = bare_app()
    small, large = (filled_app(folder, count) for count in (SMALL, LARGE))
    sizes = f"{SMALL:,} pets", f"{LARGE:,} pets", "its last"
    show("as a multiple of the bare route", *sizes)
    for name, path, count in OPERATIONS:
        first, last = path.format(1), path.format(LARGE - 3 * count)
        measured = [(bare, f"/{count}"), (small, first), (large, first), (large, last)]
        times = [[seconds(*one) for one in measured] for _ in range(ROUNDS)]
        ratios = [[one / base for one in others] for base, *others in times]
        show(name, *(f"{median(column):.2f} x" for column in zip(*ratios, strict=True)))


# Served.

BODY = json.dumps({"name": "Rex", "categoryId": 1, "status": "sold"})
CREATE = f"""POST /v1/pets HTTP/1.1
Host: localhost
Authorization: Bearer {KEY}
Content-Type: application/json
Content-Length: {len(BODY)}

{BODY}""".replace("\n", "\r\n").encode()


def creates_per_second(port: int, connections: int) -> float:
    """Create pets over and over on some connections, and count the answers."""
    stop = threading.Event()

    def work() -> int:
        count = 0
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            while not stop.is_set():
                connection.sendall(CREATE)
                answer = b""
                while not answer.endswith(b"}\n"):
                    answer += (received := connection.recv(65_536))
                    assert received, f"it closed the connection after {answer!r}"
                assert answer.startswith(b"HTTP/1.1 201 "), answer
                count += 1
        return count

    start = time.perf_counter()
    with ThreadPoolExecutor(connections) as threads:
        counts = [threads.submit(work) for _ in range(connections)]
        time.sleep(SERVED_SECONDS)
        stop.set()
        answers = sum(count.result() for count in counts)
    return answers / (time.perf_counter() - start)


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

    def take_one(queue: storage.WriteQueue, _: int = 0) -> dict[Future[Any], Any]:
        with queue._lock:
            write = next(iter(queue._waiting))
            statement = queue._waiting.pop(write)
        return {write: statement} if write.set_running_or_notify_cancel() else {}

    storage.Database.transaction = slow  # type: ignore[method-assign]
    if not shares:
        storage.WriteQueue._take = take_one  # type: ignore[method-assign]
    return create_app()


def creates(folder: str) -> None:
    """Measure creates on disks whose sync takes longer, beside one commit a pet."""
    show("creates, connections", "shared commits", "one a pet", "ratio")
    for delay in (0, 1, 4):
        shared, single = (
            [*COMMAND[:-1], f"tests.benchmark:served({delay}, shares={shares})"]
            for shares in (True, False)
        )
        with (
            serving(Path(folder, f"shared{delay}.db"), shared) as ours,
            serving(Path(folder, f"single{delay}.db"), single) as other,
        ):
            for connections in (8, 16):
                pairs = [
                    [creates_per_second(one.port, connections) for one in (ours, other)]
                    for _ in range(SERVED_ROUNDS)
                ]
                rates = [f"{median(rate):,.0f}/s" for rate in zip(*pairs, strict=True)]
                ratio = median(our / its for our, its in pairs)
                show(f"sync {delay} ms longer, {connections}", *rates, f"{ratio:.2f}")


if __name__ == "__main__":
    # Files in memory have no disk to wait for.
    with TemporaryDirectory(dir="/dev/shm") as folder:
        in_process(folder)
    with TemporaryDirectory() as folder:
        creates(folder)
