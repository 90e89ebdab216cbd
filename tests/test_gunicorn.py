"""What gunicorn does by itself: refusals, the end of connections, the log, a reload."""

import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.checks import PET
from tests.service import (
    COMMAND,
    KEY,
    PATIENCE,
    ROOT,
    Service,
    environment,
    read_all,
    send,
    serving,
)

HOST = b"Host: x\r\n"
AUTHORIZATION = f"Authorization: Bearer {KEY}\r\n".encode()
CLOSE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
IN_CHUNKS = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests that only send requests."""
    with serving(tmp_path_factory.mktemp("served") / "pets.db") as service:
        worker = service.worker()
        yield service
        log = service.log()
        assert "Traceback" not in log
        assert "WORKER TIMEOUT" not in log
        assert service.worker() == worker


def connect(port: int, timeout: float = PATIENCE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout)


def assert_one_error(answer: bytes, status: int, code: str) -> None:
    """Check that there is one answer, whole, and that it is the Error body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert head.startswith(b"HTTP/1.1 %d " % status)
    lines = head.split(b"\r\n")
    for line in (
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
    ):
        assert lines.count(line) == 1
    assert len({b"Connection: close", b"Connection: keep-alive"} & set(lines)) == 1
    error = json.loads(body)
    assert set(error) == {"code", "message", "status"}
    assert (error["code"], error["status"]) == (code, status)
    assert error["message"].endswith(".")
    # It says what to send, and not only what HTTP calls the status.
    assert error["message"] != f"{HTTPStatus(status).phrase}."


# Malformed requests.

GET = b"GET / HTTP/1.1\r\n" + HOST
LIST = b"GET /v1/pets HTTP/1.1\r\n" + HOST + AUTHORIZATION
POST = b"POST /v1/pets HTTP/1.1\r\n" + HOST + AUTHORIZATION

BAD_REQUESTS = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "version 0.9": b"GET /\r\n\r\n",
    "version 2": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "version x": b"GET / HTTP/x\r\n" + HOST + b"\r\n",
    "method in small letters": b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
    "method with @": b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n",
    "long method": b"A" * 50 + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in the path": b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw UTF-8 in the path": b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    "LF alone": b"GET / HTTP/1.1\nHost: x\n\n",
    "folded header": GET + b"A: b\r\n c\r\n\r\n",
    "header without a name": GET + b": b\r\n\r\n",
    "header without a colon": GET + b"abc\r\n\r\n",
    "space before the colon": GET + b"A : b\r\n\r\n",
    "NUL in a header": GET + b"A: \0\r\n\r\n",
    "HEAD with a nameless header": b"HEAD / HTTP/1.1\r\n" + HOST + b": b\r\n\r\n",
    "escape in an expectation": GET + b"Expect: \x1b[31m\r\n\r\n",
    "length that is no number": POST + b"Content-Length: x\r\n\r\n",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n1",
    "length and chunks": POST + b"Content-Length: 1\r\n" + IN_CHUNKS,
    "chunks inside of gzip": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "no host": LIST.replace(HOST, b"") + b"\r\n",
    "two hosts": LIST + HOST + b"\r\n",
    "empty host": LIST.replace(b": x", b":") + b"\r\n",
    "host with a space": LIST.replace(b": x", b": a b") + b"\r\n",
    "host that is no UTF-8": LIST.replace(b": x", b": \xe9") + b"\r\n",
}


@pytest.mark.parametrize("request_bytes", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_malformed_request_gets_one_error(
    served: Service, request_bytes: bytes
) -> None:
    assert_one_error(send(served.port, request_bytes), 400, "bad_request")


LONG_LINE = b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"
LONG_HEADER = GET + b"A: " + b"b" * 20_000 + b"\r\n\r\n"
MANY_HEADERS = GET + b"A: b\r\n" * 300 + b"\r\n"
OTHER_REFUSALS = {
    "broken chunk": (POST + IN_CHUNKS + b"zz\r\n", 400, "malformed_body"),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
    "CONNECT": (b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
    "long line": (LONG_LINE, 414, "uri_too_long"),
    "expectation": (POST + b"Expect: x\r\n\r\n", 417, "expectation_failed"),
    "long header": (LONG_HEADER, 431, "request_header_fields_too_large"),
    "many headers": (MANY_HEADERS, 431, "request_header_fields_too_large"),
    "coding": (POST + b"Transfer-Encoding: x\r\n\r\n", 501, "not_implemented"),
}


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"), OTHER_REFUSALS.values(), ids=OTHER_REFUSALS
)
def test_what_else_is_refused_gets_one_error_too(
    served: Service, request_bytes: bytes, status: int, code: str
) -> None:
    assert_one_error(send(served.port, request_bytes), status, code)


ODD_REQUESTS = {
    "HTTP/1.0 without a host": b"GET /healthz HTTP/1.0\r\n\r\n",
    "IPv6": b"GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    "whole URL": b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "empty line before": b"\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "upgrade": b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", ODD_REQUESTS.values(), ids=ODD_REQUESTS)
def test_what_looks_odd_but_is_valid_is_answered(
    served: Service, request_bytes: bytes
) -> None:
    answer = send(served.port, request_bytes)
    assert answer.partition(b" ")[2].startswith(b"200 ")
    assert answer.endswith(b'\r\n\r\n{"status": "ok"}')


@pytest.mark.parametrize(
    ("start", "status", "code"),
    [
        (b"POST /nothing HTTP/1.1\r\n" + HOST, 404, "not_found"),
        (b"POST /v1/pets HTTP/1.1\r\n" + HOST, 401, "missing_api_key"),
        (b"POST /healthz HTTP/1.1\r\n" + HOST, 405, "method_not_allowed"),
    ],
)
def test_a_malformed_body_that_nobody_reads_gets_no_answer_of_its_own(
    served: Service, start: bytes, status: int, code: str
) -> None:
    with connect(served.port) as connection:
        connection.sendall(start + IN_CHUNKS + b"zz\r\n")
        # It ends although this side stays open.
        assert_one_error(read_all(connection), status, code)


# What could stop the others, or cut off an answer.


@pytest.mark.parametrize("number", ["1e9999999", "-1e9999999", "1e-9999999"])
def test_a_number_with_a_huge_exponent_is_refused_at_once(
    served: Service, number: str
) -> None:
    body = b'{"name": "Rex", "categoryId": %b}' % number.encode()
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    with connect(served.port, timeout=2) as connection:
        connection.sendall(POST + length + b"Connection: close\r\n\r\n" + body)
        assert_one_error(read_all(connection), 400, "invalid_body")


# 500 are as many connections as the service takes.
@pytest.mark.parametrize("count", [40, 500])
def test_clients_that_leave_closed_connections_open_hold_up_nobody(
    served: Service, count: int
) -> None:
    with ExitStack() as stack:
        left_open = [stack.enter_context(connect(served.port)) for _ in range(count)]
        for connection in left_open:
            connection.sendall(CLOSE)

        def list_pets(_: int) -> int:
            return served.request("GET", "/v1/pets", timeout=1).status

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(list_pets, range(8))) == [200] * 8
        for connection in left_open:
            assert read_all(connection).endswith(b'\r\n\r\n{"status": "ok"}')


def send_too_much(port: int, header: bytes) -> bytes:
    """Send more than waits in the buffers of the system, and return the answer."""
    size = 30_000_000
    with connect(port) as connection:
        connection.sendall(POST + header + b"Content-Type: application/json\r\n")
        connection.sendall(b"Content-Length: %d\r\n\r\n" % size)
        connection.sendall(b"x" * size)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_who_sends_too_much_gets_the_whole_answer(
    served: Service, header: bytes
) -> None:
    answer = send_too_much(served.port, header)
    assert_one_error(answer, 413, "body_too_large")


def test_who_sends_on_after_the_end_gets_the_whole_answer(served: Service) -> None:
    with connect(served.port) as connection:
        connection.sendall(CLOSE)
        begin = connection.recv(1)
        connection.sendall(b"x" * 30_000_000)
        answer = begin + read_all(connection)
    assert answer.endswith(b'\r\n\r\n{"status": "ok"}')


def leave(connection: socket.socket) -> None:
    read_all(connection)


def reset(connection: socket.socket) -> None:
    no_lingering = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_lingering)


def leave_and_reset(connection: socket.socket) -> None:
    leave(connection)
    reset(connection)


@pytest.mark.parametrize("end", [leave, reset, leave_and_reset])
def test_a_connection_is_let_go_as_soon_as_its_client_is_gone(
    served: Service, end: Callable[[socket.socket], None]
) -> None:
    def sockets() -> int:
        files = Path(f"/proc/{served.worker()}/fd").iterdir()
        return sum(file.is_socket() for file in files)

    before = sockets()
    for _ in range(20):
        with connect(served.port) as connection:
            connection.sendall(CLOSE)
            end(connection)
    # One that nobody watched would be held for two seconds.
    deadline = time.monotonic() + 1
    while sockets() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert served.request("GET", "/healthz").status == 200


def test_closed_connections_take_nothing_from_others(database: Path) -> None:
    command = [*COMMAND, "--worker-connections", "10"]
    with serving(database, command) as service:
        for count in (20, *[1] * 20):
            with ExitStack() as stack:
                some = [
                    stack.enter_context(connect(service.port)) for _ in range(count)
                ]
                for connection in some:
                    connection.sendall(CLOSE)
                for connection in some:
                    leave(connection)
        assert_one_error(send_too_much(service.port, b""), 413, "body_too_large")


def broken_bodies() -> Iterator[bytes]:
    """Return requests whose chunks promise more than they bring."""
    for size in (b"ffffffff", b"7fffffff", b"10000", b"1"):
        for brought in range(1_000, 26_000, 1_000):
            yield POST + IN_CHUNKS + size + b"\r\n" + b"x" * brought


def assert_broken_bodies_are_refused(port: int) -> None:
    for request_bytes in broken_bodies():
        status = send(port, request_bytes).split()[1]
        assert status in (b"400", b"413")


def test_bodies_that_break_their_promise_leave_gunicorn_alive(served: Service) -> None:
    assert_broken_bodies_are_refused(served.port)
    assert served.request("POST", "/v1/pets", PET).status == 201


def test_bodies_that_break_their_promise_leave_flask_run_alive(database: Path) -> None:
    with subprocess.Popen(
        ["flask", "run", "--port", "0"],
        cwd=ROOT,
        env=environment(PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=str(database)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stderr:
                if address := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    break
            assert_broken_bodies_are_refused(int(address[1]))
            assert process.poll() is None
        finally:
            process.kill()


# The log.

ACCESS = re.compile(
    r'127\.0\.0\.1 \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] ".+" '
    r"\d{3} \d+ \d+\.\d{6}"
)
OF_GUNICORN = re.compile(r"\[[-+: \d]+\] \[\d+\] \[(INFO|WARNING)\] .*")


def test_a_request_leaves_address_time_request_status_size_and_duration(
    served: Service,
) -> None:
    answer = send(served.port, b"GET /x?y=%C3%A9 HTTP/1.1\r\n" + HOST + b"\r\n")
    size = len(answer.partition(b"\r\n\r\n")[2])
    words = re.escape(f'"GET /x?y=%C3%A9 HTTP/1.1" 404 {size} ')
    [line] = served.wait_for_log(f"(?m)^.*{words}.*$")
    assert ACCESS.fullmatch(line)


USER = b64encode(b"x\nFORGED\r\n\x1b[31mFORGED \x9b31m:password")

HOSTILE_REQUESTS = {
    "user name": GET + b"Authorization: Basic " + USER + b"\r\n\r\n",
    "path": b"GET /%0aFORGED%0d%0a%1b[31m%9b HTTP/1.1\r\n" + HOST + b"\r\n",
    "raw path": b"GET /\x1b[31m\x9b31m HTTP/1.1\r\n" + HOST + b"\r\n",
    "quote in the path": b'GET /"%0aFORGED HTTP/1.1\r\n' + HOST + b"\r\n",
    "query": b"GET /?%0aFORGED%1b[31m HTTP/1.1\r\n" + HOST + b"\r\n",
    "id": LIST.replace(b"/pets", b"/pets/1%0aFORGED") + b"\r\n",
    "referer": GET + b"Referer: x\x9b31m\tFORGED\r\n\r\n",
    "agent": GET + b"User-Agent: x\x85FORGED\x1b[31m\r\n\r\n",
    "agent of any byte": GET + b"User-Agent: \x85\x9b\xff\r\n\r\n",
    "host": b"GET / HTTP/1.1\r\nHost: \x9b31m\r\n\r\n",
    "method": b"FORGED\x1b[31m / HTTP/1.1\r\n" + HOST + b"\r\n",
    "method of any byte": b"FORGED\x9b\x85 / HTTP/1.1\r\n" + HOST + b"\r\n",
    "protocol": b"GET / HTTP/1.1\x1b[31m\r\n" + HOST + b"\r\n",
    "CR": b"GET /\rFORGED HTTP/1.1\r\n" + HOST + b"\r\n",
    "LF": b"GET /\nFORGED HTTP/1.1\r\n" + HOST + b"\r\n",
    "name of a header": GET + b"A\x1b[31m\x9b: b\r\n\r\n",
    "expectation": GET + b"Expect: x\x9b31m\x85FORGED\r\n\r\n",
    "coding": POST + b"Transfer-Encoding: \x9b31m\x85FORGED\r\n\r\n",
    "length": POST + b"Content-Length: \x9b31m\x85FORGED\r\n\r\n",
}


@pytest.mark.parametrize(
    "request_bytes", HOSTILE_REQUESTS.values(), ids=HOSTILE_REQUESTS
)
def test_no_client_writes_a_line_or_a_control_character_into_the_log(
    served: Service, request_bytes: bytes
) -> None:
    before = served.log()
    send(served.port, request_bytes)
    served.wait_for_log(r"\n", count=before.count("\n") + 1)
    *lines, end = served.log().split("\n")
    assert end == ""
    for line in lines:
        assert ACCESS.fullmatch(line) or OF_GUNICORN.fullmatch(line)
        assert not any(unicodedata.category(letter) == "Cc" for letter in line)


# The code that is served.


def test_a_long_request_line_makes_no_long_line_in_the_log(database: Path) -> None:
    with serving(database) as service:
        answer = send(
            service.port, b"GET / HTTP/1.1\r\n" + b"\1" * 100_000 + b"\r\n\r\n"
        )
        assert_one_error(answer, 400, "bad_request")
        [warning] = service.wait_for_log(r".*Invalid request from .*\n")
        assert len(warning) < 1_200


def test_fewer_connections_are_taken_where_fewer_files_may_be_open() -> None:
    command = "ulimit -Sn 256 && exec gunicorn --print-config 'app:create_app()'"
    settings = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment(PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=":memory:"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.search(r"^worker_connections\s+= 128$", settings, re.MULTILINE)


def test_a_client_that_has_stalled_does_not_keep_the_old_process_alive(
    database: Path,
) -> None:
    command = [*COMMAND, "--graceful-timeout", "0"]
    with serving(database, command) as service, connect(service.port) as connection:
        connection.sendall(POST + IN_CHUNKS + b"5\r\n{")
        worker = Path(f"/proc/{service.worker()}")
        service.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + PATIENCE
        while worker.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert service.request("GET", "/healthz").status == 200
        assert "WORKER TIMEOUT" not in service.log()


def test_a_reload_serves_the_code_as_it_is_now(tmp_path: Path) -> None:
    for file in (*ROOT.glob("*.py"), ROOT / "openapi.json"):
        shutil.copy(file, tmp_path)
    config = str(tmp_path / "gunicorn.conf.py")
    command = [*COMMAND, "--chdir", str(tmp_path), "--config", config]

    def messages() -> list[str]:
        answers = [send(service.port, data) for data in (b"x\r\n\r\n", GET + b"\r\n")]
        return [json.loads(a.partition(b"\r\n\r\n")[2])["message"] for a in answers]

    with serving(tmp_path / "pets.db", command) as service:
        before = messages()
        for name, old in [("errors.py", "Send valid "), ("app.py", "Nothing is ")]:
            code = (tmp_path / name).read_text()
            assert old in code
            (tmp_path / name).write_text(code.replace(old, f"By now: {old}"))
        worker = service.worker()
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_log(rf"Worker exiting \(pid: {worker}\)")
        assert messages() == [f"By now: {message}" for message in before]
