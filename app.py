"""The application: its settings, its routes, and how the other modules are wired."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from click import ClickException, echo
from flask import Blueprint, Flask, Request, Response, current_app, request
from flask.sessions import NullSession, SessionInterface
from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.http import http_date
from werkzeug.routing import MapAdapter

import auth
import errors
import schemas
from errors import ServiceError
from storage import PetStore, StorageUnavailable

# Read from the environment with PETSTORE_ before their names.
SETTINGS = ("API_KEYS", "DATABASE")

# The one path under /v1 that needs no key.
DOCUMENT_PATH = "/v1/openapi.json"

# getPet is deprecated from this service's first day (RFC 9745) and goes on 5 December
# 2030 (contract, section Versioning; RFC 8594).
REMOVAL = datetime(2030, 12, 5, tzinfo=UTC).timestamp()
DEPRECATION = f"@{datetime(2026, 11, 20, tzinfo=UTC).timestamp():.0f}"
SUNSET = http_date(REMOVAL)

# The key is the only way in, and no browser sends it by itself as it would a cookie. So
# a page of any origin may call, and read every answer.
CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Deprecation, Link, Location, Retry-After, Sunset",
}
PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "7200",
}

api = Blueprint("api", __name__)


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Return the WSGI application.

    API_KEYS and DATABASE are taken from `config`, else from PETSTORE_API_KEYS and
    PETSTORE_DATABASE in the environment. StartError where they do not allow a start.
    """
    app = AnimalStore(__name__, static_folder=None)
    # /v1//pets is another path than /v1/pets; it is not redirected.
    app.url_map.merge_slashes = False
    try:
        configure(app, config or {})
        app.extensions["key_digests"] = auth.key_digests(app.config["API_KEYS"])
        app.extensions["pet_store"] = PetStore(app.config["DATABASE"])
        document = Path(app.root_path, "openapi.json").read_text("utf-8")
        app.extensions["openapi_document"] = json.loads(document)
    except (ValueError, OSError, StorageUnavailable) as error:
        line = " ".join(str(error).splitlines())
        raise StartError(f"Animal Store Service: {line}") from error
    errors.init_app(app)
    app.register_error_handler(StorageUnavailable, errors.storage_unavailable)
    app.register_blueprint(api)
    return app


def configure(app: Flask, config: Mapping[str, Any]) -> None:
    """Set API_KEYS and DATABASE: defaults, then the environment, then `config`.

    A variable that is empty counts as not set. Values are plain strings.
    """
    for name in SETTINGS:
        app.config[name] = os.environ.get(f"PETSTORE_{name}", "")
    app.config.update(config)
    if app.config["DATABASE"] in (None, ""):
        folder = Path(app.instance_path)
        folder.mkdir(parents=True, exist_ok=True)
        app.config["DATABASE"] = folder / "pets.db"
    app.config["DATABASE"] = path_of(app.config["DATABASE"])


def path_of(setting: object) -> str:
    """Return DATABASE as text; ValueError where it can be no path."""
    path = os.fspath(setting) if isinstance(setting, os.PathLike) else setting
    with suppress(UnicodeEncodeError):
        if isinstance(path, str) and b"\0" not in os.fsencode(path):
            return path
    raise ValueError(f"PETSTORE_DATABASE must be a path, not {setting!r}")


@api.before_app_request
def check_key() -> None:
    """Let nobody in without a valid key."""
    # Wherever under /v1, route or none: without a key they all look the same.
    path = request.path
    needs_key = path.startswith("/v1/") and path != DOCUMENT_PATH
    if needs_key and request.method != "OPTIONS":
        auth.require_key(current_app.extensions["key_digests"])


@api.after_app_request
def add_headers(response: Response) -> Response:
    """Add what every answer has, and what a page on another origin needs (CORS)."""
    headers = response.headers
    headers.add("Cache-Control", "no-store")
    headers.add("X-Content-Type-Options", "nosniff")
    if "HTTP_ORIGIN" in request.environ:
        headers.extend(CORS_HEADERS)
        if request.method == "OPTIONS" and "Allow" in headers:
            headers.extend(PREFLIGHT_HEADERS)
            headers.add("Access-Control-Allow-Methods", headers["Allow"])
    return response


@api.app_errorhandler(NotFound)
def not_found(_: NotFound) -> Response:
    """Say where the OpenAPI document is to those who follow a wrong path."""
    message = (
        "Nothing is at this path. "
        f"The OpenAPI document at {url(DOCUMENT_PATH)} lists what there is."
    )
    return errors.error_response(ServiceError("not_found", message))


@api.get("/v1/pets", endpoint="listPets")
def list_pets() -> Response:
    """List animals: one page, with a link to the next one (RFC 8288)."""
    query = schemas.parse_list_query(request.environ.get("QUERY_STRING", ""))
    page, last_id = pet_store().list_page(
        limit=query.limit, status=query.status, after=query.after
    )
    response = json_response(page)
    if last_id is not None:
        status = f"&status={query.status}" if query.status else ""
        target = f"{url('/v1/pets')}?limit={query.limit}{status}&after={last_id}"
        response.headers.add("Link", f'<{target}>; rel="next"')
    return response


@api.post("/v1/pets", endpoint="createPet")
def create_pet() -> Response:
    """Add an animal."""
    new_pet = schemas.read_new_pet()
    pet_id, pet = pet_store().add(
        name=new_pet.name, category_id=new_pet.category_id, status=new_pet.status
    )
    response = json_response(pet, 201)
    response.headers.add("Location", f"{url('/v1/pets')}/{pet_id}")
    return response


@api.get("/v1/pets/<pet_id>", endpoint="getPet")
def get_pet(pet_id: str) -> Response:
    """Get an animal: deprecated, and gone from the day of its removal on."""
    headers = [
        ("Deprecation", DEPRECATION),
        ("Sunset", SUNSET),
        ("Link", f'<{url("/v1/pets")}>; rel="successor-version"'),
    ]
    if time.time() >= REMOVAL:
        message = "List the pets, with a status filter, instead."
        raise ServiceError("gone", message, headers)
    number = schemas.parse_pet_id(pet_id)
    pet = None if number is None else pet_store().get(number)
    if pet is None:
        raise ServiceError("pet_not_found", "No pet has this id.", headers)
    return json_response(pet, 200, headers)


@api.get(DOCUMENT_PATH, endpoint="getOpenapi")
def get_openapi() -> Response:
    """Return the OpenAPI document, with the URL under which the service is mounted."""
    document = current_app.extensions["openapi_document"]
    served = {**document, "servers": [{"url": url("/v1")}]}
    return json_response(json.dumps(served).encode())


@api.get("/healthz")
def health() -> Response:
    """Say that the service works, if its store answers a query."""
    pet_store().check()
    return json_response(b'{"status": "ok"}')


def pet_store() -> PetStore:
    """Return the store of the application that answers."""
    store: PetStore = current_app.extensions["pet_store"]
    return store


def json_response(
    body: bytes, status: int = 200, headers: Iterable[tuple[str, str]] = ()
) -> Response:
    """Return a response whose body is JSON already."""
    return Response(body, status, headers, content_type="application/json")


def url(path: str) -> str:
    """Return a path of the service under the prefix where it is mounted."""
    return f"{quote(request.root_path)}{path}"


class NoSession(SessionInterface):
    """No session at all: to look for a cookie takes a twentieth of a request."""

    session = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        """Return the one session that is none."""
        return self.session


class AnimalStore(Flask):
    """Flask, but for sessions, WebSockets, odd Host headers and OPTIONS."""

    session_interface = NoSession()

    def wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request to upgrade to a WebSocket as if it did not ask for it."""
        environ.pop("HTTP_UPGRADE", None)
        return super().wsgi_app(environ, start_response)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Refuse a Host that is malformed or missing (RFC 9112, section 3.2)."""
        adapter = super().create_url_adapter(request)
        if request:
            environ = request.environ
            is_missing = (
                "HTTP_HOST" not in environ and environ["SERVER_PROTOCOL"] > "HTTP/1.0"
            )
            if is_missing or not request.host:
                raise BadRequest
        return adapter

    def make_default_options_response(self) -> Response:
        """Answer 204 with the methods in Allow, not an empty HTML page."""
        response = super().make_default_options_response()
        response.status_code = 204
        del response.headers["Content-Type"]
        return response


class StartError(ClickException):
    """The service cannot start; the text is one line that says why.

    Flask's command line shows a ClickException without a traceback and ends with its
    status. gunicorn stops at 3; after most others it starts the worker over and over.
    """

    exit_code = 3

    def show(self, file: Any = None) -> None:
        """Print the line on standard error."""
        echo(self, file, err=True)
