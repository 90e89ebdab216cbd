"""gunicorn: refused requests, stalled clients, a prefix, the log, and a reload."""

import json
import re
import select
import signal
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.helpers import NEW_PET
from tests.process import (
    COMMAND,
    KEY,
    TIMEOUT,
    Service,
    connect,
    read_all,
    send,
    serving,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run one service for all tests that only send requests."""
    with serving(tmp_path_factory.mktemp("served") / "pets.db") as service:
        worker = service.worker()
        yield service
        assert "Traceback" not in service.log()
        assert service.worker() == worker


def command_in(checkout: Path, application: str = COMMAND[-1]) -> list[str]:
    """Return the command that serves an application from a copy of the code."""
    config = checkout / "gunicorn.conf.py"
    return [*COMMAND[:-1], application, f"--chdir={checkout}", f"--config={config}"]


def assert_one_error(response: bytes, status: int, code: str) -> None:
    """Check that the bytes are one complete response with an Error body."""
    head, _, body = response.partition(END)
    assert response.count(b"HTTP/1.1 ") == 1
    assert head.startswith(b"HTTP/1.1 %d " % status)
    lines = head.split(b"\r\n")
    for line in (
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Cache-Control: no-store",
        b"X-Content-Type-Options: nosniff",
        b"Access-Control-Allow-Origin: *",
    ):
        assert lines.count(line) == 1
    error = json.loads(body)
    assert error == {"code": code, "message": error["message"], "status": status}
    # The message says more than the reason phrase of HTTP.
    assert re.fullmatch(r"(Send|The|Nothing) .+\.", error["message"])


# Malformed requests.

END = b"\r\n\r\n"
HOST = b"Host: x\r\n"
GET = b"GET /v1/pets HTTP/1.1\r\n" + HOST
POST = b"POST /v1/pets HTTP/1.1\r\n" + HOST
POST += f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked" + END
REX = json.dumps(NEW_PET).encode()
LARGEST = REX.ljust(65_536)
LONG = b"a" * 20_000


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


REFUSED = {
    "not HTTP": (b"hello" + END, 400, "bad_request"),
    "long URL": (GET.replace(b"/v1", b"/" + LONG), 414, "uri_too_long"),
    "expectation": (POST + b"Expect: x" + END, 417, "expectation_failed"),
    "header": (GET + b"A: " + LONG + END, 431, "request_header_fields_too_large"),
    "coding": (POST + b"Transfer-Encoding: x" + END, 501, "not_implemented"),
    "cut short": (POST + b"Content-Length: 50" + END + REX, 400, "malformed_body"),
    "chunks cut short": (POST + CHUNKED + chunks(REX)[:-5], 400, "malformed_body"),
    "no chunk size": (POST + CHUNKED + b"xyz\r\n", 400, "malformed_body"),
    "no chunks": (POST + CHUNKED + chunks(), 400, "malformed_body"),
    "64 KiB and 1": (POST + CHUNKED + chunks(LARGEST, b" "), 413, "body_too_large"),
    "more to come": (POST + b"Content-Length: 65537" + END, 413, "body_too_large"),
    # A client cannot avoid the key by moving the application to another path.
    "path": (GET + b"SCRIPT_NAME: /v1" + END, 401, "missing_api_key"),
}


@pytest.mark.parametrize(("data", "status", "code"), REFUSED.values(), ids=REFUSED)
def test_a_refused_request_gets_one_error(
    served: Service, data: bytes, status: int, code: str
) -> None:
    response = send(served.port, data)
    assert_one_error(response, status, code)
    is_from_gunicorn = status in (414, 417, 431, 501) or code == "bad_request"
    assert (b"\r\nConnection: close\r\n" in response) == is_from_gunicorn


def test_chunks_of_64_kib_and_any_host_are_accepted(served: Service) -> None:
    data = POST.replace(b"Host: x", b"Host: pet_store:80") + CHUNKED + chunks(LARGEST)
    assert send(served.port, data).startswith(b"HTTP/1.1 201 ")


def test_a_malformed_body_after_a_response_gets_no_second_response(
    served: Service,
) -> None:
    with connect(served.port) as connection:
        connection.sendall(b"POST /x HTTP/1.1\r\n" + HOST + CHUNKED + b"zz\r\n")
        # The service closes the connection although the client does not.
        assert_one_error(read_all(connection), 404, "not_found")


# Clients that could stop the service, or lose its response.


def test_connections_that_clients_leave_open_do_not_block_others(
    database: Path,
) -> None:
    # macOS allows only 256 open files by default.
    with (
        serving(database, ["prlimit", "--nofile=256:256", *COMMAND]) as service,
        ExitStack() as stack,
    ):
        left_open = [stack.enter_context(connect(service.port)) for _ in range(330)]
        for connection in left_open:
            connection.sendall(GET + b"Connection: close" + END)
        assert service.request("GET", "/v1/pets", timeout=5).status == 200
        for connection in left_open:
            assert_one_error(read_all(connection), 401, "missing_api_key")
        assert service.log().count("Booting worker") == 1


def test_a_client_that_sends_too_much_gets_the_whole_response(served: Service) -> None:
    # More connections than the service may close at the same time.
    for _ in range(60):
        assert send(served.port, GET + END)
    # This does not fit into the buffers of the operating system.
    size = 30_000_000
    with connect(served.port) as connection:
        connection.sendall(POST + b"Content-Length: %d" % size + END + b"x" * size)
        connection.shutdown(socket.SHUT_WR)
        assert_one_error(read_all(connection), 413, "body_too_large")


def test_truncated_chunks_do_not_crash_flask_run(database: Path) -> None:
    with serving(database, ["flask", "run"]) as service:
        for length in range(1_000, 11_000, 1_000):
            data = POST + CHUNKED + b"ffffffff\r\n" + b"x" * length
            response = send(service.port, data)
            assert_one_error(response, 400, "malformed_body")
            assert b"The body is incomplete, or its chunks are malformed." in response


# Clients that stall.

HALF_HEAD = GET[:-4]
HALF_BODY = POST + b"Content-Length: 50" + END + REX


@contextmanager
def serving_with_short(
    timeout: str, checkout: Path, database: Path
) -> Iterator[Service]:
    """Run a copy of the code in which this timeout is one second."""
    config = checkout / "gunicorn.conf.py"
    text, count = re.subn(rf"(?m)^{timeout} = .+", f"{timeout} = 1", config.read_text())
    assert count == 1
    config.write_text(text)
    with serving(database, command_in(checkout)) as service:
        yield service
        assert "Traceback" not in service.log()
        assert service.log().count("Booting worker") == 1


def test_half_sent_requests_do_not_stop_the_service(
    checkout: Path, database: Path
) -> None:
    with (
        serving_with_short("READ_TIMEOUT", checkout, database) as service,
        ExitStack() as stack,
    ):
        # 16 of them are read, and 16 wait for a thread.
        stalled = [stack.enter_context(connect(service.port)) for _ in range(32)]
        for connection, data in zip(stalled, [HALF_HEAD, HALF_BODY] * 16, strict=True):
            connection.sendall(data)
        assert service.request("GET", "/healthz").status == 200
        assert read_all(stalled[0]) == b""
        assert_one_error(read_all(stalled[1]), 400, "malformed_body")


def test_clients_that_do_not_read_do_not_stop_the_service(
    checkout: Path, database: Path
) -> None:
    with (
        serving_with_short("CLOSE_TIMEOUT", checkout, database) as service,
        ExitStack() as stack,
    ):
        with service.client() as client:
            for _ in range(100):
                pet = {**NEW_PET, "name": "x" * 60_000}
                assert client.request("POST", "/v1/pets", pet).status == 201
        request = f"GET /v1/pets?limit=100 HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n"
        for _ in range(16):
            connection = stack.enter_context(connect(service.port))
            connection.sendall(request.encode() + HOST + b"\r\n")
        assert service.request("GET", "/healthz").status == 200


# After /break, no thread can start, as if the machine had no memory left.
BREAKABLE = """
import threading
import app

def refuse_to_start(thread):
    raise RuntimeError("can't start new thread")

def create_app():
    application = app.create_app()
    @application.get("/break")
    def break_threads():
        threading.Thread.start = refuse_to_start
        return "{}"
    return application
"""


def test_the_worker_survives_if_no_thread_can_start(
    checkout: Path, database: Path
) -> None:
    (checkout / "breakable.py").write_text(BREAKABLE)
    command = command_in(checkout, "breakable:create_app()")
    with serving(database, command) as service:
        assert service.request("GET", "/break").status == 200
        with ExitStack() as stack:
            # More than the threads that have started. The service closes the others.
            stalled = [stack.enter_context(connect(service.port)) for _ in range(4)]
            for connection in stalled:
                connection.sendall(HALF_HEAD)
            closed, _, _ = select.select(stalled, [], [], TIMEOUT / 2)
            assert closed

        def is_answered() -> bool:
            with suppress(OSError):
                return bool(send(service.port, GET + END))
            return False

        # A thread may still be busy with a connection that was closed.
        assert any(is_answered() for _ in range(100))
        assert "Traceback" not in service.log()
        assert service.log().count("Booting worker") == 1


def test_an_error_outside_of_flask_gets_the_error_body(
    checkout: Path, database: Path
) -> None:
    (checkout / "broken.py").write_text("def application(*_):\n    raise ValueError\n")
    command = command_in(checkout, "broken:application")
    with serving(database, command) as service:
        assert_one_error(send(service.port, GET + END), 500, "internal_error")
        assert "ValueError" in service.log()


# A prefix.


def test_the_service_can_be_mounted_below_a_prefix(database: Path) -> None:
    command = ["env", "SCRIPT_NAME=/a+é >", *COMMAND]
    path = "/a+%C3%A9%20%3E"
    with serving(database, command) as service:
        pet = service.request("POST", f"{path}/v1/pets", NEW_PET)
        assert pet.status == 201
        location = pet.headers["Location"]
        assert location == f"{path}/v1/pets/1"
        for outside in ("/", "/v1/pets", "/x", f"{path}x/healthz"):
            request = GET.replace(b"/v1/pets", outside.encode())
            response = send(service.port, request + b"\r\n")
            assert_one_error(response, 404, "not_found")
        assert "WARNING" not in service.log()


# The log.

ACCESS = re.compile(
    r"127\.0\.0\.1 \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\] "
    r'"GET /[!-~]+ HTTP/1\.1" 404 \d+ \d+\.\d{6}\n'
)


def test_clients_cannot_forge_lines_of_the_log(served: Service) -> None:
    path = b'GET /"%0a%1b[31m%9b?%85 HTTP/1.1\r\n' + HOST
    user = b"Authorization: Basic " + b64encode(b"x\nFORGED\x1b[31m:password")
    send(served.port, path + user + b"\r\nUser-Agent: FORGED\r\nReferer: FORGED" + END)
    [line] = served.wait_for_log(r".*%1b.*\n")
    assert ACCESS.fullmatch(line)
    assert "FORGED" not in served.log()


@pytest.mark.parametrize(
    "header",
    [
        f"Authorization Bearer {KEY}\r\n",  # the colon is missing
        f" Authorization: Bearer {KEY}\r\n",
        f"Authorization: Bearer {KEY}\0\r\n",
        f"Transfer-Encoding: {KEY}\r\n",
    ],
)
def test_the_log_does_not_quote_a_refused_request(served: Service, header: str) -> None:
    assert b"HTTP/1.1 " in send(served.port, GET + header.encode() + b"\r\n")
    assert served.wait_for_log("Refused a request: ")
    assert KEY not in served.log()


def test_a_log_that_cannot_be_written_shows_no_key(database: Path) -> None:
    full = ["bash", "-c", 'exec "$@" >/dev/full', "bash", *COMMAND]
    with serving(database, full) as service:
        assert service.request("GET", "/v1/pets").status == 200
        assert service.stop() == 0
        assert KEY not in service.log()


# A reload.


def test_a_reload_serves_the_changed_code(checkout: Path, database: Path) -> None:
    errors = checkout / "errors.py"
    with serving(database, command_in(checkout)) as service:
        errors.write_text(errors.read_text().replace("Send valid HTTP", "Now: HTTP"))
        worker = service.worker()
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_log(rf"Worker exiting \(pid: {worker}\)")
        assert b"Now: HTTP" in send(service.port, b"hello" + END)
