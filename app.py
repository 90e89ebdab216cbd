"""The application: its settings, its routes, and how the other modules are connected.

The contract is the Animal Store Service Interface 1.0.0. openapi.json describes it.
"""

import json
import os
import weakref
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from click import ClickException
from flask import Blueprint, Flask, Response, abort, current_app, request, url_for
from werkzeug.exceptions import HTTPException
from werkzeug.http import http_date

import auth
import errors
import schemas
from errors import ServiceError
from sqlite_file import SqliteFile
from storage import Database, InMemory, PetStore, StorageUnavailable

# Our decision, because the contract names no date: the day of the first version.
DEPRECATED_AT = datetime(2026, 11, 20, tzinfo=UTC)
# The contract: "is removed on 5 December 2030. Until then it is available."
REMOVED_AT = datetime(2030, 12, 5, tzinfo=UTC)
GET_PET_HEADERS = {
    "Deprecation": f"@{DEPRECATED_AT.timestamp():.0f}",  # In seconds (RFC 9745).
    "Sunset": http_date(REMOVED_AT),  # RFC 8594
}

# The headers of every response.
RESPONSE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # CORS (developer.mozilla.org/docs/Web/HTTP/Guides/CORS): any page may call the
    # service. This is safe: browsers send cookies automatically, but never this key.
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Deprecation, Link, Location, Retry-After, Sunset",
}
# Read at import: an upgrade replaces these files while the old version still runs.
PAGE = Path(__file__).with_name("index.html").read_text("utf-8")
OPENAPI = json.loads(Path(__file__).with_name("openapi.json").read_bytes())

# index.html loads nothing from other hosts, and sends requests to this service only.
# The browser runs the script with this hash, and no other.
# https://developer.mozilla.org/docs/Web/HTTP/Guides/CSP
SCRIPT = PAGE.partition("<script>")[2].partition("</script>")[0]
SCRIPT_HASH = b64encode(sha256(SCRIPT.encode()).digest()).decode()
PAGE_POLICY = (
    f"default-src 'none'; script-src 'sha256-{SCRIPT_HASH}'; "
    "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# v1 needs a key, public does not. The endpoint of an operation is its operationId.
v1 = Blueprint("v1", __name__, url_prefix="/v1")
public = Blueprint("public", __name__)


class StartError(ClickException, RuntimeError):
    """The service cannot start. The message is one line that says why.

    Flask's command line shows a ClickException as one line, without a traceback. So
    does gunicorn with a RuntimeError, while it preloads (gunicorn.conf.py).
    """

    def __init__(self, message: str) -> None:
        # A path or an error of SQLite may contain line breaks.
        super().__init__(" ".join(message.splitlines()))


def create_app(
    config: Mapping[str, Any] | None = None, database: Database | None = None
) -> Flask:
    """Return the WSGI application.

    API_KEYS and DATABASE are taken from `config`, or from PETSTORE_API_KEYS and
    PETSTORE_DATABASE in the environment. If `database` is given, DATABASE is ignored.
    Raise StartError if a setting cannot be used.
    """
    # Without a static_folder, /static/... is a 404 for every method.
    app = Flask(__name__, static_folder=None)
    app.config.from_mapping(
        API_KEYS=os.environ.get("PETSTORE_API_KEYS"),
        DATABASE=os.environ.get("PETSTORE_DATABASE"),
        MAX_CONTENT_LENGTH=64 * 1024,
    )
    app.config.from_mapping(config)
    # /v1//pets is a 404. By default, it is a redirect, in HTML.
    app.url_map.merge_slashes = False
    # app.extensions lives as long as the application. g lives only for one request.
    app.extensions["api_keys"] = read_api_keys(app)
    if database is None:
        app.extensions["store"] = open_store(app)
    else:
        app.extensions["store"] = PetStore(database)
    app.register_blueprint(v1)
    app.register_blueprint(public)
    app.after_request(add_headers)
    # A ServiceError is an HTTPException. Flask logs the traceback of a bug, and turns
    # the bug into an HTTPException, too.
    app.register_error_handler(HTTPException, errors.error_response)
    app.register_error_handler(StorageUnavailable, errors.unavailable_response)
    return app


def read_api_keys(app: Flask) -> list[bytes]:
    """Return the keys in the setting API_KEYS, or raise StartError."""
    try:
        return auth.parse_keys(app.config["API_KEYS"])
    except ValueError as error:
        raise StartError(f"PETSTORE_API_KEYS: {error}.") from error


def open_store(app: Flask) -> PetStore:
    """Return the store for the setting DATABASE, or raise StartError."""
    path = app.config["DATABASE"]
    database: InMemory | SqliteFile
    try:
        if not path:
            Path(app.instance_path).mkdir(exist_ok=True)
            path = Path(app.instance_path, "pets.db")
        # It may be a str or a Path. Path raises TypeError for anything else.
        path = str(Path(path))
        database = InMemory() if path == ":memory:" else SqliteFile(path)
    except StorageUnavailable as error:
        raise StartError(f"PETSTORE_DATABASE: {error}.") from error
    except (OSError, TypeError, ValueError) as error:
        # The default folder cannot be created, or the path is not valid.
        reason = f"{error}; set it to the path of a file"
        raise StartError(f"PETSTORE_DATABASE: {reason}.") from error
    store = PetStore(database)
    # Python calls this when the program ends, or when nothing refers to the store.
    weakref.finalize(store, database.close)
    return store


@v1.before_request
def check_request() -> None:
    """Refuse an id that no pet can have, and a request without a valid key."""
    # No id exceeds MAX_INT64. With <int(max=...)>, some of these 404s would become 405s
    # once this path has a second method.
    if request.view_args and request.view_args.get("pet_id", 0) > schemas.MAX_INT64:
        abort(404)
    # Browsers send OPTIONS without the key.
    if request.method != "OPTIONS":
        auth.require_key(current_app.extensions["api_keys"])


def add_headers(response: Response) -> Response:
    """Add the headers of every response.

    Before a page of another origin sends a request with a key, the browser sends a
    preflight request: OPTIONS asks which methods and headers the page may use.
    """
    headers = response.headers
    headers.update(RESPONSE_HEADERS)
    # Flask answers OPTIONS, with the methods of the path in Allow. A 404 has no Allow.
    if request.method == "OPTIONS" and "Allow" in headers:
        headers["Access-Control-Allow-Methods"] = headers["Allow"]
        # * allows every header but Authorization.
        headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type, *"
        headers["Access-Control-Max-Age"] = "7200"
    return response


@v1.get("/pets", endpoint="listPets")
def list_pets() -> Response:
    """List animals: one page, with a Link to the next one (RFC 8288)."""
    query = schemas.parse_list_query(request.query_string)
    page, last_id = get_store().list_page(**query)
    if last_id is None:
        return json_response(page)
    # The dot means: in this blueprint. url_for leaves out a status that is None.
    target = url_for(".listPets", **{**query, "after": last_id})
    return json_response(page, headers={"Link": f'<{target}>; rel="next"'})


@v1.post("/pets", endpoint="createPet")
def create_pet() -> Response:
    """Add an animal."""
    new_pet = schemas.parse_body(schemas.NEW_PET)
    pet_id, pet = get_store().add(**new_pet)
    if now() >= REMOVED_AT:  # Location would name getPet, which is gone.
        return json_response(pet, 201)
    return json_response(pet, 201, {"Location": url_for(".getPet", pet_id=pet_id)})


@v1.get("/pets/<int:pet_id>", endpoint="getPet")
def get_pet(pet_id: int) -> Response:
    """Get an animal. Deprecated: from 5 December 2030 on, the answer is 410."""
    pets = url_for(".listPets")
    # RFC 5829 defines successor-version.
    headers = {**GET_PET_HEADERS, "Link": f'<{pets}>; rel="successor-version"'}
    if now() >= REMOVED_AT:
        message = f"Use GET {pets} with a status filter instead."
        raise ServiceError("gone", message, 410, headers)
    pet = get_store().get(pet_id)
    if pet is None:
        raise ServiceError("pet_not_found", "No pet has this id.", 404, headers)
    return json_response(pet, headers=headers)


@public.get("/v1/openapi.json", endpoint="getOpenapi")
def get_openapi() -> Response:
    """Return openapi.json, with the prefix of this service in `servers`."""
    servers = [{"url": url_for("v1.listPets").removesuffix("/pets")}]
    return json_response(json.dumps({**OPENAPI, "servers": servers}, indent=2))


@public.get("/healthz")
def get_health() -> Response:
    """Return 200 if the store answers a query."""
    get_store().check()
    return json_response('{"status":"ok"}')


@public.get("/")
def get_page() -> Response:
    """Return index.html."""
    return Response(PAGE, headers={"Content-Security-Policy": PAGE_POLICY})


def now() -> datetime:
    """Return the time. The tests replace this function."""
    return datetime.now(UTC)


def get_store() -> PetStore:
    """Return the store of the current application."""
    store: PetStore = current_app.extensions["store"]
    return store


def json_response(
    body: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a body that is JSON already."""
    return Response(body + "\n", status, headers, content_type="application/json")


if __name__ == "__main__":
    raise SystemExit("Start the service with `flask run`, as README.md shows.")
