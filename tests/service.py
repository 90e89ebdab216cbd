"""The service as it is served: the Procfile's command, on a free loopback port."""

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
# Where gunicorn and Flask's own server listen: on loopback, at any port that is free.
LOOPBACK = {"GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0", "FLASK_RUN_PORT": "0"}
PATIENCE = 10.0


class Answer(NamedTuple):
    """A response: its status, its headers and its body, parsed."""

    status: int
    headers: Mapping[str, str]
    body: Any


def environment(**settings: str) -> dict[str, str]:
    """Return an environment with nothing of the caller's but what programs need."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": scripts, "PYTHONDONTWRITEBYTECODE": "1", **settings}


def run(
    *command: str, folder: Path = ROOT, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder with these settings, and return what it said."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**settings),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def read_all(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE)


def send(port: int, data: bytes) -> bytes:
    """Send bytes as they are and nothing after, and return all that comes back."""
    with connect(port) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


class Client(AbstractContextManager["Client"]):
    """One connection to the service, kept open for the length of a `with` block."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def request(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request with the key, and `body` as JSON unless it is None."""
        headers = {**AUTHORIZED, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers)
        response = self.connection.getresponse()
        content = response.read()
        return Answer(response.status, response.headers, json.loads(content or "null"))


class Service:
    """The running service: a process group of its own, and its log in a file."""

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
        self.port = int(self.wait_for_log(r"http://127\.0\.0\.1:(\d+)")[0])
        # Answered once a worker is up.
        assert self.request("GET", "/healthz").status == 200

    def log(self) -> str:
        """Return what this process, and no earlier one, has logged."""
        return self.log_file.read_text()

    def wait_for_log(self, pattern: str) -> list[str]:
        """Return the matches of a pattern in the log, once there is one."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.findall(pattern, self.log())):
            assert time.monotonic() < deadline, f"no {pattern} in:\n{self.log()}"
            assert self.process.poll() is None, f"it ended:\n{self.log()}"
            time.sleep(0.01)
        return found

    def worker(self) -> int:
        """Return the process id of the worker that booted last."""
        return int(self.wait_for_log(r"Booting worker with pid: (\d+)")[-1])

    def client(self, timeout: float = PATIENCE) -> Client:
        """Return a connection of one's own."""
        return Client(self.port, timeout)

    def request(
        self, method: str, path: str, body: object = None, timeout: float = PATIENCE
    ) -> Answer:
        """Send one request on a new connection."""
        with self.client(timeout) as client:
            return client.request(method, path, body)

    def kill(self) -> None:
        """Kill every process of the service, as a loss of power would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask the service to stop, and return its exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextmanager
def serving(database: Path, command: list[str] = COMMAND) -> Iterator[Service]:
    """Run the service for the length of a `with` block."""
    service = Service(database, command)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
