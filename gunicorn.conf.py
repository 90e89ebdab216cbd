"""How gunicorn serves the application: https://docs.gunicorn.org/en/stable/settings.html

It listens on 127.0.0.1:8000, or on all addresses if PORT is set.
"""

import logging

# Writes that arrive at the same time share a commit only in one process.
workers = 1
# A write that waits for a lock of another program keeps its thread. 64 threads are more
# than usually wait, so that reads go on.
threads = 64
# create_app runs once, before the fork. If it fails, gunicorn prints one line and ends.
preload_app = True

# Address, time, request line, status, bytes of the body, seconds. No header field: the
# user name in an Authorization header could contain a line break, and forge a line.
accesslog = "-"
access_log_format = '%(h)s %(t)s "%(r)s" %(s)s %(B)s %(L)s'
# Otherwise, a log that cannot be written would print the request with its key.
logging.raiseExceptions = False

# Nobody needs gunicorn's control socket.
control_socket_disable = True
# A client on the same machine cannot set SCRIPT_NAME by a header.
forwarder_headers = ""
