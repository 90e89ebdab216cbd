"""The service under gunicorn and `flask run`: startup, log, and malformed bodies."""

import re
import socket
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from itertools import product
from pathlib import Path

import pytest

import storage
from app import StartError, create_app
from sqlite_file import CHECK_ACCESS
from tests.helpers import (
    KEY,
    NEW_PET,
    add_pet,
    all_pets,
    create_client,
    needs_linux,
    other_program,
    wal_of,
)
from tests.service import (
    FLASK,
    GUNICORN,
    PROCFILE,
    ROOT,
    request,
    run,
    send_body,
    serving,
)

both_servers = pytest.mark.parametrize("command", [GUNICORN, FLASK], ids=lambda c: c[0])


# Startup: what is refused.


NO_KEY = (
    "this process sees no key; set it (in a shell, with export) to a string of keys, "
    'for example "key-1,key-2".'
)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [(keys, NO_KEY) for keys in (None, "", " , ,", ["k"])]
    + [
        (f"k,,a{character}b", "key 2 must consist of visible ASCII characters.")
        for character in "\r\n \0é\x7f"
    ],
)
def test_keys_that_cannot_be_sent_are_refused(keys: object, reason: str) -> None:
    with pytest.raises(StartError) as refusal:
        create_app({"API_KEYS": keys, "DATABASE": ":memory:"})
    assert str(refusal.value) == f"PETSTORE_API_KEYS: {reason}"


@pytest.mark.parametrize("path", ["a\0b", "a\ud800", b"pets.db", 7])
def test_a_database_has_to_be_a_path(path: object) -> None:
    with pytest.raises(StartError, match="^PETSTORE_DATABASE: .*; set it to the path"):
        create_app({"API_KEYS": KEY, "DATABASE": path})


OTHER_PETS = "CREATE TABLE pets (id INTEGER, name TEXT, price REAL, status TEXT)"
VERSION = f"PRAGMA user_version = {storage.SCHEMA_VERSION}"
NEWER = f"PRAGMA user_version = {storage.SCHEMA_VERSION + 1}"


def create_tables(*statements: str) -> Callable[[Path], None]:
    """Return a function that executes statements in a file."""

    def create(path: Path) -> None:
        with other_program(path, *statements):
            pass

    return create


NOT_A_DATABASE = "file is not a database; choose another file, or restore a backup."
CANNOT_OPEN = f"unable to open database file; {CHECK_ACCESS}."
OTHER_VERSION = (
    f"it is not a pet store of version {storage.SCHEMA_VERSION} (its user_version is "
    "{}); choose another file."
)
NOT_A_STORE = "{}; it is not a pet store; choose another file."


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        (lambda path: path.write_text("Dear diary" * 999), NOT_A_DATABASE),
        (Path.mkdir, CANNOT_OPEN),
        (lambda path: path.parent.rmdir(), CANNOT_OPEN),
        (create_tables("CREATE TABLE notes (text)"), OTHER_VERSION.format(0)),
        (create_tables(NEWER), OTHER_VERSION.format(storage.SCHEMA_VERSION + 1)),
        (
            create_tables("CREATE TABLE notes (text)", VERSION),
            NOT_A_STORE.format("no such table: pets"),
        ),
        (
            create_tables(OTHER_PETS, VERSION),
            NOT_A_STORE.format("no such column: category_id"),
        ),
        (
            create_tables(
                storage.CREATE_TABLE,
                "ALTER TABLE pets ADD COLUMN price REAL",
                VERSION,
            ),
            NOT_A_STORE.format("table pets has 5 columns but 4 values were supplied"),
        ),
    ],
    ids=[
        "text",
        "folder",
        "missing folder",
        "another program",
        "newer",
        "another program with our version",
        "other columns",
        "one more column",
    ],
)
def test_a_file_that_is_not_a_pet_store_is_refused_and_not_changed(
    tmp_path: Path, create: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "folder" / "pets.db"
    path.parent.mkdir()
    create(path)
    content = path.read_bytes() if path.is_file() else None
    files = list(tmp_path.rglob("*"))
    with pytest.raises(StartError) as refusal:
        create_client(path)
    assert str(refusal.value) == f"PETSTORE_DATABASE: {path}: {reason}"
    assert (path.read_bytes() if path.is_file() else None) == content
    assert list(tmp_path.rglob("*")) == files


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 38, 0))
    create_client(":memory:")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    reason = "^PETSTORE_DATABASE: SQLite is .*, but 3.38 or newer is needed.$"
    with pytest.raises(StartError, match=reason):
        create_client(":memory:")


@needs_linux
@both_servers
def test_a_refusal_is_one_line(tmp_path: Path, command: list[str]) -> None:
    ended = run(*command, PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=str(tmp_path))
    assert ended.returncode != 0
    lines = [line for line in ended.stderr.splitlines() if line and line[0] != "["]
    assert lines == [f"Error: PETSTORE_DATABASE: {tmp_path}: {CANNOT_OPEN}"]


# Startup: what is opened.


def test_a_file_of_an_earlier_release_is_opened_as_it_is(database: Path) -> None:
    statements = [
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE pets (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, "
        "category_id INTEGER NOT NULL, status TEXT NOT NULL "
        "CHECK (status IN ('available', 'pending', 'sold'))) STRICT",
        "CREATE INDEX pets_by_status ON pets (status)",
        "PRAGMA user_version = 1",
        "INSERT INTO pets VALUES (3, 'Tom', 1, 'sold')",
    ]
    create_tables(*statements)(database)
    client = create_client(database)
    tom = {"id": 3, "name": "Tom", "categoryId": 1, "status": "sold"}
    assert all_pets(client) == [tom]
    assert add_pet(client)["id"] == 4


def test_an_empty_file_and_a_relative_path_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets.db").touch()
    monkeypatch.chdir(tmp_path)
    client = create_client("pets.db")
    monkeypatch.chdir("/")
    pet = add_pet(client)
    assert all_pets(create_client(tmp_path / "pets.db")) == [pet]


def test_settings_come_from_the_environment_or_from_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PETSTORE_API_KEYS", "1")
    monkeypatch.setenv("PETSTORE_DATABASE", str(tmp_path / "environment.db"))
    create_app()
    assert [path.name for path in tmp_path.iterdir()] == ["environment.db"]
    client = create_app({"DATABASE": tmp_path / "config.db"}).test_client()
    assert (tmp_path / "config.db").exists()
    response = client.get("/v1/pets", headers={"Authorization": "Bearer 1"})
    assert response.status_code == 200


def copy_service(folder: Path) -> None:
    """Copy the files that the service needs into a folder."""
    for file in [*ROOT.glob("*.py"), ROOT / "index.html", ROOT / "openapi.json"]:
        (folder / file.name).write_bytes(file.read_bytes())


@needs_linux
def test_the_default_database_is_in_the_instance_folder(tmp_path: Path) -> None:
    copy_service(tmp_path)
    # As if the folder were a virtual environment: `python3 -m venv .` makes it one.
    program = "import os, sys; sys.prefix = os.getcwd(); import app; app.create_app()"
    (tmp_path / "instance").touch()
    ended = run("python", "-c", program, folder=tmp_path, PETSTORE_API_KEYS=KEY)
    assert "PETSTORE_DATABASE: [Errno 17] File exists" in ended.stderr
    (tmp_path / "instance").unlink()
    for _ in range(2):
        ended = run("python", "-c", program, folder=tmp_path, PETSTORE_API_KEYS=KEY)
        assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in tmp_path.glob("instance/*")] == ["pets.db"]


# The running service.


@needs_linux
def test_an_upgrade_may_replace_the_files_of_a_running_service(tmp_path: Path) -> None:
    copy_service(tmp_path)
    program = """
import os, app
client = app.create_app({"API_KEYS": "k"}).test_client()
os.remove("index.html")
os.remove("openapi.json")
print(client.get("/").status_code, client.get("/v1/openapi.json").status_code)
"""
    ended = run("python", "-c", program, folder=tmp_path)
    assert (ended.stdout, ended.stderr) == ("200 200\n", "")


@needs_linux
def test_gunicorn_serves_as_one_process_and_logs_no_requests(database: Path) -> None:
    with serving(database, PROCFILE, WEB_CONCURRENCY="2") as service:
        assert service.request("POST", "/v1/pets", NEW_PET).status == 201
        assert service.request("GET", "/v1/pets").status == 200
        assert service.stop() == 0
    # An orderly end leaves no WAL.
    assert {file.suffix for file in database.parent.iterdir()} == {".db", ".log"}
    log = service.log()
    assert log.count("Booting worker") == 1
    assert "/v1/pets" not in log
    assert "ontrol socket" not in log


@needs_linux
def test_sixty_clients_that_stall_do_not_stop_others(database: Path) -> None:
    with serving(database) as service, ExitStack() as connections:
        for _ in range(60):
            stalled = connections.enter_context(closing(service.connect()))
            stalled.connect()
            stalled.sock.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert service.request("GET", "/healthz").status == 200


@needs_linux
def test_a_refused_body_costs_nobody_the_next_request(database: Path) -> None:
    statuses = set()
    # http.client opens a new connection only if the response has announced a close.
    with serving(database) as service, closing(service.connect()) as connection:
        for method, path, key in (
            ("POST", "/v1/pets", KEY),
            ("POST", "/v1/pets", "other"),
            ("POST", "/x", KEY),
            ("DELETE", "/v1/pets", KEY),
            ("GET", "/v1/pets", KEY),
        ):
            for body in (b"x" * 65_536, b"x" * 65_537, iter([b"x" * 65_537])):
                # An iterator is sent in chunks.
                statuses.add(send_body(connection, method, path, key, body))
                assert request(connection, "GET", "/healthz").status == 200
    assert statuses == {200, 401, 404, 405, 413, 415}


@needs_linux
@pytest.mark.parametrize("size", [150_000, 1_000_000, 5_000_000])
def test_eight_clients_at_once_read_why_a_large_body_is_refused(
    database: Path, size: int
) -> None:
    with serving(database) as service, ThreadPoolExecutor(8) as threads:

        def post(kind: tuple[str, bool]) -> int:
            key, is_chunked = kind
            body = iter([b"x" * size]) if is_chunked else b"x" * size
            with closing(service.connect()) as connection:
                return send_body(connection, "POST", "/v1/pets", key, body)

        for kind in product((KEY, "other"), (False, True)):
            statuses = threads.map(post, [kind] * 8)
            assert [*statuses] == [413 if kind[0] == KEY else 401] * 8


def send_without_end(sock: socket.socket) -> None:
    """Send bytes until the service closes the connection."""
    with suppress(OSError):
        while True:
            sock.sendall(b"x" * 65_536)


@needs_linux
def test_twenty_clients_that_send_without_an_end_delay_nobody(database: Path) -> None:
    head = b"POST /v1/pets HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"
    with (
        serving(database) as service,
        ThreadPoolExecutor(20) as threads,
        closing(service.connect()) as connection,
        ExitStack() as stack,
    ):
        for is_stopped in (False, True):
            clients = [
                stack.enter_context(closing(service.connect())) for _ in range(20)
            ]
            for client in clients:
                client.connect()
            for client in clients:
                client.sock.sendall(head)
            for client in clients:
                assert client.sock.recv(12) == b"HTTP/1.1 401"
            senders = [threads.submit(send_without_end, each.sock) for each in clients]
            while not is_stopped and not all(sender.done() for sender in senders):
                assert request(connection, "GET", "/healthz").status == 200
        assert service.stop() == 0


# gunicorn.conf.py, and gunicorn logs how many connections it still counts at the end.
COUNTING = f"""
exec(open({str(ROOT / "gunicorn.conf.py")!r}).read())

def worker_exit(server, worker):
    worker.log.info("%s connections are left.", worker.nr_conns)
"""
# At /socket, a program takes the connection from gunicorn, as those for WebSockets do.
WITH_SOCKET = """
import app
service = app.create_app()

def application(environ, start_response):
    if environ["PATH_INFO"] != "/socket":
        return service(environ, start_response)
    environ["gunicorn.socket"].sendall(b"taken")
    environ["gunicorn.socket"].close()
    raise StopIteration
"""
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
LATE = {
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", b"HTTP/1.0 200 OK"),
    "close": (HEALTHZ + b"Connection: close\r\n\r\n", b"HTTP/1.1 200 OK"),
    "malformed": (b"malformed\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    "150 headers": (HEALTHZ + b"x: x\r\n" * 150 + b"\r\n", b"HTTP/1.1 431 Request"),
    # gunicorn waits for this body for five seconds.
    "no body": (HEALTHZ + b"Content-Length: 9\r\n\r\n", b"HTTP/1.1 200 OK"),
    "websocket": (b"GET /socket HTTP/1.1\r\nHost: x\r\n\r\n", b"taken"),
}


def is_at_end(sock: socket.socket) -> bool:
    """Read what has arrived. Return whether the other side has ended the connection."""
    sock.setblocking(False)
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return False
    return True


@needs_linux
@pytest.mark.parametrize("kind", LATE)
def test_clients_that_close_late_cost_nobody_a_request(
    database: Path, tmp_path: Path, kind: str
) -> None:
    data, answer = LATE[kind]
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "with_socket.py").write_text(WITH_SOCKET)
    command = [*GUNICORN, "--config", f"{tmp_path}/counting.py"]
    command[command.index("app:create_app()")] = "with_socket:application"
    with serving(database, command, PYTHONPATH=str(tmp_path)) as service:
        with ExitStack() as stack:

            def connect() -> HTTPConnection:
                connection = stack.enter_context(closing(service.connect()))
                connection.connect()
                return connection

            kept = [connect() for _ in range(3)]
            late = [connect().sock for _ in range(20)]
            for sock in late:
                sock.sendall(data)
                assert sock.recv(len(answer)) == answer
            # gunicorn ends these connections: each receives the rest of its answer, and
            # then nothing. Meanwhile, others are answered. (`request` opens no new
            # connection if the service closes one of these.)
            while late:
                late = [sock for sock in late if not is_at_end(sock)]
                for connection in kept:
                    pet = request(connection, "POST", "/v1/pets", NEW_PET)
                    assert pet.status == 201
        assert service.stop() == 0
    # An orderly end leaves no WAL.
    assert not wal_of(database).exists()
    assert "] 0 connections are left." in service.log()
    assert "[ERROR]" not in service.log()
    assert "Traceback" not in service.log()


@needs_linux
def test_clients_cannot_forge_lines_of_the_log(database: Path) -> None:
    user = b64encode(b"x\nFORGED\x1b[31m:password").decode()
    head = (
        f'GET /"%0aFORGED HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {user}\r\n'
        "User-Agent: FORGED\r\nReferer: FORGED\r\n\r\n"
    )
    with serving(database) as service:
        assert service.send(head.encode()).startswith(b"HTTP/1.1 404 ")
        line = service.wait_for_log('(.*"GET /.*)\n')
    assert re.fullmatch(r'127\.0\.0\.1 \[.*\] "GET .*" 404 \d+ \d+\.\d+', line)
    assert service.log().count("FORGED") == 1


@needs_linux
def test_a_log_that_cannot_be_written_shows_no_key(database: Path) -> None:
    full = ["bash", "-c", 'exec "$@" >/dev/full', "bash", *GUNICORN]
    with serving(database, full) as service:
        assert service.request("GET", "/v1/pets").status == 200
        assert service.stop() == 0


@needs_linux
@both_servers
def test_a_body_is_read_to_its_end(database: Path, command: list[str]) -> None:
    head = f"POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\n"
    chunked = "Transfer-Encoding: chunked\r\n\r\n"
    rex = '{"name": "Rex", "categoryId": 1}'
    limit = f"10000\r\n{rex:65536}\r\n"
    with serving(database, command) as service:
        for rest, status, text in (
            (f"Content-Length: {len(rex)}\r\n\r\n{rex[:-1]}", 400, "malformed_body"),
            (f"{chunked}xyz\r\n", 400, "malformed_body"),
            (f"{chunked}{len(rex) + 1:x}\r\n{rex}", 400, "malformed_body"),
            (f"{chunked}{limit}0\r\n\r\n", 201, "Rex"),
            (f"{chunked}{limit}1\r\n \r\n0\r\n\r\n", 413, "body_too_large"),
            (f"{chunked}{limit}xyz\r\n", 400, "malformed_body"),
        ):
            response = service.send(f"{head}{rest}".encode()).decode()
            assert response.startswith(f"HTTP/1.1 {status} ")
            assert f'"{text}"' in response
        assert len(service.request("GET", "/v1/pets").body) == 1
    assert "Traceback" not in service.log()


@needs_linux
def test_the_operator_may_set_a_prefix_but_a_client_may_not(database: Path) -> None:
    path = "GET /store/v1/openapi.json"
    head = f"{path} HTTP/1.1\r\nHost: x\r\nSCRIPT_NAME: /store/v1\r\n\r\n"
    with serving(database, SCRIPT_NAME="/store") as service:
        assert b'"url": "/store/v1"' in service.send(head.encode())
        pets = '</store/v1/pets>; rel="successor-version"'
        assert service.request("GET", "/store/v1/pets/9").headers["Link"] == pets
