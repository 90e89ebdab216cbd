"""How gunicorn serves the application: every setting, and what it does by itself."""

import socket
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from resource import RLIMIT_NOFILE, getrlimit
from selectors import EVENT_READ
from threading import get_ident
from typing import Any

from click import ClickException
from gunicorn import glogging, util
from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.workers.gthread import TConn, ThreadWorker

# One process, whatever WEB_CONCURRENCY says: all that write share one queue.
workers = 1
# More than may wait to write while another program holds the database: some are left
# for reads.
threads = 16
# Past the limit of open files (often 1,024, on macOS 256) the worker would end.
worker_connections = min(500, getrlimit(RLIMIT_NOFILE)[0] // 2)

# On standard output: address, time, request, status, bytes of the body, seconds. There
# is nothing among them in which a client could send a line of its own.
accesslog = "-"
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'


class Logger(glogging.Logger):
    """gunicorn's logger, but for long messages: they quote what a client has sent."""

    error_fmt = glogging.Logger.error_fmt.replace("%(message)s", "%(message).1000s")


logger_class = Logger

# Nobody steers the service but by signals.
control_socket_disable = True
# No client moves the application to another path with a header SCRIPT_NAME.
forwarder_headers = ""


class Worker(ThreadWorker):
    """gunicorn's worker with threads, but for the end of a connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.latest: dict[int, TConn] = {}

    def handle(self, conn: TConn) -> Any:
        """Handle a request, and know which connection each thread had latest."""
        self.latest[get_ident()] = conn
        return super().handle(conn)

    def run(self) -> None:
        """Serve until the worker is told to stop and the time for that is over.

        The process ends when its threads do, and a client that has stalled in the
        middle of a request would hold one of them for as long as it likes.
        """
        super().run()
        for conn in tuple(self.latest.values()):
            with suppress(OSError):
                conn.sock.shutdown(socket.SHUT_RDWR)

    def finish_request(self, conn: TConn, future: Future[bool]) -> None:
        """Close a connection without making the others wait.

        A client may still be sending, and would lose the answer if the connection were
        closed at once (RFC 9112, section 9.6). gunicorn waits for its end in this loop,
        which serves all others. Here the poller waits, no longer than for a request,
        and not where it would keep many new connections out.
        """
        if future.cancelled() or future.exception() or future.result():
            super().finish_request(conn, future)
            return
        is_crowded = self.nr_conns > self.worker_connections // 2
        with suppress(OSError, ValueError):
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
            if not is_crowded:
                self.poller.register(conn.sock, EVENT_READ, partial(self.drain, conn))
                conn.set_timeout()
                self.pending_conns.append(conn)
                return
        self.nr_conns -= 1
        conn.close()

    def drain(self, conn: TConn, sock: socket.socket) -> None:
        """Read what nobody wants any more, and close once the client has."""
        with suppress(OSError):
            if sock.recv(65_536):
                return
        self.poller.unregister(sock)
        self.pending_conns.remove(conn)
        self.nr_conns -= 1
        conn.close()

    def _keepalive_after(self, conn: TConn, keepalive: bool) -> bool:
        # The request is answered. A second answer, to what is malformed in the rest of
        # its body, would be taken for that to the next request.
        try:
            return bool(super()._keepalive_after(conn, keepalive))  # type: ignore[misc]
        except Exception:
            return False


worker_class = Worker


def load(self: WSGIApplication) -> Any:
    """Load the application; where it cannot start, show why without a traceback."""
    try:
        return self.load_wsgiapp()
    except ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None


def write_error(sock: socket.socket, status_int: int, reason: str, mesg: str) -> None:
    """Refuse with the Error body what never reaches the application.

    The reason and the message of gunicorn are left out: they quote the client.
    """
    # Not above: the process that starts the workers would keep the module as it is now,
    # and hand it on to those that a reload starts.
    from errors import standard_error_body

    body = standard_error_body(status_int)
    head = (
        f"HTTP/1.1 {status_int} {HTTPStatus(status_int).phrase}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    )
    util.write_nonblock(sock, "\r\n".join([*head, "", body]).encode())


# gunicorn has no setting for either.
WSGIApplication.load = load  # type: ignore[method-assign]
util.write_error = write_error
