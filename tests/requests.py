"""One table of requests: each failure, and each example of the OpenAPI document."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask.testing import FlaskClient

from tests.checks import PET, REMOVED_AT, add_pets

# What happens before a request.


def five_pets(client: FlaskClient, _: pytest.MonkeyPatch) -> None:
    add_pets(client, "available", "sold", "available", "sold", "sold")


def bug(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in (views := client.application.view_functions):
        monkeypatch.setitem(views, endpoint, lambda **_: str(1 / 0))


def no_file(client: FlaskClient, _: pytest.MonkeyPatch) -> None:
    database = Path(client.application.config["DATABASE"])
    database.rename(database.with_suffix(".away"))


def removal(_: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: REMOVED_AT)


class Request(NamedTuple):
    """A request, the answer to it, and the example of the document that it shows.

    The example is an operation and a name; both are empty where the document has none.
    The code is empty where the answer is no failure.
    """

    operation: str
    example: str
    method: str
    path: str
    options: dict[str, Any]
    status: int
    code: str = ""
    before: Callable[[FlaskClient, pytest.MonkeyPatch], None] | None = None

    def send(self, client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Let happen what happens before, and return the answer."""
        if self.before:
            self.before(client, monkeypatch)
        return client.open(self.path, method=self.method, **self.options)


def header(name: str, value: str, **options: Any) -> dict[str, Any]:
    return {"headers": {name: value}, **options}


NO_KEY = header("Authorization", "")
BAD_KEY = header("Authorization", "Bearer other")
TOM = {"name": "Tom", "categoryId": 2, "status": "pending"}
JSON = {"json": PET}
NO_CATEGORY = {"json": {"name": "Rex"}}
UPGRADE = {"headers": {"Connection": "Upgrade", "Upgrade": "websocket"}}
TOO_LARGE = {"json": {"name": "x" * 65_536, "categoryId": 1}}
GZIP = header("Content-Encoding", "gzip", **JSON)
TEXT = header("Content-Type", "text/plain", **JSON)
LIST, CREATE, GET, DOCUMENT = "listPets", "createPet", "getPet", "getOpenapi"
PETS, REX, OPENAPI = "/v1/pets", "/v1/pets/1", "/v1/openapi.json"
SOLD = "/v1/pets?limit=2&status=sold&after=1"
MISSING, INVALID = "missing_api_key", "invalid_api_key"
NOT_ALLOWED, ERROR, BUSY = "method_not_allowed", "internal_error", "storage_unavailable"
BAD_QUERY, BAD_PET, NO_JSON = "invalid_query", "invalid_body", "malformed_body"
LARGE, MEDIA = "body_too_large", "unsupported_media_type"
NO_PATH, NO_PET = "not_found", "pet_not_found"

REQUESTS = [
    Request(LIST, "page", "GET", SOLD, {}, 200, before=five_pets),
    Request(LIST, BAD_QUERY, "GET", "/v1/pets?limit=0", {}, 400, BAD_QUERY),
    Request(LIST, MISSING, "GET", PETS, NO_KEY, 401, MISSING),
    Request(LIST, INVALID, "GET", PETS, BAD_KEY, 401, INVALID),
    Request(LIST, NOT_ALLOWED, "DELETE", PETS, {}, 405, NOT_ALLOWED),
    Request(LIST, ERROR, "GET", PETS, {}, 500, ERROR, bug),
    Request(LIST, BUSY, "GET", PETS, {}, 503, BUSY, no_file),
    Request(CREATE, "least", "POST", PETS, JSON, 201),
    Request(CREATE, "whole", "POST", PETS, {"json": TOM}, 201),
    Request(CREATE, NO_JSON, "POST", PETS, {}, 400, NO_JSON),
    Request(CREATE, BAD_PET, "POST", PETS, NO_CATEGORY, 400, BAD_PET),
    Request(CREATE, MISSING, "POST", PETS, NO_KEY, 401, MISSING),
    Request(CREATE, INVALID, "POST", PETS, BAD_KEY, 401, INVALID),
    Request(CREATE, NOT_ALLOWED, "DELETE", PETS, {}, 405, NOT_ALLOWED),
    Request(CREATE, LARGE, "POST", PETS, TOO_LARGE, 413, LARGE),
    Request(CREATE, "media_type", "POST", PETS, TEXT, 415, MEDIA),
    Request(CREATE, "encoding", "POST", PETS, GZIP, 415, MEDIA),
    Request(CREATE, ERROR, "POST", PETS, JSON, 500, ERROR, bug),
    Request(CREATE, BUSY, "POST", PETS, JSON, 503, BUSY, no_file),
    Request(GET, "found", "GET", REX, {}, 200, before=five_pets),
    Request(GET, MISSING, "GET", REX, NO_KEY, 401, MISSING),
    Request(GET, INVALID, "GET", REX, BAD_KEY, 401, INVALID),
    Request(GET, NO_PET, "GET", REX, {}, 404, NO_PET),
    Request(GET, NO_PATH, "GET", "/v1/pets/a%2Fb", {}, 404, NO_PATH),
    Request(GET, NOT_ALLOWED, "DELETE", REX, {}, 405, NOT_ALLOWED),
    Request(GET, "gone", "GET", REX, {}, 410, "gone", removal),
    Request(GET, ERROR, "GET", REX, {}, 500, ERROR, bug),
    Request(GET, BUSY, "GET", REX, {}, 503, BUSY, no_file),
    Request(DOCUMENT, NOT_ALLOWED, "DELETE", OPENAPI, {}, 405, NOT_ALLOWED),
    Request(DOCUMENT, ERROR, "GET", OPENAPI, {}, 500, ERROR, bug),
    Request("", "", "GET", "/v1/pets/", {}, 404, NO_PATH),
    Request("", "", "POST", "/v1//pets", JSON, 404, NO_PATH),
    Request("", "", "GET", "/v1/store/orders", {}, 404, NO_PATH),
    Request("", "", "GET", "/static/app.py", {}, 404, NO_PATH),
    Request("", "", "OPTIONS", "/v1/x", {}, 404, NO_PATH),
    Request("", "", "TRACE", PETS, {}, 405, NOT_ALLOWED),
    Request("", "", "POST", REX, JSON, 405, NOT_ALLOWED),
    Request("", "", "POST", "/", {}, 405, NOT_ALLOWED),
    Request("", "", "POST", "/healthz", {}, 405, NOT_ALLOWED),
    Request("", "", "GET", "/healthz", UPGRADE, 400, "bad_request"),
    Request("", "", "HEAD", PETS, {}, 200),
    Request("", "", "OPTIONS", PETS, {}, 200),
    Request("", "", "GET", "/healthz", {}, 200),
    Request("", "", "GET", OPENAPI, NO_KEY, 200),
    Request("", "", "GET", "/", NO_KEY, 200),
]
