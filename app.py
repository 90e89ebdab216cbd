"""The application: its settings, its routes, and how the other modules are wired.

In all of them, "contract" is the Animal Store Service Interface 1.0.0, whose operations
are in openapi.json.
"""

import json
import os
import secrets
import time
from collections.abc import Iterable, Mapping
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

# 5 December 2030, when getPet is removed (contract, section Versioning).
REMOVAL = 1922659200
# getPet is deprecated from this service's first day, 20 November 2026, and says when it
# is removed. Deprecation has seconds since 1970 (RFC 9745), Sunset words (RFC 8594).
DEPRECATION = (
    ("Deprecation", "@1795132800"),
    ("Sunset", "Thu, 05 Dec 2030 00:00:00 GMT"),
)

HEADERS = (
    # Nobody may keep a copy, and no browser may take JSON for anything else.
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    # A browser lets a page of another site (origin) read an answer only where this
    # allows it (CORS), and of its less common headers those that are named. Any page
    # may: the key is the only way in, and no browser sends it by itself like a cookie.
    ("Access-Control-Allow-Origin", "*"),
    (
        "Access-Control-Expose-Headers",
        "Deprecation, Link, Location, Retry-After, Sunset",
    ),
)
# Before such a page may send a key, its browser asks by OPTIONS: the preflight, which
# has no key. For two hours, it does not ask again.
PREFLIGHT_HEADERS = (
    ("Access-Control-Allow-Headers", "Authorization, Content-Type"),
    ("Access-Control-Max-Age", "7200"),
)

api = Blueprint("api", __name__)


class StartError(ClickException):
    """The service cannot start; the text is one line that says why, and what to do.

    Flask's command line shows a ClickException without a traceback and ends with its
    status. gunicorn gives up at 3; after most others it would try again, over and over.
    """

    exit_code = 3


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Return the WSGI application.

    API_KEYS and DATABASE are taken from `config`, else from PETSTORE_API_KEYS and
    PETSTORE_DATABASE in the environment. Raises StartError where they allow no start.
    """
    app = Flask(__name__, static_folder=None)
    # /v1//pets is another path than /v1/pets; it is not redirected.
    app.url_map.merge_slashes = False
    for name in ("API_KEYS", "DATABASE"):
        app.config[name] = os.environ.get(f"PETSTORE_{name}")
    app.config.update(config or {})
    path = app.config["DATABASE"] or _default_database(app)
    # What the views need but is not a setting goes into `extensions`.
    try:
        app.extensions["key_digests"] = auth.key_digests(app.config["API_KEYS"] or "")
    except ValueError as error:
        raise StartError(f"PETSTORE_API_KEYS: {error}.") from error
    try:
        # TypeError: it is neither text nor a Path. ValueError: it has a character that
        # no path can have.
        app.extensions["pet_store"] = PetStore(os.fspath(path))
    except (OSError, TypeError, ValueError, StorageUnavailable) as error:
        raise StartError(f"PETSTORE_DATABASE: {error}.") from error
    app.register_blueprint(api)
    # The nearest class counts: NotFound, though it is an HTTPException, is handled by
    # not_found. What none of them fits is a bug: Flask logs its traceback, and calls
    # error_response with an HTTPException of status 500.
    app.register_error_handler(HTTPException, errors.error_response)
    app.register_error_handler(NotFound, not_found)
    app.register_error_handler(StorageUnavailable, errors.storage_unavailable)
    return app


def _default_database(app: Flask) -> Path:
    folder = Path(app.instance_path)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        reason = f"it is not set, and its default cannot be made: {error}"
        raise StartError(f"PETSTORE_DATABASE: {reason}; set it to a path.") from error
    return folder / "pets.db"


@api.before_app_request
def check_key() -> None:
    """Let nobody in without a valid key."""
    # Everywhere under /v1, route or none: without a key, nobody learns what is there.
    path = request.path
    needs_key = path.startswith("/v1/") and path != DOCUMENT_PATH
    if needs_key and request.method != "OPTIONS":
        auth.require_key(current_app.extensions["key_digests"])


@api.after_app_request
def add_headers(response: Response) -> Response:
    """Add what every answer has, and to OPTIONS what a browser asks for (CORS)."""
    for name, value in HEADERS:
        response.headers.add(name, value)
    # Flask answers OPTIONS by itself, with the methods in Allow where there is a route.
    if request.method == "OPTIONS" and "Allow" in response.headers:
        response.headers.extend(PREFLIGHT_HEADERS)
        response.headers.add("Access-Control-Allow-Methods", ", ".join(response.allow))
    return response


def not_found(_: NotFound) -> ResponseReturnValue:
    """Say where the OpenAPI document is to those who follow a wrong path."""
    message = f"Nothing is at this path. {url(DOCUMENT_PATH)} lists what there is."
    return errors.error_response(ServiceError("not_found", message, 404))


# The endpoints have the names of the document's operations; a test compares the two.


@api.get("/v1/pets", endpoint="listPets")
def list_pets() -> Response:
    """List animals: one page, with a link to the next one (RFC 8288)."""
    # The text after the "?" as it came (environ has what the server hands to Flask),
    # not request.args: parse_list_query remembers its latest results by this text.
    query = schemas.parse_list_query(request.environ.get("QUERY_STRING", ""))
    page, next_after = pet_store().list_page(**query)
    response = json_response(page)
    if next_after is not None:
        status = f"&status={query['status']}" if query["status"] else ""
        target = f"{url('/v1/pets')}?limit={query['limit']}{status}&after={next_after}"
        response.headers.add("Link", f'<{target}>; rel="next"')
    return response


@api.post("/v1/pets", endpoint="createPet")
def create_pet() -> Response:
    """Add an animal."""
    new_pet = schemas.read_body_as(schemas.NEW_PET)
    pet_id, pet = pet_store().add(**new_pet)
    return json_response(pet, 201, [("Location", f"{url('/v1/pets')}/{pet_id}")])


# Not <int:pet_id>: 01 would be pet 1, and abc not_found instead of pet_not_found.
@api.get("/v1/pets/<pet_id>", endpoint="getPet")
def get_pet(pet_id: str) -> Response:
    """Get an animal: deprecated, and gone from the day of its removal on."""
    # What to use instead (RFC 5829).
    successor = f'<{url("/v1/pets")}>; rel="successor-version"'
    headers = [*DEPRECATION, ("Link", successor)]
    if time.time() >= REMOVAL:
        message = "List the pets, with a status filter, instead."
        raise ServiceError("gone", message, 410, headers)
    number = schemas.parse_pet_id(pet_id)
    pet = None if number is None else pet_store().get(number)
    if pet is None:
        raise ServiceError("pet_not_found", "No pet has this id.", 404, headers)
    return json_response(pet, 200, headers)


@api.get(DOCUMENT_PATH, endpoint="getOpenapi")
def get_openapi() -> Response:
    """Return the OpenAPI document, with the URL under which the service is mounted."""
    with current_app.open_resource("openapi.json") as file:
        document = json.load(file)
    document["servers"] = [{"url": url("/v1")}]
    return json_response(json.dumps(document).encode())


@api.get("/healthz")
def health() -> Response:
    """Say that the service works, if its store answers a query."""
    pet_store().check()
    return json_response(b'{"status": "ok"}')


# Under a prefix (see `url`), /store and /store/ are both this page. Flask would else
# redirect one to the other, at the host in the header Host: any that a client sets.
@api.get("/", strict_slashes=False)
def page() -> Response:
    """Return the page for people.

    By the Content-Security-Policy, a browser runs nothing in it but what carries the
    nonce, a text that is new with each answer: nobody else can have written it there.
    """
    nonce = secrets.token_urlsafe(16)
    # Besides: requests to this service and the icon, but no <base>, form or framing.
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    with current_app.open_resource("index.html", "r", "utf-8") as file:
        html = file.read().replace("{nonce}", nonce)
    return Response(html, headers=[("Content-Security-Policy", policy)])


def pet_store() -> PetStore:
    """Return the store of the application that answers."""
    store: PetStore = current_app.extensions["pet_store"]
    return store


def json_response(
    body: bytes, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> Response:
    """Return a response whose body is JSON already, as pets come from SQLite."""
    response = Response(body + b"\n", status, content_type="application/json")
    # With Response(..., headers=headers), getPet would take a fortieth longer.
    for name, value in headers:
        response.headers.add(name, value)
    return response


def url(path: str) -> str:
    """Return a path of the service as a client has to write it, with any prefix.

    A proxy or another program may have put the service under one such as /store: that
    is request.root_path. url_for would not quote it, and takes longer.
    """
    return f"{quote(request.root_path)}{path}"


if __name__ == "__main__":
    raise SystemExit("Start it with: flask run, or gunicorn 'app:create_app()'")
