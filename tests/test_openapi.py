"""The OpenAPI document says what the code does, and the code what the document says."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import marshmallow
import pytest
from flask import Flask
from flask.testing import FlaskClient
from marshmallow import fields, validate
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import errors
import schemas
from tests.checks import PET, REMOVED_AT, add_pet, add_pets, assert_error
from tests.service import KEY, ROOT

DOCUMENT = json.loads((ROOT / "openapi.json").read_text("utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    members["operationId"]: (path, method, members)
    for path, item in DOCUMENT["paths"].items()
    for method, members in item.items()
}

# The text of the document has the first two; the others follow from the body.
ON_EVERY_ANSWER = {"Cache-Control", "X-Content-Type-Options"}
ON_EVERY_ANSWER |= {"Content-Type", "Content-Length"}


# The requests that lead to the answers in the document's examples.


class Situation(NamedTuple):
    """What can be made to happen to the service before a request."""

    app: Flask
    client: FlaskClient
    database: Path
    monkeypatch: pytest.MonkeyPatch


def nothing(_: Situation) -> None:
    """All is as it is at the start."""


def five_pets(now: Situation) -> None:
    add_pets(now.client, "available", "sold", "available", "sold", "sold")


def a_bug(now: Situation) -> None:
    for endpoint in now.app.view_functions:
        now.app.view_functions[endpoint] = lambda **_: str(1 / 0)


def no_database(now: Situation) -> None:
    now.database.rename(now.database.with_suffix(".away"))


def the_day_of_removal(now: Situation) -> None:
    now.monkeypatch.setattr("time.time", lambda: REMOVED_AT)


LIST = {"path": "/v1/pets"}
CREATE = {"method": "POST", "path": "/v1/pets", "json": PET}
GET = {"path": "/v1/pets/1"}
GET_DOCUMENT = {"path": "/v1/openapi.json"}

TOM = {"name": "Tom", "categoryId": 2, "status": "pending"}
TOO_LARGE = {"name": "x" * 65_536, "categoryId": 1}
NO_KEY = {"headers": {"Authorization": ""}}
WRONG_KEY = {"headers": {"Authorization": "Bearer wrong"}}
DELETE = {"method": "DELETE"}

Row = tuple[str, str, Callable[[Situation], None], dict[str, Any]]
ROWS: list[Row] = [
    ("listPets", "page", five_pets, {"path": "/v1/pets?limit=2&status=sold&after=1"}),
    ("listPets", "invalid_query", nothing, {"path": "/v1/pets?limit=0"}),
    ("listPets", "missing_api_key", nothing, LIST | NO_KEY),
    ("listPets", "invalid_api_key", nothing, LIST | WRONG_KEY),
    ("listPets", "method_not_allowed", nothing, LIST | DELETE),
    ("listPets", "internal_error", a_bug, LIST),
    ("listPets", "storage_unavailable", no_database, LIST),
    ("createPet", "least", nothing, CREATE),
    ("createPet", "whole", nothing, CREATE | {"json": TOM}),
    ("createPet", "malformed_body", nothing, CREATE | {"json": None}),
    ("createPet", "invalid_body", nothing, CREATE | {"json": {"name": "Rex"}}),
    ("createPet", "missing_api_key", nothing, CREATE | NO_KEY),
    ("createPet", "invalid_api_key", nothing, CREATE | WRONG_KEY),
    ("createPet", "method_not_allowed", nothing, CREATE | DELETE),
    ("createPet", "body_too_large", nothing, CREATE | {"json": TOO_LARGE}),
    ("createPet", "media_type", nothing, CREATE | {"content_type": "text/plain"}),
    (
        "createPet",
        "encoding",
        nothing,
        CREATE | {"headers": {"Content-Encoding": "gzip"}},
    ),
    ("createPet", "internal_error", a_bug, CREATE),
    ("createPet", "storage_unavailable", no_database, CREATE),
    ("getPet", "found", five_pets, GET),
    ("getPet", "missing_api_key", nothing, GET | NO_KEY),
    ("getPet", "invalid_api_key", nothing, GET | WRONG_KEY),
    ("getPet", "pet_not_found", nothing, GET),
    ("getPet", "not_found", nothing, {"path": "/v1/pets/a%2Fb"}),
    ("getPet", "method_not_allowed", nothing, GET | DELETE),
    ("getPet", "gone", the_day_of_removal, GET),
    ("getPet", "internal_error", a_bug, GET),
    ("getPet", "storage_unavailable", no_database, GET),
    ("getOpenapi", "method_not_allowed", nothing, GET_DOCUMENT | DELETE),
    ("getOpenapi", "internal_error", a_bug, GET_DOCUMENT),
]


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """Return what a node refers to, and the members beside the reference."""
    if "$ref" not in node:
        return node
    target = DOCUMENT
    for name in node["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return {**resolve(target), **node}


def answers() -> Iterator[tuple[str, int, dict[str, Any], dict[str, Any]]]:
    """Yield each documented answer: operation, status, headers, example bodies."""
    for name, (_, _, members) in OPERATIONS.items():
        for status, node in members["responses"].items():
            response = resolve(node)
            assert list(response["content"]) == ["application/json"]
            examples = response["content"]["application/json"].get("examples", {})
            bodies = {key: example["value"] for key, example in examples.items()}
            headers = response.get("headers", {})
            resolved = {key: resolve(header) for key, header in headers.items()}
            yield name, int(status), resolved, bodies


def test_every_example_has_its_request() -> None:
    documented = [
        (name, example) for name, _, _, bodies in answers() for example in bodies
    ]
    assert sorted(documented) == sorted((row[0], row[1]) for row in ROWS)


@pytest.mark.parametrize(
    ("name", "status", "headers", "bodies"),
    [pytest.param(*answer, id=f"{answer[0]}-{answer[1]}") for answer in answers()],
)
def test_an_answer_is_as_documented(
    app: Flask,
    client: FlaskClient,
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    status: int,
    headers: dict[str, Any],
    bodies: dict[str, Any],
) -> None:
    sent = defaultdict(list)
    for operation, example, happens, request in ROWS:
        if operation == name and example in bodies:
            happens(Situation(app, client, database, monkeypatch))
            answer = client.open(**request)
            assert (answer.status_code, answer.get_json()) == (status, bodies[example])
            for header, value in answer.headers:
                if header not in ON_EVERY_ANSWER:
                    sent[header].append(value)
    assert sent.keys() == headers.keys()
    for header, words in headers.items():
        if words.get("required"):
            assert len(sent[header]) == len(bodies)
        if "const" in words["schema"]:
            assert set(sent[header]) == {str(words["schema"]["const"])}
        if "example" in words:
            assert words["example"] in sent[header]


# Operations and routes, keys and codes.


def test_every_operation_is_a_route_and_every_route_under_v1_an_operation(
    app: Flask,
) -> None:
    assert DOCUMENT["servers"] == [{"url": "/v1"}]
    assert all("servers" not in item for item in DOCUMENT["paths"].values())
    routes = {
        (rule.endpoint, method, re.sub("<.*?>", "{}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert routes - {("api.health", "GET", "/healthz")} == {
        (f"api.{name}", method.upper(), "/v1" + re.sub("{.*?}", "{}", path))
        for name, (path, method, _) in OPERATIONS.items()
    }


def test_every_error_code_is_documented_under_its_status_and_no_other() -> None:
    documented = {
        (body["code"], status)
        for _, status, _, bodies in answers()
        for body in bodies.values()
        if status >= 400
    }
    assert documented == set(errors.STATUS_BY_CODE.items())


def test_an_error_is_the_error_body_with_the_codes_of_its_examples() -> None:
    error = SCHEMAS["Error"]
    assert set(error["properties"]) == set(error["required"])
    for name, status, _, bodies in answers():
        if status >= 400:
            response = resolve(OPERATIONS[name][2]["responses"][str(status)])
            schema = response["content"]["application/json"]["schema"]
            assert schema["$ref"] == "#/components/schemas/Error"
            code, repeated = schema["properties"].values()
            assert code == {"enum": list({body["code"]: 1 for body in bodies.values()})}
            assert repeated == {"const": status}
            assert all(set(body) == set(error["required"]) for body in bodies.values())


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("listPets", LIST),
        ("createPet", CREATE),
        ("getPet", GET),
        ("getOpenapi", GET_DOCUMENT),
    ],
)
def test_a_key_is_needed_where_the_document_says_so(
    client: FlaskClient, anonymous: FlaskClient, name: str, request_: dict[str, Any]
) -> None:
    add_pet(client)
    members = OPERATIONS[name][2]
    requirement = members.get("security", DOCUMENT["security"])
    answer = anonymous.open(**request_)
    assert (answer.status_code == 401) == bool(requirement)
    assert ("Deprecation" in client.open(**request_).headers) == members.get(
        "deprecated", False
    )
    for scheme_name in itertools.chain(*requirement):
        scheme = DOCUMENT["components"]["securitySchemes"][scheme_name]["scheme"]
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert anonymous.open(**request_, headers=headers).status_code < 300


# Members and parameters.


def limits(field: fields.Field[Any]) -> dict[str, Any]:
    """Return what the code says of a member, in the words of JSON Schema."""
    is_integer = isinstance(field, fields.Integer)
    found: dict[str, Any] = {"type": "integer" if is_integer else "string"}
    for rule in field.validators:
        if isinstance(rule, validate.Range):
            found |= {"minimum": rule.min, "maximum": rule.max}
            if rule.max == schemas.INT64.max:
                found["format"] = "int64"
        if isinstance(rule, validate.OneOf):
            found["enum"] = list(rule.choices)
    return found


def documented_limits(node: dict[str, Any]) -> dict[str, Any]:
    """Return what the document says of a member, but for its meaning."""
    words = resolve(node)
    return {word: words[word] for word in words.keys() - {"$ref", "description"}}


def test_the_query_has_the_limits_of_the_code() -> None:
    in_code = {}
    for name, field in schemas.LIST_QUERY_SCHEMA.fields.items():
        default = field.load_default
        in_code[name] = limits(field) | (
            {} if default is None else {"default": default}
        )
    parameters = map(resolve, OPERATIONS["listPets"][2]["parameters"])
    assert in_code == {
        parameter["name"]: documented_limits(parameter["schema"])
        for parameter in parameters
        if not parameter.get("required", False)
    }


def test_a_new_pet_has_the_members_of_the_code() -> None:
    document = SCHEMAS["NewPet"]
    assert {
        field.data_key or name: (field.required, limits(field))
        for name, field in schemas.NEW_PET_SCHEMA.fields.items()
    } == {
        name: (name in document["required"], documented_limits(node))
        for name, node in document["properties"].items()
    }
    # A default would make generated types require the member.
    default = schemas.NEW_PET_SCHEMA.fields["status"].load_default
    assert default is not marshmallow.missing
    assert f"`{default}` where it is left out" in document["description"]


def test_a_pet_is_a_new_pet_with_an_id(client: FlaskClient) -> None:
    pet = SCHEMAS["Pet"]
    assert list(add_pet(client)) == list(pet["properties"]) == pet["required"]
    members = {name: documented_limits(n) for name, n in pet["properties"].items()}
    identifier = members.pop("id")
    assert (identifier["minimum"], identifier["maximum"]) == (1, schemas.INT64.max)
    new_pet = SCHEMAS["NewPet"]["properties"].items()
    assert members == {name: documented_limits(node) for name, node in new_pet}


# The document as it is served.


def test_the_document_is_served_without_a_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/v1/openapi.json")
    assert response.status_code == 200
    assert response.content_type == "application/json"
    assert response.get_json() == DOCUMENT


@pytest.mark.parametrize(
    "path", ["/v1//openapi.json", "/v1/openapi.json/", "/v1/openapi.jso", "/v1/x.json"]
)
def test_nothing_beside_the_document_is_served_without_a_key(
    anonymous: FlaskClient, path: str
) -> None:
    assert_error(anonymous.get(path), 401, "missing_api_key")


def test_under_a_prefix_the_server_carries_it(app: Flask) -> None:
    client = Client(DispatcherMiddleware(Flask("outer"), {"/a b": app}))
    document = client.get("/a b/v1/openapi.json").get_json()
    assert document == DOCUMENT | {"servers": [{"url": "/a%20b/v1"}]}
