"""What the service costs beside a bare Flask route: `python -m tests.benchmark`.

Every figure is a ratio to a bare route that returns a ready-made body of the same size,
measured in turn with it; the medians of many rounds are shown.
"""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from flask import Flask, Response
from werkzeug.test import create_environ

import storage
from app import create_app
from tests.service import AUTHORIZED, COMMAND, KEY, Service, serving

SMALL, LARGE = 1_000, 1_000_000
ROUNDS = 40
CALLS = 100
SERVED_ROUNDS = 5
SERVED_SECONDS = 1.0
CONNECTIONS = (8, 32)
CREATE_CONNECTIONS = (1, 8, 16)
# Milliseconds by which a sync of the disk is made to take longer.
DELAYS = (0, 1, 4)

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
Row = list[str]


def progress(text: str) -> None:
    """Show what is going on, out of the way of the tables."""
    print(f"... {text}", file=sys.stderr, flush=True)


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print rows of text as aligned columns, the first of them as the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}\n")
    for first, *others in rows:
        cells = [
            text.rjust(width) for text, width in zip(others, widths[1:], strict=True)
        ]
        print("  ".join([first.ljust(widths[0]), *cells]))


def bare_app() -> Flask:
    """Return an application whose routes do nothing but return a ready-made body."""
    app = Flask("bare", static_folder=None)

    def add(path: str, body: bytes) -> None:
        app.add_url_rule(
            path,
            path,
            lambda **_: Response(body, mimetype="application/json"),
            methods=["GET", "POST"],
        )

    pets = [
        {
            "id": n,
            "name": f"Pet number {n}",
            "categoryId": n % 10,
            "status": "available",
        }
        for n in range(100)
    ]
    add("/healthz", b"{}")
    add("/pet/<pet_id>", json.dumps(pets[0], separators=(",", ":")).encode())
    add("/pets20", json.dumps(pets[:20], separators=(",", ":")).encode())
    add("/pets100", json.dumps(pets, separators=(",", ":")).encode())
    return app


def filled_store(folder: Path, count: int) -> Path:
    """Make a database file with `count` pets."""
    progress(f"filling a store with {count:,} pets")
    path = folder / f"{count}.db"
    create_app({"API_KEYS": KEY, "DATABASE": path})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(FILL, [count])
    return path


# In process: requests called through WSGI.


class Operation(NamedTuple):
    """What to request of a store of so many pets: at its beginning, at its end."""

    name: str
    bare_path: str
    places: Callable[[int], list[list[Environ]]]
    body: bytes = b""


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


def pages(query: str, size: int) -> Callable[[int], list[list[Environ]]]:
    """Return what requests the first full page, and the last."""
    return lambda count: [
        [request(f"/v1/pets?{query}&after={after}")] for after in (0, count - 3 * size)
    ]


def every_page(count: int) -> list[list[Environ]]:
    """Return requests of 500 pages; the queries are more than the service remembers."""
    step = (count - 20) // 500
    return [[request(f"/v1/pets?limit=20&after={n * step}") for n in range(500)]]


OPERATIONS = [
    Operation("list 20", "/pets20", pages("limit=20", 20)),
    Operation("list 20 of a status", "/pets20", pages("limit=20&status=sold", 20)),
    Operation("list 20, another page each time", "/pets20", every_page),
    Operation("list 100", "/pets100", pages("limit=100", 100)),
    Operation(
        "get", "/pet/1", lambda count: [[request(f"/v1/pets/{n}")] for n in (1, count)]
    ),
    Operation(
        "create, without the disk's sync",
        "/pet/1",
        lambda _: [[request("/v1/pets", NEW_PET)]],
        NEW_PET,
    ),
]


def call(app: Flask, environ: Environ) -> None:
    """Send one request through WSGI, as a server would."""
    answer: list[str] = []
    environ = {**environ, "wsgi.input": BytesIO(environ["body"])}
    result = app(environ, lambda status, *_: answer.append(status))
    b"".join(result)
    result.close()
    assert answer[0][0] == "2", (environ["PATH_INFO"], answer)


def seconds(app: Flask, environs: Iterator[Environ]) -> float:
    """Return how long CALLS requests take."""
    start = time.perf_counter()
    for environ in islice(environs, CALLS):
        call(app, environ)
    return time.perf_counter() - start


def ratios(apps: dict[int, Flask], bare: Flask, operation: Operation) -> Row:
    """Measure an operation on each store, in turn with the bare route."""
    progress(f"{operation.name}, in process")
    floor = cycle([request(operation.bare_path, operation.body)])
    small, large = (
        [(app, cycle(environs)) for environs in operation.places(count)]
        for count, app in apps.items()
    )
    times = [
        [seconds(*place) for place in ((bare, floor), *small, *large)]
        for _ in range(ROUNDS)
    ]
    ends = len(small)
    multiples = [
        median(time[n] / time[0] for time in times) for n in range(1, 1 + 2 * ends)
    ]
    growth = max(
        median(time[1 + ends + n] / time[1 + n] for time in times) for n in range(ends)
    )
    texts = [f"{max(multiples[:ends]):.2f} x", f"{multiples[ends]:.2f} x"]
    last = f"{multiples[-1]:.2f} x" if ends > 1 else ""
    return [operation.name, *texts, last, f"{growth:.2f} x"]


def in_process(folder: Path) -> list[Row]:
    """Measure every operation on a small and a large store."""
    apps = {
        count: create_app({"API_KEYS": KEY, "DATABASE": filled_store(folder, count)})
        for count in (SMALL, LARGE)
    }
    bare = bare_app()
    head = ["", f"{SMALL:,} pets", f"{LARGE:,} pets", "at its end", "growth"]
    return [head, *(ratios(apps, bare, operation) for operation in OPERATIONS)]


# Served: requests over loopback to gunicorn, as the Procfile starts it.


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


def compared(targets: list[tuple[int, bytes]], connections: int) -> Row:
    """Send requests to two ports in turn; return the two rates and their ratio."""
    pairs = [
        [requests_per_second(*target, connections) for target in targets]
        for _ in range(SERVED_ROUNDS)
    ]
    ours, others = (median(rates) for rates in zip(*pairs, strict=True))
    ratio = median(rate / other for rate, other in pairs)
    return [f"{ours:,.0f}/s", f"{others:,.0f}/s", f"{ratio:.2f}"]


def http(path: str, body: bytes = b"") -> bytes:
    """Return a request as its bytes."""
    method, length = (
        ("POST", f"Content-Length: {len(body)}\r\n") if body else ("GET", "")
    )
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n{length}\r\n"
    ).encode() + body


def megabytes(service: Service) -> float:
    """Return the memory of a service's two processes; what they share counts once."""
    total = 0
    for process in (service.process.pid, service.worker()):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        total += int(rollup.partition("\nPss:")[2].split()[0])
    return total / 1024


def rates(ours: Service, bare: Service) -> Iterator[Row]:
    """Measure each operation on some connections, in turn with a bare route."""
    for connections in CONNECTIONS:
        for name, path, bare_path, body in [
            ("list 20", "/v1/pets", "/pets20", b""),
            ("list 100", "/v1/pets?limit=100", "/pets100", b""),
            ("get", f"/v1/pets/{LARGE // 2}", "/pet/1", b""),
            ("create", "/v1/pets", "/pet/1", NEW_PET),
        ]:
            progress(f"{name}, served, {connections} connections")
            targets = [
                (ours.port, http(path, body)),
                (bare.port, http(bare_path, body)),
            ]
            yield [name, str(connections), *compared(targets, connections)]


def served(folder: Path) -> list[Row]:
    """Measure the service as the Procfile starts it, and bare routes served alike."""
    store = filled_store(folder, LARGE)
    bare_command = [*COMMAND[:-1], "tests.benchmark:bare_app()"]
    with serving(store) as ours, serving(folder / "bare.db", bare_command) as bare:
        rows = [["", "connections", "requests", "bare", "ratio"], *rates(ours, bare)]
        memory = [f"{megabytes(service):.0f} MB" for service in (ours, bare)]
        return [*rows, ["memory", "", *memory, ""]]


# Creates, served, beside the same service that commits each pet by itself.


def one_commit_a_pet() -> Flask:
    """Return the service, changed to take one pet at a time from those that wait."""

    def take_one(queue: storage.WriteQueue) -> list[storage.WaitingPet]:
        with queue._mutex:
            return [queue._waiting.pop(0)]

    storage.WriteQueue._take_all = take_one  # type: ignore[method-assign]
    return create_app()


def slowed(command: list[str], milliseconds: int) -> list[str]:
    """Return a command that runs another on a disk whose sync takes longer."""
    if not milliseconds:
        return command
    delay = f"inject=fdatasync:delay_enter={milliseconds * 1000}"
    options = ["-f", "--seccomp-bpf", "-qq", "-o", os.devnull]
    return ["strace", *options, "-e", "trace=fdatasync", "-e", delay, *command]


def can_slow() -> bool:
    """Return whether strace is there and may trace."""
    if not shutil.which("strace"):
        return False
    run = subprocess.run(slowed(["true"], 1), capture_output=True, check=False)
    return run.returncode == 0


def creates(folder: Path) -> Iterator[Row]:
    """Measure creates on each disk, in turn with one commit a pet."""
    yield ["sync", "connections", "shared commits", "one commit a pet", "ratio"]
    single = [*COMMAND[:-1], "tests.benchmark:one_commit_a_pet()"]
    for delay in DELAYS:
        disk = f"{delay} ms longer" if delay else "as it is"
        if delay and not can_slow():
            yield [disk, "", "strace is not", "to be had here", ""]
            continue
        with (
            serving(folder / f"shared{delay}.db", slowed(COMMAND, delay)) as ours,
            serving(folder / f"single{delay}.db", slowed(single, delay)) as other,
        ):
            for connections in CREATE_CONNECTIONS:
                progress(f"create, {connections} connections, sync {disk}")
                targets = [
                    (service.port, http("/v1/pets", NEW_PET))
                    for service in (ours, other)
                ]
                yield [disk, str(connections), *compared(targets, connections)]


def main() -> None:
    """Measure, and print the tables."""
    # Files in memory have no disk to wait for.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with TemporaryDirectory(dir=memory) as folder:
        in_process_rows = in_process(Path(folder))
    with TemporaryDirectory() as folder:
        served_rows = served(Path(folder))
        create_rows = list(creates(Path(folder)))
    print_table("In process, as a multiple of a bare Flask route", in_process_rows)
    print_table("Through gunicorn, beside a bare Flask route", served_rows)
    print_table("Creates, beside the same service with one commit a pet", create_rows)


if __name__ == "__main__":
    main()
