"""haproxy in front of the service: it shares its connections between clients."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path

from tests.helpers import KEY
from tests.service import Service, request, send_body, serving, wait_until

HAPROXY_CFG = """
defaults
    mode http
    http-reuse always
    timeout connect 15s
    timeout client 15s
    timeout server 15s
listen petstore
    bind {}
    server petstore {}
"""


class Proxy(Service):
    """haproxy in front of a service at an address, with a port of its own."""

    def __init__(self, folder: Path, service: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        configuration = folder / "haproxy.cfg"
        configuration.write_text(HAPROXY_CFG.format(self.address(), service))
        command = ["/usr/sbin/haproxy", "-db", "-f", str(configuration)]
        super().__init__(folder / "haproxy.db", command, {})

    def address(self) -> str:
        """Return the host and the port."""
        return f"127.0.0.1:{self.port}"

    def listens(self) -> bool:
        """Return whether it accepts connections."""
        with closing(socket.socket()) as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def proxying(folder: Path, service: Service) -> Iterator[Proxy]:
    """Run haproxy during a `with` block."""
    proxy = Proxy(folder, service.address())
    try:
        wait_until(proxy.listens)
        yield proxy
    finally:
        proxy.kill()
        print(proxy.log())  # pytest shows this if the test fails.


def test_a_refused_body_is_answered_and_costs_nobody_the_next_request(
    database: Path, tmp_path: Path
) -> None:
    with (
        serving(database) as service,
        proxying(tmp_path, service) as proxy,
        ThreadPoolExecutor(8) as threads,
    ):

        def post(size: int) -> list[int]:
            statuses = []
            with closing(proxy.connect()) as connection:
                for key, is_chunked in [*product((KEY, "other"), (False, True))] * 3:
                    body = iter([b"x" * size]) if is_chunked else b"x" * size
                    status = send_body(connection, "POST", "/v1/pets", key, body)
                    statuses.append(status)
                    healthz = request(connection, "GET", "/healthz")
                    assert healthz.status == 200
            return statuses

        for size in (150_000, 1_000_000, 5_000_000):
            for statuses in threads.map(post, [size] * 8):
                assert statuses == [413, 413, 401, 401] * 3
