"""The service on several machines, with the pets in a cluster of rqlite nodes.

rqlite (https://rqlite.io) is SQLite on several machines. Every node has a copy of the
database. One of them, the leader, receives all writes; any other node forwards requests
to it. Any number of machines may run the service:

    export PETSTORE_API_KEYS=demo-key
    export RQLITE_NODES=node1.example:4001,node2.example:4001,node3.example:4001
    gunicorn --workers 2 'examples.rqlite:create_app()'

After a 201, the pet is on the disks of most nodes. After a 503, it may be stored, too:
the node may have stored it and failed before it answered.

Reads have rqlite's default level, weak: the leader answers from its own copy, and does
not ask the other nodes whether it is still the leader. When the leader changes, a read
may lack the newest pets for a moment. It never skips a pet: if a read has a pet, it has
all older ones. https://rqlite.io/docs/api/read-consistency/ describes the other levels.

A request may take longer than the five seconds that `Database` promises: each dead node
costs up to a second per address, and the answer may come in parts, three seconds each.
"""

import json
import os
import re
from http.client import HTTPConnection, HTTPException
from typing import Any

from flask import Flask

import app
import storage
from storage import Rows, StorageUnavailable, Values

# Seconds to wait for a node to accept a connection, and then for each part of its
# answer.
CONNECT_TIMEOUT = 1.0
ANSWER_TIMEOUT = 3.0

HEADERS = {
    "Content-Type": "application/json",
    # The node closes the connection. If this program did, its port would be blocked
    # for a minute (TIME_WAIT), and under load no port might be left.
    "Connection": "close",
}


def create_app() -> Flask:
    """Return the WSGI application. RQLITE_NODES has the HTTP addresses of the nodes."""
    nodes = [node.strip() for node in os.environ.get("RQLITE_NODES", "").split(",")]
    for node in nodes:
        if not re.fullmatch(r"[\w.-]+:\d+", node):
            raise app.StartError(
                f"RQLITE_NODES: {node!r} is not HOST:PORT; set it to the HTTP "
                "addresses of the nodes, as in node1.example:4001,node2.example:4001."
            )
    return app.create_app(database=Cluster(nodes))


class Cluster:
    """A Database: a cluster of rqlite nodes."""

    def __init__(self, nodes: list[str]) -> None:
        # In the order in which they are tried.
        self._nodes = nodes

    def read(self, sql: str, values: Values) -> Rows:
        """Return the rows of a query."""
        return self.write(sql, values)  # rqlite finds out that it changes nothing.

    def write(self, sql: str, values: Values) -> Rows:
        """Return the rows of a statement. Create the schema if it is missing."""
        statement = with_digits(sql, values)
        result = self._send(statement)
        if result.get("error") == "no such table: pets":
            result = self._send(
                [storage.CREATE_TABLE],
                [storage.CREATE_INDEX],
                [f"PRAGMA user_version = {storage.SCHEMA_VERSION}"],
                statement,
            )
        if "error" in result:
            raise StorageUnavailable(result["error"])
        return list(result.get("values", []))

    def _send(self, *statements: list[Any]) -> dict[str, Any]:
        """Send statements to a node, and return the result of the last one.

        If the node does not answer, no other node is asked: the statements may have
        been executed.
        """
        node, connection = self._connect()
        try:
            return post(connection, statements)
        # ValueError, LookupError and TypeError: the answer is not rqlite's JSON.
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            self._move_to_end(node)
            raise StorageUnavailable(f"{node}: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> tuple[str, HTTPConnection]:
        """Return the first node that accepts a connection, and the connection."""
        for node in self._nodes:
            connection = HTTPConnection(node, timeout=CONNECT_TIMEOUT)
            try:
                connection.connect()
            except (OSError, ValueError):  # ValueError: the name is not valid.
                self._move_to_end(node)
            else:
                connection.sock.settimeout(ANSWER_TIMEOUT)
                return node, connection
        raise StorageUnavailable(f"no connection to any of {', '.join(self._nodes)}")

    def _move_to_end(self, node: str) -> None:
        """Try this node last from now on."""
        # A new list: other threads may be reading the old one.
        self._nodes = [other for other in self._nodes if other != node] + [node]


def with_digits(sql: str, values: Values) -> list[Any]:
    """Return a statement that receives each text in hexadecimal digits.

    rqlite 8.31 and newer read a text like x'41' as a BLOB.
    """
    parameters = dict(values)
    for name, value in values.items():
        if isinstance(value, str):
            sql = re.sub(rf":{name}\b", f"CAST(unhex(:{name}) AS TEXT)", sql)
            parameters[name] = value.encode().hex()
    return [sql, parameters]


def post(connection: HTTPConnection, statements: object) -> dict[str, Any]:
    """Post statements to a node, and return the result of the last one."""
    connection.request("POST", "/db/request", json.dumps(statements), HEADERS)
    response = connection.getresponse()
    body = response.read().decode()
    if response.status != 200:
        raise HTTPException(body.strip())
    answer = json.loads(body)
    # If the leader changes meanwhile, there is an error instead of results.
    if not answer["results"]:
        raise HTTPException(answer["error"])
    return dict(answer["results"][-1])
