"""The service in a process of its own, as the README and the Procfile start it."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import closing, contextmanager
from email.message import Message
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers import KEY, NEW_PET

ROOT = Path(__file__).parent.parent
# All listen on the loopback interface, on any free port.
PROCFILE = shlex.split((ROOT / "Procfile").read_text().removeprefix("web: "))
PROCFILE += ["--bind", "127.0.0.1:0"]
# With a log of the requests, in which no key may be.
GUNICORN = [*PROCFILE, "--access-logfile", "-"]
PROXIED = [*GUNICORN, "tests.proxied:create_app()"]
PROXIED.remove("app:create_app()")
FLASK = ["flask", "run", "--port", "0"]
# Seconds to wait for a response or for a process.
TIMEOUT = 15.0


class Response(NamedTuple):
    """A response: its status, its headers and its parsed body."""

    status: int
    headers: Message
    body: Any


# What Python or gunicorn may need on some machines.
INHERITED = ("LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")


def environment(**settings: str) -> dict[str, str]:
    """Return an environment with PATH and these settings, and what is INHERITED."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", **inherited, **settings}


def run(
    *command: str, folder: Path = ROOT, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder with these settings, and return its output."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


class Service:
    """A running service. Its log is in a file next to the database."""

    def __init__(
        self, database: Path, command: list[str], settings: Mapping[str, str]
    ) -> None:
        self.database = database
        self.log_file = database.with_suffix(".log")
        keys = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": str(database)}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(**keys, **settings),
                stdout=log,
                stderr=subprocess.STDOUT,
                # A process group of its own, so that `kill` reaches the workers.
                start_new_session=True,
            )

    def wait_for_log(self, pattern: str) -> str:
        """Wait until the log matches a pattern, and return the last match."""
        wait_until(
            lambda: self.process.poll() is not None or re.search(pattern, self.log())
        )
        found = re.findall(pattern, self.log())
        assert found, f"{pattern} is not in:\n{self.log()}"
        return str(found[-1])

    def log(self) -> str:
        """Return what the service has logged."""
        return self.log_file.read_text()

    def address(self) -> str:
        """Return the host and the port, once the service listens."""
        return self.wait_for_log(r"http://(127\.0\.0\.1:\d+)")

    def connect(self) -> HTTPConnection:
        """Return a new connection, which stays open until it is closed."""
        return HTTPConnection(self.address(), timeout=TIMEOUT)

    def request(self, method: str, path: str, body: object = None) -> Response:
        """Send one request with the key, and `body` as JSON."""
        connection = self.connect()
        try:
            return request(connection, method, path, body)
        finally:
            connection.close()

    def send(self, data: bytes) -> bytes:
        """Send bytes on a new connection, and return everything that is received."""
        connection = self.connect()
        connection.connect()
        with connection.sock as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: sock.recv(65_536), b""))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """Kill every process of the service with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def request(
    connection: HTTPConnection, method: str, path: str, body: object = None
) -> Response:
    """Send a request with the key on a connection, and `body` as JSON."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    content = response.read()
    return Response(response.status, response.headers, json.loads(content or "null"))


def send_body(
    connection: HTTPConnection, method: str, path: str, key: str, body: object
) -> int:
    """Send bytes, or an iterator of bytes in chunks, and return the status."""
    headers = {"Authorization": f"Bearer {key}"}
    connection.request(method, path, body, headers)  # type: ignore[arg-type]
    response = connection.getresponse()
    response.read()
    return response.status


@contextmanager
def serving(
    database: Path, command: list[str] = GUNICORN, **settings: str
) -> Iterator[Service]:
    """Run the service during a `with` block. Check that its log has no key."""
    service = Service(database, command, settings)
    try:
        service.address()
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
        print(service.log())  # pytest shows this if the test fails.
    assert KEY not in service.log()


def add_pets(service: Service, count: int, prefix: str = "") -> None:
    """Add pets called Rex."""
    for _ in range(count):
        assert service.request("POST", f"{prefix}/v1/pets", NEW_PET).status == 201


def add_pets_until_refused(
    service: Service, writer: int, names: list[str]
) -> int | None:
    """Add pets on one connection, and note the names of those that got a 201.

    Return another status, or None once the service is killed.
    """
    with closing(service.connect()) as connection:
        for count in range(100_000):
            name = f"{writer} {count}"
            pet = {**NEW_PET, "name": name}
            try:
                response = request(connection, "POST", "/v1/pets", pet)
            except (OSError, HTTPException):
                return None
            if response.status != 201:
                return response.status
            names.append(name)
    raise AssertionError("no request was refused")


def start_writers(
    threads: Executor, service: Service, names: list[str], minimum: int
) -> list[Future[int | None]]:
    """Add pets in eight threads, and return them once so many names are noted."""
    writers = [
        threads.submit(add_pets_until_refused, service, number, names)
        for number in range(8)
    ]
    while len(names) < minimum:
        assert not wait(writers, 0.01, FIRST_COMPLETED).done
    return writers
