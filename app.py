"""The application: its settings, its routes, and how the other modules are wired."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flask import Flask, Response, request

import auth
import errors
import schemas
from errors import ServiceError
from storage import PetStore, StorageUnavailable

# Read from the environment with PETSTORE_ before their names.
SETTINGS = ("API_KEYS", "DATABASE")

# getPet is deprecated from this service's first day (RFC 9745) and goes on 5 December
# 2030 (contract, section Versioning; RFC 8594).
DEPRECATION = "@1795132800"
SUNSET = "Thu, 05 Dec 2030 00:00:00 GMT"
SUNSET_TIME = 1922659200

# gunicorn stops at this status; after most others it starts the worker over and over.
EXIT_STATUS = 3

# The one path under /v1 that needs no key.
DOCUMENT_PATH = "/v1/openapi.json"


class AnimalStore(Flask):
    """Flask, but for what it does with OPTIONS, WebSockets and odd Host headers."""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Route by the path alone; a WebSocket or a malformed host has no route."""
        environ.pop("HTTP_UPGRADE", None)
        environ.pop("HTTP_HOST", None)
        return super().__call__(environ, start_response)

    def make_default_options_response(self) -> Response:
        """Answer 204 with the methods in Allow, not an empty HTML page."""
        response = super().make_default_options_response()
        response.status_code = 204
        del response.headers["Content-Type"]
        return response


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Return the WSGI application.

    API_KEYS and DATABASE are taken from `config`, else from PETSTORE_API_KEYS and
    PETSTORE_DATABASE in the environment. Where they do not allow a start, the process
    ends with one line on standard error (SystemExit).
    """
    app = AnimalStore(__name__, static_folder=None)
    # /v1//pets is another path than /v1/pets; it is not redirected.
    app.url_map.merge_slashes = False
    try:
        configure(app, config or {})
        keys = auth.key_digests(app.config["API_KEYS"])
        pets = PetStore(app.config["DATABASE"])
    except (ValueError, OSError, StorageUnavailable) as error:
        print(f"Animal Store Service: {error}", file=sys.stderr)
        raise SystemExit(EXIT_STATUS) from error
    errors.init_app(app)
    app.register_error_handler(StorageUnavailable, errors.storage_unavailable)
    add_routes(app, keys, pets)
    return app


def configure(app: Flask, config: Mapping[str, Any]) -> None:
    """Set API_KEYS and DATABASE: defaults, then the environment, then `config`.

    A variable that is empty counts as not set. Values are plain strings.
    """
    for name in SETTINGS:
        app.config[name] = os.environ.get(f"PETSTORE_{name}", "")
    app.config.update(config)
    if not app.config["DATABASE"]:
        folder = Path(app.instance_path)
        folder.mkdir(parents=True, exist_ok=True)
        app.config["DATABASE"] = str(folder / "pets.db")


def add_routes(app: Flask, keys: frozenset[bytes], pets: PetStore) -> None:
    """Add the contract's operations, named as it names them, and two without a key."""

    @app.before_request
    def check_key() -> None:
        # Wherever under /v1, route or none: without a key they all look the same.
        path = request.path
        closed = path.startswith("/v1/") and path != DOCUMENT_PATH
        if closed and request.method != "OPTIONS":
            auth.require_key(keys)

    @app.after_request
    def add_headers(response: Response) -> Response:
        response.headers.add("Cache-Control", "no-store")
        response.headers.add("X-Content-Type-Options", "nosniff")
        return response

    @app.get("/v1/pets", endpoint="listPets")
    def list_pets() -> Response:
        query = schemas.parse_list_query(request.environ.get("QUERY_STRING", ""))
        page, last_id = pets.list_page(**query._asdict())
        response = json_response(page)
        if last_id is not None:
            status = f"&status={query.status}" if query.status else ""
            url = f"{pets_url()}?limit={query.limit}{status}&after={last_id}"
            response.headers.add("Link", f'<{url}>; rel="next"')
        return response

    @app.post("/v1/pets", endpoint="createPet")
    def create_pet() -> Response:
        pet_id, pet = pets.add(**schemas.read_new_pet()._asdict())
        response = json_response(pet, 201)
        response.headers.add("Location", f"{pets_url()}/{pet_id}")
        return response

    @app.get("/v1/pets/<pet_id>", endpoint="getPet")
    def get_pet(pet_id: str) -> Response:
        headers = [
            ("Deprecation", DEPRECATION),
            ("Sunset", SUNSET),
            ("Link", f'<{pets_url()}>; rel="successor-version"'),
        ]
        if time.time() >= SUNSET_TIME:
            message = "List the pets, with a status filter, instead."
            raise ServiceError("gone", message, headers)
        number = schemas.parse_pet_id(pet_id)
        pet = None if number is None else pets.get(number)
        if pet is None:
            message = "No pet has this id."
            raise ServiceError("pet_not_found", message, headers)
        response = json_response(pet)
        response.headers.extend(headers)
        return response

    @app.get("/healthz")
    def health() -> Response:
        pets.check()
        return json_response(b'{"status": "ok"}')

    document = Path(app.root_path, "openapi.json").read_text("utf-8")

    @app.get(DOCUMENT_PATH, endpoint="getOpenapi")
    def get_openapi() -> Response:
        # Only the servers have a member "url", each a path.
        url = f'"url": "{quote(request.root_path)}/'
        return json_response(document.replace('"url": "/', url).encode())


def json_response(body: bytes, status: int = 200) -> Response:
    """Return a response whose body is JSON already."""
    return Response(body, status, content_type="application/json")


def pets_url() -> str:
    """Return the path of the pets, under the prefix where the service is mounted."""
    return f"{quote(request.root_path)}/v1/pets"
