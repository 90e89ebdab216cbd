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
# A request keeps its thread while it waits, for a lock of another program or for its
# client. If 60 requests wait, four threads remain for the others.
threads = 64
# Even an idle connection needs a file descriptor. With 1,000 connections, the default,
# gunicorn would reach the usual limit of 1,024 descriptors, which ends its worker.
worker_connections = 900
# The highest limit of gunicorn. Behind deploy/nginx.conf, nginx refuses longer ones.
limit_request_line = 8190
# Call create_app before the fork (gunicorn copies itself to make the process that
# serves). If it raises StartError, gunicorn prints one line and ends.
preload_app = True

# By default, gunicorn logs starts and errors. With `--access-logfile -`, it logs each
# request, too: address, time, request line, status, bytes of the body, seconds. Not the
# user name (%(u)s) of Basic authentication: a line break in it would forge a line.
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# If a line cannot be written, for example because the disk is full, Python's logging
# would print what gunicorn gave it to the standard error: all headers, with the key.
logging.raiseExceptions = False

# By default, gunicorn creates a socket through which programs can control it.
control_socket_disable = True
# By default, a header of a proxy on this machine may set SCRIPT_NAME, the prefix of our
# links. A client may have forged it. Here, only the operator sets it.
forwarder_headers = ""


def pre_request(worker: object, request: Any) -> None:
    """Announce that the connection ends, if the body may stay unread.

    The service may refuse a request before it has read the body. After the response,
    gunicorn reads up to 64 KiB of the rest. If more follows, it closes the connection.
    A client that was not told loses the next request that it sends there. Behind a
    proxy, this may be another client's.
    """
    headers = dict(request.headers)
    is_large = int(headers.get("CONTENT-LENGTH", 0)) >= 64 * 1024
    if is_large or "TRANSFER-ENCODING" in headers:
        request.force_close()  # The response says `Connection: close`.


def post_request(
    worker: object, request: object, environ: object, response: Any
) -> None:
    """Wait for a client that has to close its connection after the response.

    gunicorn waits for up to two seconds, because the client may still be reading. It
    waits in the thread that accepts connections, so all other clients would wait, too.
    This hook runs in the thread of the request, and waits there instead.
    """
    # There is no response if gunicorn itself refuses the request.
    if response and response.should_close():
        connection = response.sock
        with suppress(OSError):  # The client may have closed the connection.
            duplicate = fromfd(connection.fileno(), connection.family, connection.type)
            # This waits, and closes the duplicate. gunicorn closes the connection.
            close_graceful(duplicate)
            # If the client has not closed it even now, gunicorn does not wait again.
            connection.shutdown(SHUT_RD)
