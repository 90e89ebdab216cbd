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
# A request keeps its thread while it waits for a lock of another program, or for its
# client. If 60 requests wait, four threads remain for the others.
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

# By default, gunicorn creates a socket through which programs can control it. Nothing
# here needs it.
control_socket_disable = True
# By default, a header of a proxy on this machine may set SCRIPT_NAME, the prefix of our
# links. A proxy may pass on what a client has sent. Here, only the operator sets it.
forwarder_headers = ""


def pre_request(worker: object, request: Any) -> None:
    """Let the response say `Connection: close` if gunicorn may close the connection.

    The service may refuse a request before it has read the body. Then gunicorn reads
    the rest, if it is less than 64 KiB, or closes the connection. A client that was not
    told may send its next request there, and loses it. Behind a proxy, this may be the
    request of another client.
    """
    headers = dict(request.headers)
    is_long = int(headers.get("CONTENT-LENGTH", 0)) >= 64 * 1024
    # The length of a body in chunks is unknown.
    if is_long or "TRANSFER-ENCODING" in headers:
        request.force_close()


def post_request(
    worker: object, request: object, environ: object, response: Any
) -> None:
    """Wait until the client has closed a connection that ends with this response.

    If the server closed it at once, a client that is still sending might not receive
    the response. So gunicorn waits for up to two seconds. It waits in the thread that
    accepts connections, so all other clients would wait, too. Before that, it calls
    this hook in the thread of the request: the wait happens here.
    """
    # There is no response if gunicorn itself refuses the request.
    if response and response.should_close():
        connection = response.sock
        with suppress(OSError):  # The client may have closed the connection.
            # close_graceful tells the client that nothing more comes, waits for it, and
            # closes what it gets: a second descriptor. gunicorn still needs the first.
            duplicate = fromfd(connection.fileno(), connection.family, connection.type)
            close_graceful(duplicate)
            # From here on, reading ends at once, so gunicorn does not wait again.
            connection.shutdown(SHUT_RD)
