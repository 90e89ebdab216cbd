"""How gunicorn serves the application: every setting, and what it does by itself."""

import logging
import socket
from concurrent.futures import Future
from http import HTTPStatus
from threading import BoundedSemaphore, Thread
from typing import Any

from click import ClickException
from gunicorn import util
from gunicorn.workers.gthread import TConn, ThreadWorker

# One process, whatever WEB_CONCURRENCY says: all that write share one queue.
workers = 1
# More than may wait to write while another program holds the database: some are left
# for reads.
threads = 16
# With the 50 that linger, below the 256 files that macOS lets a process open: past its
# limit, the worker would end.
worker_connections = 100

# On standard output: address, time, request, status, bytes of the body, seconds. There
# is nothing among them in which a client could send a line of its own.
accesslog = "-"
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# A log that cannot be written would print the request, with its key, as a traceback.
logging.raiseExceptions = False

# Nobody steers the service but by signals.
control_socket_disable = True
# No client moves the application to another path with a header SCRIPT_NAME.
forwarder_headers = ""


class Worker(ThreadWorker):
    """gunicorn's worker with threads, but for its start and the end of a connection."""

    lingering = BoundedSemaphore(50)

    def load_wsgi(self) -> None:
        """Load the application; where it cannot start, show why without a traceback."""
        try:
            super().load_wsgi()
        except ClickException as error:
            error.show()
            raise SystemExit(error.exit_code) from None

    def handle_error(
        self, req: Any, client: socket.socket, addr: Any, exc: BaseException
    ) -> None:
        """Refuse a request, but not one that has its answer and goes on malformed.

        A second answer would be taken for that to the next request.
        """
        if req is None or not req.body.failed:
            super().handle_error(req, client, addr, exc)

    def finish_request(self, conn: TConn, future: Future[Any]) -> None:
        """Close a connection without making the others wait.

        Its client may still be sending, and would lose the answer if it were closed at
        once (RFC 9112, section 9.6). gunicorn waits for it in the loop that serves all
        others; here a thread waits, or nobody where many do.
        """
        if future.cancelled() or future.exception() or future.result():
            super().finish_request(conn, future)
            return
        self.nr_conns -= 1
        if self.lingering.acquire(blocking=False):
            Thread(target=self.linger, args=[conn.sock], daemon=True).start()
        else:
            conn.close()

    def linger(self, sock: socket.socket) -> None:
        """Close a connection once its client has, or two seconds later."""
        try:
            util.close_graceful(sock, max_drain=2**30)
        finally:
            self.lingering.release()


worker_class = Worker


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


# gunicorn has no setting for it.
util.write_error = write_error
