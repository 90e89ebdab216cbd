"""How gunicorn serves the application: https://gunicorn.org/reference/settings/

By default, it listens on 127.0.0.1:8000, or on all addresses if PORT is set.
"""

import logging
from typing import Any

# One process, so one connection writes: with two that write, a checkpoint could lose a
# commit before SQLite 3.51.3 (sqlite.org/wal.html, section 11).
workers = 1
# A write that waits for a lock of another program keeps its thread. The other threads
# remain for reads.
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
# If this log cannot be written, Python would print the request with its key.
logging.raiseExceptions = False

# By default, gunicorn creates a socket for commands.
control_socket_disable = True
# By default, a client on the same machine may set SCRIPT_NAME, the prefix of our links,
# in a header.
forwarder_headers = ""


def pre_request(worker: object, request: Any) -> None:
    """Announce the close of a connection after two kinds of requests, and close it.

    - A large body may stay unread, because the service refuses the request first. After
      the response, gunicorn reads less than 64 KiB of it. If more follows, it closes
      the connection. A client that was not told loses the next request that it sends
      there. Behind a proxy, this may be the request of another client.
    - Chromium repeats a POST if a kept connection breaks. A browser's POST has Origin.
    """
    headers = dict(request.headers)
    length = int(headers.get("CONTENT-LENGTH", 0))
    may_stay_unread = length >= 64 * 1024 or "TRANSFER-ENCODING" in headers
    is_of_browser = request.method == "POST" and "ORIGIN" in headers
    if may_stay_unread or is_of_browser:
        request.force_close()  # The response says `Connection: close`.
