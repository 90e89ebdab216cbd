"""The service in a process of its own: the Procfile's command on a free port."""

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
COMMAND = shlex.split(Path(ROOT, "Procfile").read_text().removeprefix("web: "))
KEY = "served-key"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
# gunicorn and Flask's server listen on the loopback interface, on any free port.
LOOPBACK = {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0", "FLASK_RUN_PORT": "0"}
# Seconds to wait for a response or for a process.
TIMEOUT = 10.0


class Response(NamedTuple):
    """A response: its status, its headers and its parsed body."""

    status: int
    headers: Mapping[str, str]
    body: Any


def environment(**settings: str) -> dict[str, str]:
    """Return an environment with PATH and these settings."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": scripts, "PYTHONDONTWRITEBYTECODE": "1", **settings}


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


def read_all(connection: socket.socket) -> bytes:
    """Return everything that is received until the service closes the connection."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT)


def send(port: int, data: bytes) -> bytes:
    """Send bytes on a new connection, and return everything that is received."""
    with connect(port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


class Client(AbstractContextManager["Client"]):
    """A connection to the service that stays open during a `with` block."""

    def __init__(self, port: int, timeout: float = TIMEOUT) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def request(self, method: str, path: str, body: object = None) -> Response:
        """Send a request with the key, and `body` as JSON unless it is None."""
        headers = {**AUTHORIZED, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers)
        response = self.connection.getresponse()
        content = response.read()
        return Response(
            response.status, response.headers, json.loads(content or "null")
        )


class Service:
    """The running service. It has its own process group, and a file for its log."""

    def __init__(self, database: Path, command: list[str] = COMMAND) -> None:
        self.database = database
        self.log_file = database.with_suffix(".log")
        settings = {"PETSTORE_API_KEYS": KEY, "PETSTORE_DATABASE": str(database)}
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(**settings, **LOOPBACK),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.port = 0

    def wait_until_ready(self) -> None:
        """Read the port from the log, and wait for the first response."""
        self.port = int(self.wait_for_log(r"http://127\.0\.0\.1:(\d+)")[0])
        assert send(self.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def log(self) -> str:
        """Return what the service has logged."""
        return self.log_file.read_text()

    def wait_for_log(self, pattern: str) -> list[str]:
        """Wait until the log matches a pattern, and return all matches."""
        deadline = time.monotonic() + TIMEOUT
        while not (found := re.findall(pattern, self.log())):
            assert time.monotonic() < deadline, f"{pattern} is not in:\n{self.log()}"
            assert self.process.poll() is None, f"it ended:\n{self.log()}"
            time.sleep(0.01)
        return found

    def worker(self) -> int:
        """Return the process id of the newest worker."""
        return int(self.wait_for_log(r"Booting worker with pid: (\d+)")[-1])

    def client(self, timeout: float = TIMEOUT) -> Client:
        """Return a new connection."""
        return Client(self.port, timeout)

    def request(
        self, method: str, path: str, body: object = None, timeout: float = TIMEOUT
    ) -> Response:
        """Send one request on a new connection."""
        with self.client(timeout) as client:
            return client.request(method, path, body)

    def kill(self) -> None:
        """Kill every process of the service with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Stop the service with SIGTERM, and return its exit status."""
        self.process.terminate()
        return self.process.wait(TIMEOUT)


@contextmanager
def serving(database: Path, command: list[str] = COMMAND) -> Iterator[Service]:
    """Run the service during a `with` block."""
    service = Service(database, command)
    try:
        service.wait_until_ready()
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
