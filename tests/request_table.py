"""A request for each response of each operation. Several tests share this table.

410, 500 and 503 are not in it: test_get_pet.py, test_errors.py and test_storage.py show
them.
"""

from typing import Any, NamedTuple

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.helpers import NEW_PET


class Request(NamedTuple):
    """A request to a store with one pet, and the status and code of its response.

    `options` are those of FlaskClient.open.
    """

    operation: str
    method: str
    path: str
    status: int
    code: str = ""
    options: dict[str, Any] | None = None

    def __str__(self) -> str:
        """Return the request without its options, as the name of a test."""
        return f"{self.operation} {self.method} {self.path} {self.status} {self.code}"

    def send(self, client: FlaskClient) -> TestResponse:
        """Send the request, and return the response."""
        return client.open(self.path, method=self.method, **(self.options or {}))


NO_KEY = {"headers": {"Authorization": ""}}
OTHER_KEY = {"headers": {"Authorization": "Bearer other"}}


def wrong_keys(operation: str, method: str, path: str) -> list[Request]:
    """Return two requests without a valid key."""
    return [
        Request(operation, method, path, 401, "missing_api_key", NO_KEY),
        Request(operation, method, path, 401, "invalid_api_key", OTHER_KEY),
    ]


def wrong_bodies(operation: str, method: str, path: str) -> list[Request]:
    """Return the requests that every operation with a body refuses."""
    # The size is checked before the media type.
    large = {"data": b" " * 65_537, "content_type": "text/plain"}
    text = {"data": "Rex", "content_type": "text/plain"}
    wrong = {"json": {**NEW_PET, "status": "lost"}}
    return [
        Request(operation, method, path, 400, "malformed_body"),
        Request(operation, method, path, 400, "invalid_body", wrong),
        Request(operation, method, path, 413, "body_too_large", large),
        Request(operation, method, path, 415, "unsupported_media_type", text),
    ]


ACCEPTED = [
    Request("listPets", "GET", "/v1/pets", 200),
    Request("createPet", "POST", "/v1/pets", 201, options={"json": NEW_PET}),
    Request("getPet", "GET", "/v1/pets/1", 200),
    Request("getOpenapi", "GET", "/v1/openapi.json", 200, options=NO_KEY),
]
REFUSED = [
    Request("listPets", "GET", "/v1/pets?limit=0", 400, "invalid_query"),
    *wrong_keys("listPets", "GET", "/v1/pets"),
    *wrong_bodies("createPet", "POST", "/v1/pets"),
    *wrong_keys("createPet", "POST", "/v1/pets"),
    Request("getPet", "GET", "/v1/pets/2", 404, "pet_not_found"),
    Request("getPet", "GET", "/v1/pets/abc", 404, "not_found"),
    *wrong_keys("getPet", "GET", "/v1/pets/1"),
]
# HEAD needs a key, too. The others match no operation, so they need none.
OTHERS = [
    Request("", "HEAD", "/v1/pets", 401, options=NO_KEY),
    Request("", "HEAD", "/v1/pets/1", 401, options=NO_KEY),
    Request("", "GET", "/", 200, options=NO_KEY),
    Request("", "GET", "/healthz", 200, options=NO_KEY),
    Request("", "OPTIONS", "/v1/pets", 200, options=NO_KEY),
    Request("", "GET", "/v1/store/orders", 404, "not_found", NO_KEY),
    Request("", "OPTIONS", "/v1/store/orders", 404, "not_found", NO_KEY),
    Request("", "GET", "/v1//pets", 404, "not_found", NO_KEY),
    Request("", "GET", f"/v1/pets/{2**63}", 404, "not_found", NO_KEY),
    Request("", "POST", "/static/x", 404, "not_found", NO_KEY),
    Request("", "DELETE", "/v1/pets", 405, "method_not_allowed", NO_KEY),
]
REQUESTS = [*ACCEPTED, *REFUSED, *OTHERS]
