"""How gunicorn serves the application: https://gunicorn.org/reference/settings/

By default, it listens on 127.0.0.1:8000, or on all addresses if PORT is set.
"""

import logging
from contextlib import suppress
from socket import SHUT_RD, fromfd
from typing import Any

from gunicorn.util import close_graceful

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
# deploy/nginx.conf, nginx refuses longer lines than this, with the Error body.
limit_request_line = 8190
# Call create_app before the fork (gunicorn copies itself to make the process that
# serves). If it raises StartError, gunicorn prints one line and ends.
preload_app = True

# By default, gunicorn logs starts and errors. With `--access-logfile -`, it logs each
# request, too: address, time, request line, status, bytes of the body, seconds. Not the
# user name (%(u)s) of Basic authentication: a line break in it would forge a line.
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# If a line cannot be written, for example because the disk is full, Python's logging
# would print all arguments of gunicorn's call: all headers, and so the key.
logging.raiseExceptions = False

# By default, gunicorn creates a socket to control it. Nothing here needs it.
control_socket_disable = True
# By default, the header SCRIPT_NAME of a proxy on this machine sets the prefix of our
# links. A proxy may pass on what a client has sent. Here, only the operator sets it.
forwarder_headers = ""

# Not a setting, but gunicorn's own limit. If the service refuses a request and does not
# read its body, gunicorn reads this much of it. After more, it closes the connection.
MAX_UNREAD_BODY = 64 * 1024


def pre_request(worker: object, request: Any) -> None:
    """Let the response say `Connection: close` if gunicorn may close the connection.

    A client that was not told sends its next request on this connection, and loses it.
    Behind a proxy, this may be the request of another client.
    """
    headers = dict(request.headers)
    is_long = int(headers.get("CONTENT-LENGTH", 0)) >= MAX_UNREAD_BODY
    # The length of a body in chunks is unknown.
    if is_long or "TRANSFER-ENCODING" in headers:
        request.force_close()


def post_request(
    worker: object, request: object, environ: object, response: Any
) -> None:
    """Wait until the client closes a connection that ends with this response.

    Otherwise, a client that is still sending might not receive the response. gunicorn
    itself waits later, for up to two seconds, in the thread that accepts connections:
    all other clients would wait, too. This hook runs in the thread of the request.
    """
    # `response` is None if gunicorn itself refuses the request.
    if response and response.should_close():
        connection = response.sock
        with suppress(OSError):  # The client may have closed the connection.
            # gunicorn's function waits, and closes the socket that it gets. gunicorn
            # needs this socket until the end, so the function gets a duplicate.
            duplicate = fromfd(connection.fileno(), connection.family, connection.type)
            close_graceful(duplicate)
            # From here on, reading ends at once, so gunicorn does not wait again.
            connection.shutdown(SHUT_RD)
