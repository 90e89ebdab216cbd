"""How gunicorn serves the application.

The class Worker overrides methods that gunicorn does not document. So this file needs
exactly the version of gunicorn that requirements.txt names.
"""

import logging
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from threading import BoundedSemaphore
from time import monotonic
from typing import Any
from urllib.parse import quote

from click import ClickException
from gunicorn import util
from gunicorn.http.errors import (
    ExpectationFailed,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    UnsupportedTransferCoding,
)
from gunicorn.workers.gthread import TConn, ThreadWorker
from werkzeug.middleware.dispatcher import DispatcherMiddleware

# One process, even if WEB_CONCURRENCY is set: only the writes of one process can share
# a commit (storage.py).
workers = 1
threads = 16
# The sum of this and MAX_CLOSING is below 256, the number of files that macOS lets a
# process open.
worker_connections = 100

# Address, time, request, status, bytes of the body, seconds. gunicorn escapes each of
# them, so a client cannot write a line of its own into the log.
accesslog = "-"
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# If the log cannot be written, Python would print the request with its key.
logging.raiseExceptions = False

# Nobody needs gunicorn's control socket.
control_socket_disable = True
# A client cannot set SCRIPT_NAME by a header.
forwarder_headers = ""

# If the application cannot start, a worker ends with status 3, which stops gunicorn.
# Two of them (--workers 2) would cause a traceback in gunicorn. So all workers share a
# pipe with one byte: the worker that reads it ends with 3, any other with 0.
startup_error_pipe, _writer = os.pipe()
os.write(_writer, b".")
os.close(_writer)

# The service stops reading a request this many seconds after it was queued for a
# thread. The time in the queue counts: otherwise, each half-sent request in the queue
# would hold a thread for another ten seconds.
READ_TIMEOUT = 10.0
# The service closes a connection this many seconds after a thread took its request.
CLOSE_TIMEOUT = 60.0
# The maximum number of connections that threads close at the same time.
MAX_CLOSING = 50

# The status for what gunicorn refuses, if it is not 400.
REFUSAL_STATUSES = {
    LimitRequestLine: 414,
    ExpectationFailed: 417,
    LimitRequestHeaders: 431,
    UnsupportedTransferCoding: 501,
}


class Worker(ThreadWorker):
    """A threaded worker that stalled clients cannot block for long.

    gunicorn calls `handle` and `handle_error` in the threads of its pool, and all other
    methods in the main thread.
    """

    def init_process(self) -> None:
        """Create what the worker needs in its own process."""
        # When each request was queued for a thread, and when a thread took it.
        self.queued_at: dict[TConn, float] = {}
        self.started_at: dict[TConn, float] = {}
        self.closing_threads = ThreadPoolExecutor(MAX_CLOSING)
        self.closing_slots = BoundedSemaphore(MAX_CLOSING)
        super().init_process()

    def load_wsgi(self) -> None:
        """Load the application, and mount it below SCRIPT_NAME.

        If the application cannot start, show why without a traceback.
        """
        try:
            super().load_wsgi()
        except ClickException as error:
            if not os.read(startup_error_pipe, 1):
                # Another worker has shown the error.
                raise SystemExit(0) from None
            error.show()
            raise SystemExit(error.exit_code) from None
        # gunicorn itself answers 500 to a path outside SCRIPT_NAME.
        prefix = os.environ.pop("SCRIPT_NAME", "").strip("/")
        if prefix:
            self.wsgi = mount(self.wsgi, f"/{prefix}")

    def enqueue_req(self, conn: TConn) -> None:
        """Queue a request for a thread, and record the time."""
        self.queued_at[conn] = monotonic()
        try:
            super().enqueue_req(conn)
        except RuntimeError:
            # No thread can start.
            del self.queued_at[conn]
            self.nr_conns -= 1
            shut_down(conn, socket.SHUT_RDWR)

    def handle(self, conn: TConn) -> Any:
        """Handle a request, and record when it was started."""
        self.started_at[conn] = monotonic()
        return super().handle(conn)

    def murder_pending(self) -> None:
        """Stop requests that take too long. It is called at least once a second."""
        super().murder_pending()
        now = monotonic()
        for conn, queued_at in self.queued_at.items():
            if now - self.started_at.get(conn, now) > CLOSE_TIMEOUT:
                shut_down(conn, socket.SHUT_RDWR)
            elif now - queued_at > READ_TIMEOUT:
                shut_down(conn, socket.SHUT_RD)

    def finish_request(self, conn: TConn, future: Future[Any]) -> None:
        """Keep the connection, or have a thread close it.

        A client that is still sending would lose the answer if its connection were
        closed at once (RFC 9112, section 9.6). gunicorn waits for that client in the
        main thread, and so makes all other clients wait.
        """
        self.queued_at.pop(conn, None)
        self.started_at.pop(conn, None)
        # The result is true if the connection stays open.
        if future.cancelled() or future.exception() or future.result():
            super().finish_request(conn, future)
            return
        self.nr_conns -= 1
        if not self.closing_slots.acquire(blocking=False):
            conn.close()
            return
        try:
            closed = self.closing_threads.submit(
                util.close_graceful, conn.sock, max_drain=2**30
            )
        except RuntimeError:
            # No thread can start.
            self.closing_slots.release()
            conn.close()
        else:
            closed.add_done_callback(lambda _: self.closing_slots.release())

    def handle_error(
        self, req: Any, client: socket.socket, addr: Any, exc: BaseException
    ) -> None:
        """Send the Error body for a request that does not reach the application."""
        if req is None and isinstance(exc, ParseException):
            status = REFUSAL_STATUSES.get(type(exc), 400)
            # The text of the error quotes the request, which may contain the key.
            self.log.warning("Refused a request: %s %s", addr, type(exc).__name__)
        elif req is not None and req.body.failed:
            # The application has answered, and has not read the malformed part.
            return
        else:
            status = 500
            self.log.exception("Error handling request")
        with suppress(OSError):
            send_error(client, status)


worker_class = Worker


def shut_down(conn: TConn, how: int) -> None:
    """Shut down one or both directions of a connection, if it is still open."""
    with suppress(OSError):
        conn.sock.shutdown(how)


# These two functions import errors.py only when they are called, in a worker. Otherwise
# the main process would keep the module, and a reload would not read it again.


def mount(application: Any, prefix: str) -> Any:
    """Return a WSGI application that serves another one below a path prefix."""
    from errors import RESPONSE_HEADERS, ServiceError, error_response

    document = f"{quote(prefix)}/v1/openapi.json"
    message = f"Nothing is at this path. {document} lists the paths of this service."
    not_found = error_response(ServiceError("not_found", message, 404))
    not_found.headers.extend(RESPONSE_HEADERS)
    # WSGI decodes paths as Latin-1 (PEP 3333).
    return DispatcherMiddleware(
        not_found, {prefix.encode().decode("latin-1"): application}
    )


def send_error(client: socket.socket, status: int) -> None:
    """Send the Error body, and announce that the connection is closed."""
    from errors import RESPONSE_HEADERS, standard_error_body

    body = standard_error_body(status)
    headers = {
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": len(body),
        **dict(RESPONSE_HEADERS),
    }
    lines = [f"{name}: {value}" for name, value in headers.items()]
    status_line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    util.write_nonblock(client, "\r\n".join([status_line, *lines, "", body]).encode())
