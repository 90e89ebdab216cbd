"""What gunicorn does by itself: refusals, the end of connections, the log, a reload."""

import json
import re
import signal
import socket
import subprocess
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
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
    copy_of_the_checkout,
    environment,
    read_all,
    send,
    serving,
)


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
    error = json.loads(body)
    assert set(error) == {"code", "message", "status"}
    assert (error["code"], error["status"]) == (code, status)
    # It says what to send, and not only what HTTP calls the status.
    assert error["message"].endswith(".")
    assert error["message"] != f"{HTTPStatus(status).phrase}."


# Requests that no well-behaved client sends.

END = b"\r\n\r\n"
HOST = b"Host: x\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
CLOSE = GET + b"Connection: close" + END
POST = b"POST /v1/pets HTTP/1.1\r\n" + HOST
POST += f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked" + END
PET_BYTES = json.dumps(PET).encode()


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


REFUSED = {
    "no HTTP": (b"hello" + END, 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + END, 400),
    "version 0.9": (b"GET /" + END, 400),
    "method in small letters": (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "NUL in the path": (b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "raw UTF-8 in the path": (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "folded header": (GET + b"A: b\r\n c" + END, 400),
    "header without a name": (GET + b": b" + END, 400),
    "space before the colon": (GET + b"A : b" + END, 400),
    "HEAD, nameless header": (b"HEAD / HTTP/1.1\r\n" + HOST + b": b" + END, 400),
    "length that is no number": (POST + b"Content-Length: x" + END, 400),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2" + END + b"1", 400),
    "length and chunks": (POST + b"Content-Length: 1\r\n" + CHUNKED, 400),
    "two hosts": (GET + HOST + b"\r\n", 400),
    "long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    "expectation": (POST + b"Expect: x" + END, 417),
    "long header": (GET + b"A: " + b"b" * 20_000 + END, 431),
    "many headers": (GET + b"A: b\r\n" * 300 + b"\r\n", 431),
    "coding": (POST + b"Transfer-Encoding: x" + END, 501),
}
CODES = {400: "bad_request", 414: "uri_too_long", 417: "expectation_failed"}
CODES |= {431: "request_header_fields_too_large", 501: "not_implemented"}


@pytest.mark.parametrize(("data", "status"), REFUSED.values(), ids=REFUSED)
def test_what_gunicorn_refuses_gets_one_error(
    served: Service, data: bytes, status: int
) -> None:
    assert_one_error(send(served.port, data), status, CODES[status])


BODIES = {
    "cut short": (b"Content-Length: 50" + END + PET_BYTES, 400, "malformed_body"),
    "chunks cut short": (CHUNKED + chunks(PET_BYTES)[:-5], 400, "malformed_body"),
    "no chunk size": (CHUNKED + b"xyz\r\n", 400, "malformed_body"),
    "chunk too long": (CHUNKED + b"5\r\n" + PET_BYTES, 400, "malformed_body"),
    "no chunks": (CHUNKED + chunks(), 400, "malformed_body"),
    "length 0": (b"Content-Length: 0" + END, 400, "malformed_body"),
    "no length": (b"\r\n", 400, "malformed_body"),
    "chunks past 64 KiB": (
        CHUNKED + chunks(PET_BYTES.ljust(65_536), b" "),
        413,
        "body_too_large",
    ),
    "length past 64 KiB": (b"Content-Length: 65537" + END, 413, "body_too_large"),
    "two keys": (b"Authorization: Bearer x" + END, 401, "invalid_api_key"),
}


@pytest.mark.parametrize(("data", "status", "code"), BODIES.values(), ids=BODIES)
def test_a_body_that_breaks_a_rule_gets_one_error(
    served: Service, data: bytes, status: int, code: str
) -> None:
    assert_one_error(send(served.port, POST + data), status, code)


ODD = {
    "HTTP/1.0 without a host": (b"GET /healthz HTTP/1.0" + END, b"200"),
    "Docker Compose": (b"GET /healthz HTTP/1.1\r\nHost: pet_store:80" + END, b"200"),
    "whole URL": (b"GET http://x/healthz HTTP/1.1\r\nHost: x" + END, b"200"),
    "a key that is not ASCII": (
        b"GET /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff" + END,
        b"401",
    ),
    "a header that would move the application": (
        b"GET /v1/pets HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /y" + END,
        b"401",
    ),
    "chunks of 64 KiB": (POST + CHUNKED + chunks(PET_BYTES.ljust(65_536)), b"201"),
}


@pytest.mark.parametrize(("data", "status"), ODD.values(), ids=ODD)
def test_what_looks_odd_but_is_valid_is_answered(
    served: Service, data: bytes, status: bytes
) -> None:
    assert send(served.port, data).split()[1] == status


def test_a_malformed_body_that_nobody_reads_gets_no_answer_of_its_own(
    served: Service,
) -> None:
    with connect(served.port) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\n" + HOST + CHUNKED + b"zz\r\n")
        # It ends although this side stays open.
        assert_one_error(read_all(connection), 404, "not_found")


# What could stop the others, or cut off an answer.


@pytest.mark.parametrize("number", [b"1e9999999", b"-1e9999999", b"1e-9999999"])
def test_a_number_with_a_huge_exponent_is_refused_at_once(
    served: Service, number: bytes
) -> None:
    body = b'{"name": "Rex", "categoryId": %b}' % number
    with connect(served.port, timeout=2) as connection:
        connection.sendall(POST + b"Content-Length: %d" % len(body) + END + body)
        connection.shutdown(socket.SHUT_WR)
        assert_one_error(read_all(connection), 400, "invalid_body")


@pytest.mark.parametrize(("count", "limit"), [(500, 1024), (330, 256)])
def test_clients_that_leave_closed_connections_open_hold_up_nobody(
    database: Path, count: int, limit: int
) -> None:
    limited = ["prlimit", f"--nofile={limit}:{limit}", *COMMAND]
    with serving(database, limited) as service, ExitStack() as stack:
        worker = service.worker()
        left_open = [stack.enter_context(connect(service.port)) for _ in range(count)]
        for connection in left_open:
            connection.sendall(CLOSE)

        def list_pets(_: int) -> int:
            return service.request("GET", "/v1/pets", timeout=5).status

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(list_pets, range(8))) == [200] * 8
        for connection in left_open:
            assert read_all(connection).endswith(b'{"status": "ok"}\n')
        assert service.worker() == worker


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_who_sends_too_much_gets_the_whole_answer(
    served: Service, header: bytes
) -> None:
    # More than waits in the buffers of the system.
    size = 30_000_000
    with connect(served.port) as connection:
        connection.sendall(POST + header + b"Content-Length: %d" % size + END)
        connection.sendall(b"x" * size)
        connection.shutdown(socket.SHUT_WR)
        assert_one_error(read_all(connection), 413, "body_too_large")


def assert_broken_bodies_are_refused(port: int) -> None:
    """Send chunks that promise more than they bring."""
    for size in (b"ffffffff", b"7fffffff", b"10000", b"1"):
        for brought in range(1_000, 26_000, 1_000):
            data = POST + CHUNKED + size + b"\r\n" + b"x" * brought
            assert send(port, data).split()[1] in (b"400", b"413")


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
USER = b64encode(b"x\nFORGED\r\n\x1b[31mFORGED \x9b31m:password")

HOSTILE = {
    "nothing": GET + b"\r\n",
    "user name": GET + b"Authorization: Basic " + USER + END,
    "path": b"GET /%0aFORGED%0d%0a%1b[31m%9b HTTP/1.1\r\n" + HOST + b"\r\n",
    "query": b'GET /"?%0aFORGED%1b[31m HTTP/1.1\r\n' + HOST + b"\r\n",
    "agent": GET + b"User-Agent: x\x85FORGED\x1b[31m\r\nReferer: x\x9b31m\tF" + END,
    "host": b"GET / HTTP/1.1\r\nHost: \x9b31m" + END,
    "method": b"FORGED\x1b[31m\x9b\x85 / HTTP/1.1\r\n" + HOST + b"\r\n",
    "protocol": b"GET / HTTP/1.1\x1b[31m\r\n" + HOST + b"\r\n",
    "name of a header": GET + b"A\x1b[31m\x9b: b" + END,
    "expectation": GET + b"Expect: x\x9b31m\x85FORGED" + END,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_request_leaves_one_line_without_control_characters_in_the_log(
    served: Service, data: bytes
) -> None:
    before = served.log()
    send(served.port, data)
    served.wait_for_log(r"\n", count=before.count("\n") + 1)
    *lines, end = served.log().removeprefix(before).split("\n")
    assert end == ""
    for line in lines:
        assert ACCESS.fullmatch(line) or OF_GUNICORN.fullmatch(line)
        assert not any(unicodedata.category(letter) == "Cc" for letter in line)


def test_a_log_that_cannot_be_written_tells_no_key(database: Path) -> None:
    full = ["bash", "-c", 'exec "$@" >/dev/full', "bash", *COMMAND]
    with serving(database, full) as service:
        for _ in range(3):
            assert service.request("GET", "/v1/pets").status == 200
        assert service.stop() == 0
        assert KEY not in service.log()


# The code that is served.


def test_a_reload_serves_the_code_as_it_is_now(tmp_path: Path) -> None:
    copy_of_the_checkout(tmp_path)
    config = str(tmp_path / "gunicorn.conf.py")
    command = [*COMMAND, "--chdir", str(tmp_path), "--config", config]

    def messages() -> list[str]:
        requests = (b"x" + END, b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n")
        answers = [send(service.port, data) for data in requests]
        return [json.loads(a.partition(END)[2])["message"] for a in answers]

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
