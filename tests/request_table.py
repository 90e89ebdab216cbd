"""The table of requests and their responses, shared by several test modules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient

from tests.helpers import NEW_PET, REMOVAL, add_pets, set_clock

# What is done before a request is sent.


def five_pets(client: FlaskClient, _: pytest.MonkeyPatch) -> None:
    add_pets(client, "available", "sold", "available", "sold", "sold")


def broken_views(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in (views := client.application.view_functions):
        monkeypatch.setitem(views, endpoint, lambda **_: str(1 / 0))


def missing_file(client: FlaskClient, _: pytest.MonkeyPatch) -> None:
    database = Path(client.application.config["DATABASE"])
    database.rename(database.with_suffix(".moved"))


def after_removal_date(_: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, REMOVAL)


class Request(NamedTuple):
    """A request, the status of its response, and the code if it is an error."""

    method: str
    path: str
    status: int
    code: str = ""
    prepare: Callable[[FlaskClient, pytest.MonkeyPatch], None] | None = None
    json: object = None
    headers: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status}"

    def send(
        self, client: FlaskClient, monkeypatch: pytest.MonkeyPatch, **headers: str
    ) -> Any:
        """Prepare the application, send the request, and return the response."""
        if self.prepare:
            self.prepare(client, monkeypatch)
        headers = {**self.headers, **headers}
        return client.open(
            self.path, method=self.method, json=self.json, headers=headers
        )


TOM = {"name": "Tom", "categoryId": 2, "status": "pending"}
LARGE = {"name": "x" * 65_536, "categoryId": 1}
NO_KEY, BAD_KEY = {"Authorization": ""}, {"Authorization": "Bearer other"}
TEXT, GZIP = {"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}
# Werkzeug refuses a WebSocket.
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


def shared_failures(
    method: str, path: str, json: dict[str, object] | None = None
) -> list[Request]:
    """Return the failures that operations have in common.

    `json` is a body that the operation accepts, or None if it takes none.
    """
    rows = [
        Request(method, path, 401, "missing_api_key", json=json, headers=NO_KEY),
        Request(method, path, 401, "invalid_api_key", json=json, headers=BAD_KEY),
        # No path takes TRACE.
        Request("TRACE", path, 405, "method_not_allowed"),
        Request(method, path, 500, "internal_error", broken_views, json),
        Request(method, path, 503, "storage_unavailable", missing_file, json),
    ]
    if json is None:
        return rows
    return [
        *rows,
        Request(method, path, 400, "malformed_body"),
        Request(method, path, 400, "malformed_body", headers=TEXT),
        Request(method, path, 400, "invalid_body", json=[json]),
        Request(method, path, 413, "body_too_large", json=LARGE),
        Request(method, path, 415, "unsupported_media_type", json=LARGE, headers=TEXT),
        Request(method, path, 415, "unsupported_media_type", json=json, headers=GZIP),
    ]


REQUESTS = [
    # Operations. Each status and code of an operation in openapi.json has a row.
    Request("GET", "/v1/pets", 200),
    Request("GET", "/v1/pets?limit=2&status=sold&after=1", 200, prepare=five_pets),
    Request("GET", "/v1/pets?limit=0", 400, "invalid_query"),
    *shared_failures("GET", "/v1/pets"),
    Request("POST", "/v1/pets", 201, json=NEW_PET),
    Request("POST", "/v1/pets", 201, json=TOM),
    *shared_failures("POST", "/v1/pets", NEW_PET),
    Request("GET", "/v1/pets/1", 200, prepare=five_pets),
    Request("GET", "/v1/pets/1", 404, "pet_not_found"),
    Request("GET", "/v1/pets/a%2Fb", 404, "not_found"),
    Request("GET", "/v1/pets/", 404, "not_found"),
    Request("GET", "/v1/pets/1", 410, "gone", after_removal_date),
    *shared_failures("GET", "/v1/pets/1"),
    Request("GET", "/v1/openapi.json", 200, headers=NO_KEY),
    Request("TRACE", "/v1/openapi.json", 405, "method_not_allowed"),
    Request("GET", "/v1/openapi.json", 500, "internal_error", broken_views),
    # Other paths and methods.
    # A %2F is a slash, and the service accepts any Host.
    Request("GET", "/v1%2Fpets", 200, headers={"Host": "pet_store:8000"}),
    Request("HEAD", "/v1/pets", 200),
    Request("OPTIONS", "/v1/pets", 200, headers=NO_KEY),
    Request("OPTIONS", "/v1/x", 404, "not_found", headers=NO_KEY),
    Request("POST", "/v1//pets", 404, "not_found", json=NEW_PET),
    Request("GET", "/v1/store/orders", 404, "not_found"),
    Request("GET", "/v1/openapi.json/", 404, "not_found"),
    Request("GET", "/v1/", 404, "not_found"),
    Request("GET", "/v1", 404, "not_found", headers=NO_KEY),
    Request("GET", "/v10/pets", 404, "not_found", headers=NO_KEY),
    Request("GET", "/static/app.py", 404, "not_found", headers=NO_KEY),
    Request("GET", "/", 200, headers=NO_KEY),
    Request("GET", "/healthz", 200, headers=NO_KEY),
    Request("GET", "/healthz", 400, "bad_request", headers=UPGRADE),
    Request(
        "GET", "/healthz", 503, "storage_unavailable", missing_file, headers=NO_KEY
    ),
]
