"""How gunicorn serves the application: https://gunicorn.org/reference/settings/

gunicorn reads its settings here by their names, and ignores other names. A setting can
be a function: gunicorn calls `pre_request` before each request. By default, gunicorn
listens on 127.0.0.1:8000, or on all addresses if the environment has PORT.
"""

import logging
from typing import Any

from gunicorn.util import close_graceful
from gunicorn.workers.gthread import ThreadWorker

# One process: if two of them write all the time, SQLite before 3.51.3, as in Debian 13,
# may lose a commit in very rare cases (sqlite.org/wal.html, section 11).
workers = 1
# A request keeps its thread while it waits for its client, or for a lock of another
# program. While one thread is free, other requests go on.
threads = 64
# Even an idle connection needs a file descriptor. Linux usually allows 1,024, and the
# worker ends if it needs more. 1,000 connections, the default, leave too few for files.
worker_connections = 900
# In bytes. By default, gunicorn refuses more than 4,094, in HTML. Behind nginx, as in
# deploy/nginx.conf, nginx refuses longer lines than this, with the Error body. (In
# HTTP/2, it passes on lines of up to 8,220 bytes.)
limit_request_line = 8190
# Call create_app before the fork (gunicorn copies itself to make the process that
# serves). If it raises StartError, gunicorn prints one line and ends.
preload_app = True

# By default, gunicorn logs starts and errors. With `--access-logfile -`, it logs each
# request, too: address, time, request line, status, bytes of the body, seconds. Not the
# user name (%(u)s) of Basic authentication: a line break in it would forge a line.
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# If a line cannot be written, for example because the disk is full, Python's logging
# would print all that gunicorn has passed to it: all headers, and so the key.
logging.raiseExceptions = False

# By default, gunicorn creates a socket to control it. Nothing here needs it.
control_socket_disable = True
# By default, the header SCRIPT_NAME of a proxy on this machine sets the prefix of our
# links (/store, for example). A proxy may pass on what a client has sent. Here, only
# the operator sets it, in the environment.
forwarder_headers = ""

# Not a setting, but a limit of gunicorn. A connection carries several requests. So if
# the service refuses one without reading its body, gunicorn reads and drops the body,
# to find the next request. But if the body has this many bytes or more, it closes the
# connection instead. (MAX_BODY in schemas.py is the same number by coincidence.)
MAX_UNREAD_BODY = 64 * 1024


def pre_request(worker: object, request: Any) -> None:
    """Let the response say `Connection: close` if gunicorn may close the connection.

    It is not known yet whether the service will read the body. A client that was not
    told may send its next request on this connection, and gets no response. A proxy
    shares its connections between clients, so this may be the request of another one.
    """
    # gunicorn has checked the headers, and writes their names in capitals.
    headers = dict(request.headers)
    is_long = int(headers.get("CONTENT-LENGTH", 0)) >= MAX_UNREAD_BODY
    # The length of a body in chunks is unknown, so it counts as a long one.
    if is_long or "TRANSFER-ENCODING" in headers:
        request.force_close()


class Worker(ThreadWorker):  # type: ignore[misc]
    """gunicorn's worker with threads, but a request's own thread closes its connection.

    Before gunicorn closes a connection, it tells the client that nothing follows, and
    drops what the client still sends, up to two seconds, and up to 64 KiB. (Otherwise,
    a client that is still sending might lose the response.) But it waits in the only
    thread that accepts connections, so all clients wait for one after the other. This
    worker waits in the thread of the request, and drops a body of any length.
    """

    def handle(self, conn: Any) -> Any:
        """Serve a request. Return False if the connection has to be closed.

        (After True, gunicorn waits for the next request on it.)
        """
        result = super().handle(conn)
        if result is False:
            close_graceful(conn.sock, max_drain=float("inf"))
            # Next, the thread that accepts connections calls conn.close(graceful=True).
            # It would fail, and gunicorn, which counts connections to accept at most
            # `worker_connections`, would subtract this one twice. (See "close_late" in
            # tests/test_server.py, for newer versions of gunicorn.)
            conn.close = lambda graceful: None
        return result


# Do not use gunicorn's option --worker-class: it would replace this class.
worker_class = Worker
