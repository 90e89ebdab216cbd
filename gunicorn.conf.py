"""How gunicorn serves the application: https://gunicorn.org/reference/settings/

By default, it listens on 127.0.0.1:8000, or on all addresses if PORT is set.
"""

import logging
from typing import Any

# One process, so one connection writes: before SQLite 3.51.3, a checkpoint could lose a
# commit of another connection (sqlite.org/wal.html, section 11).
workers = 1
# A write that waits for a lock of another program keeps its thread. The other threads
# remain for reads.
threads = 64
# Even an idle connection needs a file descriptor. With 1,000 connections, the default,
# gunicorn would reach the usual limit of 1,024 descriptors, which ends its worker.
worker_connections = 900
# The most that gunicorn allows. deploy/nginx.conf refuses a longer request line.
limit_request_line = 8190
# Call create_app before the fork (gunicorn copies itself to make the process that
# serves). If it raises StartError, gunicorn prints one line and ends.
preload_app = True

# By default, gunicorn logs starts and errors. With `--access-logfile -`, it logs each
# request, too: address, time, request line, status, bytes of the body, seconds. Not the
# user name (%(u)s) of Basic authentication: a line break in it would forge a line.
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# If this log cannot be written, Python would print the request with its key.
logging.raiseExceptions = False

# By default, gunicorn creates a socket for commands.
control_socket_disable = True
# By default, a client on the same machine may set SCRIPT_NAME, the prefix of our links,
# in a header.
forwarder_headers = ""


def pre_request(worker: object, request: Any) -> None:
    """Let gunicorn close the connection after two kinds of requests, and announce it.

    One has a body that may stay unread: if the service refuses a request, it does not
    read the body. After the response, gunicorn reads less than 64 KiB of it (a limit of
    its own). If more follows, it closes the connection. A client that does not know
    this sends its next request there, and loses it. Behind a proxy, this may be the
    request of another client.

    The other is a POST of a browser, which sends Origin with it: if a kept connection
    breaks, Chromium sends the POST again.
    """
    headers = dict(request.headers)
    length = int(headers.get("CONTENT-LENGTH", 0))
    may_stay_unread = length >= 64 * 1024 or "TRANSFER-ENCODING" in headers
    is_of_browser = request.method == "POST" and "ORIGIN" in headers
    if may_stay_unread or is_of_browser:
        request.force_close()  # The response says `Connection: close`.
