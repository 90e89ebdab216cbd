"""nginx in front of the service, as deploy/nginx.conf configures it."""

import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from tests.helpers import KEY, NEW_PET
from tests.service import (
    GUNICORN,
    ROOT,
    TIMEOUT,
    Service,
    run,
    serving,
)

# nginx reads deploy/nginx.conf here. One process, and folders below its own.
NGINX_CONF = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include petstore.conf;
}
"""
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=pets.example "
    "-keyout privkey.pem -out fullchain.pem"
)


class Proxy(Service):
    """nginx in front of a service in the same folder, with a port of its own.

    `tls` are the options of its port, and more directives.
    """

    def __init__(self, folder: Path, prefix: str = "", tls: str = "ssl;") -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        # As deploy/proxy changes it.
        proxy = ROOT / "deploy" / "proxy"
        [sed] = re.findall('^sed .*nginx.conf"', proxy.read_text(), re.MULTILINE)
        sed = f"host=pets.example prefix={prefix}; {sed}"
        conf = run("sh", "-c", sed, str(proxy)).stdout
        for old, new in {
            "listen 80;": f"listen unix:{folder}/http;",
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} {tls}",
            "listen [::]:80;": "",
            "listen [::]:443 ssl;": "",
            "/etc/letsencrypt/live/pets.example": str(folder),
            "/run/petstore.sock": f"{folder}/petstore.sock",
        }.items():
            assert old in conf
            conf = conf.replace(old, new)
        (folder / "petstore.conf").write_text(conf)
        (folder / "nginx.conf").write_text(NGINX_CONF)
        run(*CERTIFICATE.split(), folder=folder)
        command = ["/usr/sbin/nginx", "-p", str(folder), "-c", "nginx.conf"]
        command += ["-e", "stderr"]
        tested = run(*command, "-q", "-t")
        assert (tested.returncode, tested.stderr) == (0, "")
        super().__init__(folder / "nginx.db", command, {})

    def connect(self) -> HTTPSConnection:
        """Return a new connection, which does not check the certificate."""
        context = ssl._create_unverified_context()
        return HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT, context=context)

    def send(self, data: bytes) -> bytes:
        """Send bytes with TLS, and return the answer."""
        with closing(self.connect()) as connection:
            connection.connect()
            return exchange(connection.sock, data)

    def send_unencrypted(self, method: str, path: str, host: str = "x") -> bytes:
        """Send a request to port 80, and return the answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT)
            sock.connect(f"{self.folder}/http")
            return exchange(sock, head.encode())


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send bytes, and return everything that is received."""
    answer = b""
    # nginx may close the connection before it has read a large request.
    with suppress(OSError):
        sock.sendall(data)
    with suppress(ConnectionResetError):
        while received := sock.recv(65_536):
            answer += received
    return answer


@contextmanager
def proxying(folder: Path, **options: str) -> Iterator[Proxy]:
    """Run nginx during a `with` block. The options are those of `Proxy`."""
    proxy = Proxy(folder, **options)
    try:
        proxy.wait_for_log("epoll")
        yield proxy
    finally:
        proxy.kill()
        print(proxy.log())  # pytest shows this if the test fails.


def with_socket(folder: Path) -> list[str]:
    """Return a command that serves with four threads, at a unix socket as well."""
    return [*GUNICORN, "--threads", "4", "--bind", f"unix:{folder}/petstore.sock"]


@pytest.fixture
def service(database: Path, tmp_path: Path) -> Iterator[Service]:
    """Run a service."""
    with serving(database, with_socket(tmp_path)) as service:
        yield service


@pytest.fixture
def proxy(tmp_path: Path, service: Service) -> Iterator[Proxy]:
    """Run nginx in front of the service."""
    with proxying(tmp_path) as proxy:
        yield proxy


def assert_error(answer: bytes, status: int, code: str) -> None:
    """Check that an answer is an Error body, which a page of any origin can read."""
    print(answer)  # pytest shows the last one if the test fails.
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *fields = head.decode().splitlines()
    assert status_line.startswith(f"HTTP/1.1 {status} ")
    error = json.loads(body)
    assert error == {"code": code, "message": error["message"], "status": status}
    assert "Content-Type: application/json" in fields
    assert fields.count("Access-Control-Allow-Origin: *") == 1
    exposed = [field for field in fields if "Expose-Headers" in field]
    assert len(exposed) == 1 and "Retry-After" in exposed[0]
    assert ("Retry-After: 1" in fields) == (status == 503)


HOST = "Host: x\r\nConnection: close\r\n"
JSON = f"{HOST}Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
CHUNKED = f"{JSON}Transfer-Encoding: chunked\r\n"
POST = "POST /v1/pets HTTP/1.1\r\n"
GET = "GET /v1/pets HTTP/1.1\r\n"
NGINX_ERRORS = [
    (f"{GET}\r\n", 400, "bad_request"),  # No Host.
    (f"{GET}{HOST}{HOST}\r\n", 400, "bad_request"),
    (f"GET / HTTP/3.0\r\n{HOST}\r\n", 505, "bad_request"),
    (f"g@t / HTTP/1.1\r\n{HOST}\r\n", 400, "bad_request"),
    (f"TRACE / HTTP/1.1\r\n{HOST}\r\n", 405, "method_not_allowed"),
    (f"GET /petstore-error HTTP/1.1\r\n{HOST}\r\n", 404, "not_found"),
    (f"CONNECT x:1 HTTP/1.1\r\n{HOST}\r\n", 400, "bad_request"),
    (f"GET /{'x' * 6_000} HTTP/1.1\r\n{HOST}\r\n", 404, "not_found"),
    (f"GET /{'x' * 8_160} HTTP/1.1\r\n{HOST}\r\n", 404, "not_found"),
    (f"GET /{'x' * 40_000} HTTP/1.1\r\n{HOST}\r\n", 414, "uri_too_long"),
    (f"{GET}{HOST}x: {'x' * 40_000}\r\n\r\n", 400, "bad_request"),
    (f"{GET}{HOST}" + f"x: {'x' * 4_000}\r\n" * 20 + "\r\n", 400, "bad_request"),
    (f"GET /\0 HTTP/1.1\r\n{HOST}\r\n", 400, "bad_request"),
    (f"GET /%00 HTTP/1.1\r\n{HOST}\r\n", 400, "bad_request"),
    (f"GET /../../etc HTTP/1.1\r\n{HOST}\r\n", 400, "bad_request"),
    (f"{POST}{JSON}Content-Length: x\r\n\r\n", 400, "bad_request"),
    (f"{POST}{CHUNKED}Content-Length: 9\r\n\r\n", 400, "bad_request"),
    (f"{POST}{CHUNKED}\r\nxyz\r\n", 400, "bad_request"),
    (f"{POST}{JSON}Transfer-Encoding: x\r\n\r\n", 501, "bad_request"),
    (f"{POST}{CHUNKED}\r\n10001\r\n{'x' * 65_537}\r\n0\r\n\r\n", 413, "body_too_large"),
    (f"{POST}{JSON}Content-Length: 65537\r\n\r\n{'x' * 65_537}", 413, "body_too_large"),
    (
        f"{POST}{JSON}Content-Length: 2000000\r\n\r\n{'x' * 2_000_000}",
        413,
        "body_too_large",
    ),
]


def test_errors_of_nginx_have_the_error_body(proxy: Proxy) -> None:
    for data, status, code in NGINX_ERRORS:
        print(data[:100])  # pytest shows the last one if the test fails.
        assert_error(proxy.send(data.encode()), status, code)


def test_a_large_body_has_the_error_body_in_http_2(
    service: Service, tmp_path: Path
) -> None:
    # Another site of the machine may turn it on. Before nginx 1.25.1, it is an option.
    version = run("/usr/sbin/nginx", "-v").stderr.partition("nginx/")[2].split()[0]
    has_directive = [*map(int, version.split("."))] >= [1, 25, 1]
    tls = "ssl; http2 on;" if has_directive else "ssl http2;"
    (tmp_path / "body").write_bytes(b"x" * 65_537)
    with proxying(tmp_path, tls=tls) as proxy:
        url = f"https://127.0.0.1:{proxy.port}/v1/pets"
        data = f"@{tmp_path}/body"
        answer = run("curl", "-sSik", "--http2", url, "--data-binary", data).stdout
    head, _, body = answer.partition("\n\n")
    assert head.startswith("HTTP/2 413")
    assert json.loads(body)["code"] == "body_too_large"


def test_a_full_disk_of_nginx_refuses_no_pet(proxy: Proxy, tmp_path: Path) -> None:
    # Here, nginx would keep a body that it does not keep in memory.
    (tmp_path / "body").rmdir()
    for size in (1_000, 20_000, 60_000):
        pet = {**NEW_PET, "name": "x" * size}
        assert proxy.request("POST", "/v1/pets", pet).status == 201


def test_a_503_has_the_error_body_of_the_service_or_of_nginx(
    proxy: Proxy, service: Service
) -> None:
    request = f"GET /healthz HTTP/1.1\r\n{HOST}\r\n".encode()
    service.database.rename(service.database.with_name("moved.db"))
    assert_error(proxy.send(request), 503, "storage_unavailable")
    service.kill()
    assert_error(proxy.send(request), 503, "service_unavailable")


def test_clients_that_stall_do_not_stop_others(proxy: Proxy) -> None:
    # With a key: otherwise, the service would not read the body.
    head = f"POST /v1/pets HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    half = f"{head}Content-Length: 9\r\n\r\nhalf".encode()
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(closing(proxy.connect()))
            connection.connect()
            connection.sock.sendall(half)
        assert proxy.request("GET", "/healthz").status == 200


def test_nginx_passes_the_host_of_the_request(tmp_path: Path, database: Path) -> None:
    # This redirect names it.
    command = with_socket(tmp_path)
    with serving(database, command, SCRIPT_NAME="/store") as service:
        assert service.request("GET", "/store/healthz").status == 200
        with proxying(tmp_path) as proxy:
            request = (
                "GET /store HTTP/1.1\r\nHost: pets.example\r\nConnection: close\r\n"
            )
            answer = proxy.send(f"{request}\r\n".encode())
            assert b"Location: https://pets.example/store/\r\n" in answer


def test_port_80_sends_only_a_browser_to_https(proxy: Proxy) -> None:
    for method, path in [("GET", "/"), ("HEAD", "/"), ("GET", "/?x=1")]:
        for host in ("x", "pets.example", "evil.example", '"<'):
            answer = proxy.send_unencrypted(method, path, host)
            assert answer.startswith(b"HTTP/1.1 301 ")
            assert b"\r\nLocation: https://pets.example/\r\n" in answer
    for method in ("GET", "POST", "OPTIONS", "DELETE"):
        answer = proxy.send_unencrypted(method, "/v1/pets")
        assert_error(answer, 403, "https_required")
    assert_error(proxy.send_unencrypted("POST", "/"), 403, "https_required")
    # Decoded, this ends with a line break, which would get into Location.
    assert_error(proxy.send_unencrypted("GET", "/%0A"), 403, "https_required")
    assert_error(proxy.send_unencrypted("GET", "/petstore-error"), 404, "not_found")
    assert_error(proxy.send_unencrypted("GET", "/v1/pets", "x y"), 400, "bad_request")
    challenge = "/.well-known/acme-challenge/"
    assert_error(proxy.send_unencrypted("GET", f"{challenge}x"), 404, "not_found")


def test_a_prefix_is_found_in_every_spelling(database: Path, tmp_path: Path) -> None:
    with (
        serving(database, with_socket(tmp_path), SCRIPT_NAME="/store") as service,
        proxying(tmp_path, prefix="/store") as proxy,
    ):
        for _ in range(2):
            service.request("POST", "/store/v1/pets", NEW_PET)
        for spelling in ("/store", "//store", "/store/", "/%73tore", "/./store"):
            page = proxy.request("GET", f"{spelling}/v1/pets?limit=1")
            assert (page.status, len(page.body)) == (200, 1)
            link = '</store/v1/pets?limit=1&after=1>; rel="next"'
            assert page.headers["Link"] == link
        for path in ("/", "/v1/pets", "/storev1/pets", "/petstore-error"):
            response = proxy.request("GET", path)
            assert (response.status, response.body["code"]) == (404, "not_found")
        for path in ("/store/", "/store"):
            answer = proxy.send_unencrypted("GET", path)
            assert f"https://pets.example{path}\r\n".encode() in answer
        for path in ("/store/v1/pets", "/v1/pets", "/"):
            answer = proxy.send_unencrypted("GET", path)
            assert_error(answer, 403, "https_required")
