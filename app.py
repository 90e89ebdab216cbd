"""The application: its settings, its routes, and how the other modules are connected.

In all modules, "contract" means the Animal Store Service Interface 1.0.0. Its
operations are in openapi.json.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from click import ClickException
from flask import Blueprint, Flask, Response, current_app, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, NotFound

import auth
import errors
import schemas
from errors import ServiceError
from storage import PetStore, StorageUnavailable

# The one path under /v1 that needs no key.
DOCUMENT_PATH = "/v1/openapi.json"

# 5 December 2030, 00:00 GMT, in seconds since 1970.
GET_PET_REMOVED_AT = 1922659200
GET_PET_HEADERS = (
    # getPet is deprecated since 20 November 2026, in seconds since 1970 (RFC 9745).
    ("Deprecation", "@1795132800"),
    # The removal, as an HTTP date (RFC 8594).
    ("Sunset", "Thu, 05 Dec 2030 00:00:00 GMT"),
)

# Headers of the response to a preflight request, which browsers send without the key
# (https://developer.mozilla.org/docs/Web/HTTP/Guides/CORS).
PREFLIGHT_HEADERS = (
    ("Access-Control-Allow-Headers", "Authorization, Content-Type"),
    ("Access-Control-Max-Age", "7200"),
)

api = Blueprint("api", __name__)


class StartError(ClickException, RuntimeError):
    """The service cannot start. The message is one line that says why.

    Flask's command line shows a ClickException without a traceback, and
    `gunicorn --preload` does so for a RuntimeError. Exit status 3 stops gunicorn; after
    most others it would start the worker again and again.
    """

    exit_code = 3


def create_app(config: Mapping[str, Any] | None = None, store: Any = None) -> Flask:
    """Return the WSGI application.

    API_KEYS and DATABASE are taken from `config`, or from PETSTORE_API_KEYS and
    PETSTORE_DATABASE in the environment. `store` is an object with the four methods of
    PetStore, and replaces it; DATABASE is ignored then. Raise StartError if a setting
    cannot be used.
    """
    app = Flask(__name__, static_folder=None)
    # /v1//pets is not found. By default, it is redirected.
    app.url_map.merge_slashes = False
    for name in ("API_KEYS", "DATABASE"):
        app.config[name] = os.environ.get(f"PETSTORE_{name}")
    app.config.update(config or {})
    try:
        app.extensions["key_digests"] = auth.key_digests(app.config["API_KEYS"] or "")
    except ValueError as error:
        raise StartError(f"PETSTORE_API_KEYS: {error}.") from error
    app.extensions["pet_store"] = open_store(app) if store is None else store
    app.register_blueprint(api)
    app.register_error_handler(NotFound, not_found)
    # Any other HTTP error. For a bug, Flask logs the traceback, and passes an
    # HTTPException with status 500 to this handler.
    app.register_error_handler(HTTPException, errors.error_response)
    app.register_error_handler(StorageUnavailable, errors.storage_unavailable)
    return app


def open_store(app: Flask) -> PetStore:
    """Return the store for the setting DATABASE, or raise StartError."""
    try:
        return PetStore(os.fspath(app.config["DATABASE"] or default_database(app)))
    except (OSError, TypeError, ValueError, StorageUnavailable) as error:
        # TypeError: the setting is not a path. ValueError: no path can contain one of
        # its characters.
        raise StartError(f"PETSTORE_DATABASE: {error}.") from error


def default_database(app: Flask) -> Path:
    """Return the path of pets.db in Flask's instance folder, and create the folder."""
    folder = Path(app.instance_path)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StartError(
            "PETSTORE_DATABASE: it is not set, and the default folder cannot be "
            f"created: {error}; set it to a path."
        ) from error
    return folder / "pets.db"


@api.before_app_request
def check_key() -> None:
    """Require a valid key under /v1, except for OPTIONS and the OpenAPI document.

    A path that does not exist needs a key as well.
    """
    path = request.path
    needs_key = path.startswith("/v1/") and path != DOCUMENT_PATH
    if needs_key and request.method != "OPTIONS":
        auth.require_key(current_app.extensions["key_digests"])


@api.after_app_request
def add_headers(response: Response) -> Response:
    """Add the headers of every response, and the preflight headers to OPTIONS."""
    for name, value in errors.RESPONSE_HEADERS:
        response.headers.add(name, value)
    # Flask answers OPTIONS. Its response has Allow, unless nothing is at the path.
    if request.method == "OPTIONS" and "Allow" in response.headers:
        response.headers.extend(PREFLIGHT_HEADERS)
        response.headers.add("Access-Control-Allow-Methods", ", ".join(response.allow))
    return response


def not_found(_: NotFound) -> ResponseReturnValue:
    """Return the Error body for an unknown path, and name the OpenAPI document."""
    document = external_path(DOCUMENT_PATH)
    message = f"Nothing is at this path. {document} lists the paths of this service."
    return errors.error_response(ServiceError("not_found", message, 404))


# The endpoints have the names of the operations in openapi.json. A test compares them.


@api.get("/v1/pets", endpoint="listPets")
def list_pets() -> Response:
    """List animals: one page, with a Link to the next one (RFC 8288)."""
    # The raw query string, not request.args: parse_list_query caches results by it.
    query = schemas.parse_list_query(request.environ.get("QUERY_STRING", ""))
    page, last_id = pet_store().list_page(**query)
    if last_id is None:
        return json_response(page)
    status = f"&status={query['status']}" if query["status"] else ""
    path = external_path("/v1/pets")
    target = f"{path}?limit={query['limit']}{status}&after={last_id}"
    return json_response(page, headers=[("Link", f'<{target}>; rel="next"')])


@api.post("/v1/pets", endpoint="createPet")
def create_pet() -> Response:
    """Add an animal."""
    new_pet = schemas.parse_body(schemas.NEW_PET)
    pet_id, pet = pet_store().add(**new_pet)
    location = external_path(f"/v1/pets/{pet_id}")
    return json_response(pet, 201, [("Location", location)])


# Not <int:pet_id>, which accepts 01 for 1, and answers abc with not_found.
@api.get("/v1/pets/<pet_id>", endpoint="getPet")
def get_pet(pet_id: str) -> Response:
    """Get an animal. Deprecated: from 5 December 2030 on, the answer is 410."""
    pets = external_path("/v1/pets")
    # RFC 5829 defines successor-version.
    headers = [*GET_PET_HEADERS, ("Link", f'<{pets}>; rel="successor-version"')]
    if time.time() >= GET_PET_REMOVED_AT:
        message = (
            f"Use GET {pets} with a status filter instead. "
            f"To find pet 7, use GET {pets}?after=6&limit=1."
        )
        raise ServiceError("gone", message, 410, headers)
    number = schemas.parse_pet_id(pet_id)
    pet = None if number is None else pet_store().get(number)
    if pet is None:
        raise ServiceError("pet_not_found", "No pet has this id.", 404, headers)
    return json_response(pet, headers=headers)


@api.get(DOCUMENT_PATH, endpoint="getOpenapi")
def get_openapi() -> Response:
    """Return the OpenAPI document, with the external path of /v1 in `servers`."""
    document = {**openapi_document(), "servers": [{"url": external_path("/v1")}]}
    return json_response(json.dumps(document, separators=(",", ":")).encode())


@api.get("/healthz")
def get_health() -> Response:
    """Return 200 if the store answers a query."""
    pet_store().check()
    return json_response(b'{"status":"ok"}')


# If the service is mounted at /store, Flask would redirect /store to /store/, with the
# host that the client has sent.
@api.get("/", strict_slashes=False)
def get_page() -> Response:
    """Return the HTML page."""
    # The browser runs only what carries this nonce, and connects only to this service:
    # https://developer.mozilla.org/docs/Web/HTTP/Guides/CSP
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    with current_app.open_resource("index.html", "r", "utf-8") as file:
        html = file.read().replace("{nonce}", nonce)
    return Response(html, headers={"Content-Security-Policy": policy})


def pet_store() -> Any:
    """Return the store of the current application."""
    return current_app.extensions["pet_store"]


@cache
def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document as it is in openapi.json."""
    text = Path(__file__).with_name("openapi.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def json_response(
    body: bytes, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> Response:
    """Return a response with a body that is JSON already."""
    # Flask's jsonify would render the JSON again.
    response = Response(body + b"\n", status, content_type="application/json")
    for name, value in headers:
        response.headers.add(name, value)
    return response


def external_path(path: str) -> str:
    """Return a path of this service as a client has to send it.

    The service may be mounted below a prefix such as /é, which url_for would not quote.
    RFC 3986, section 3.3, lists the characters that need no quoting.
    """
    return quote(request.root_path, safe="/!$&'()*+,;=:@") + path


if __name__ == "__main__":
    raise SystemExit("Start it with: flask run, or gunicorn 'app:create_app()'")
