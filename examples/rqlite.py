"""The service on several machines, with the pets in a cluster of rqlite nodes.

rqlite (https://rqlite.io) is SQLite on several machines. Every node has a copy of the
database. One of them, the leader, receives all writes; any other node forwards requests
to it. Any number of machines may run the service:

    export PETSTORE_API_KEYS=demo-key
    export RQLITE_NODES=10.0.0.1:4001,10.0.0.2:4001,10.0.0.3:4001
    gunicorn --workers 2 'examples.rqlite:create_app()'

After a 201, the pet is on the disks of most nodes. After a 503, it may be stored, too:
the node may have stored it and failed before it answered.

Reads have rqlite's default level, weak: the leader answers from its own copy, and does
not ask the other nodes whether it is still the leader. When the leader changes, a read
may lack the newest pets for a moment. It never skips a pet: if a read has a pet, it has
all older ones. https://rqlite.io/docs/api/read-consistency/ describes the other levels.
"""

import json
import os
import re
from http.client import HTTPConnection, HTTPException
from typing import Any

from flask import Flask

import app
import storage
from storage import StorageUnavailable

# Seconds to wait for a node to accept a connection, and then for each part of its
# answer.
CONNECT_TIMEOUT = 1.0
ANSWER_TIMEOUT = 3.0

# The name comes in hexadecimal digits, because rqlite 8.31 and newer read a text like
# x'41' as a BLOB.
INSERT_PET = f"""
    INSERT INTO pets (name, category_id, status)
    VALUES (CAST(unhex(:name) AS TEXT), :category_id, :status)
    RETURNING id, {storage.PET_JSON}
"""

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
                "addresses of the nodes, as in 10.0.0.1:4001,10.0.0.2:4001."
            )
    return app.create_app(store=RqliteStore(nodes))


class RqliteStore(storage.Store):
    """The pets in an rqlite cluster."""

    def __init__(self, nodes: list[str]) -> None:
        # In the order in which they are tried.
        self._nodes = nodes

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        """Return a page as a JSON array, and its last id if another page follows."""
        sql = storage.SELECT_PAGE if status is None else storage.SELECT_PAGE_OF_STATUS
        rows = self._execute(sql, limit=limit, status=status, after=after)
        return storage.to_page(rows, limit)

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        """Store a pet, and return its id and its JSON."""
        digits = name.encode().hex()
        [(pet_id, pet)] = self._execute(
            INSERT_PET, name=digits, category_id=category_id, status=status
        )
        return pet_id, pet

    def get(self, pet_id: int) -> str | None:
        """Return the JSON of a pet, or None if no pet has this id."""
        rows = self._execute(storage.SELECT_PET, id=pet_id)
        return rows[0][0] if rows else None

    def check(self) -> None:
        """Raise StorageUnavailable if the cluster cannot answer a query."""
        self._execute(storage.READ_PROBE)

    def _execute(self, sql: str, **values: object) -> list[Any]:
        """Return the rows of a statement. Create the schema if it is missing."""
        statement = [sql, values]
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
