"""What the service costs beside a bare Flask route: `python -m tests.benchmark`.

Every figure is a ratio of two that are measured in turn; medians of many rounds are
shown. Requests are called through WSGI in one process, beside a bare route that returns
a ready-made body of the same size.
"""

import json
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from flask import Flask, Response
from werkzeug.test import create_environ

from app import create_app
from tests.process import AUTHORIZED, KEY

SMALL, LARGE = 1_000, 1_000_000
ROUNDS, CALLS = 40, 100

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


if __name__ == "__main__":
    # Files in memory have no disk to wait for.
    with TemporaryDirectory(dir="/dev/shm") as folder:
        in_process(folder)
