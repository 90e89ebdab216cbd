"""The OpenAPI document says what the code does, and the code what the document says."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import marshmallow
import pytest
from flask import Flask
from flask.testing import FlaskClient
from marshmallow import fields, validate
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client, TestResponse

import errors
import schemas
from tests.checks import REMOVED_AT, add_pet, add_pets, assert_error
from tests.conftest import KEY
from tests.service import ROOT

DOCUMENT = json.loads((ROOT / "openapi.json").read_text("utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]

# The text of the document has the first two; the others follow from the body.
ON_EVERY_ANSWER = {"Cache-Control", "X-Content-Type-Options"}
ON_EVERY_ANSWER |= {"Content-Type", "Content-Length"}

# What leads to the answer in an example, as changes to the request that the document's
# own examples make.
CHANGES: dict[str, dict[str, Any]] = {
    "missing_api_key": {"headers": {"Authorization": ""}},
    "invalid_api_key": {"headers": {"Authorization": "Bearer other"}},
    "method_not_allowed": {"method": "DELETE"},
    "invalid_query": {"query_string": "limit=0"},
    "malformed_body": {"json": None},
    "invalid_body": {"json": {"name": "Rex"}},
    "body_too_large": {"json": "x" * 65_536},
    "media_type": {"content_type": "text/plain"},
    "encoding": {"headers": {"Content-Encoding": "gzip"}},
    "not_found": {"path": "/v1/pets/a%2Fb"},
}


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """Return what a node refers to, and the members beside the reference."""
    if "$ref" not in node:
        return node
    target = DOCUMENT
    for name in node["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return {**resolve(target), **node}


def examples(content: dict[str, Any]) -> dict[str, Any]:
    """Return the examples of a body, which is JSON and nothing else."""
    assert list(content) == ["application/json"]
    named = content["application/json"].get("examples", {})
    return {name: example["value"] for name, example in named.items()}


class Operation(NamedTuple):
    """An operation of the document, and the request that its examples make."""

    id: str
    method: str
    path: str
    members: dict[str, Any]
    parameters: list[dict[str, Any]]
    bodies: dict[str, Any]
    responses: dict[int, dict[str, Any]]

    def request(self, example: str) -> dict[str, Any]:
        """Return the request that leads to the answer in an example."""
        given: dict[str, dict[str, Any]] = {"path": {}, "query": {}}
        for parameter in self.parameters:
            given[parameter["in"]][parameter["name"]] = parameter["example"]
        request = {
            "method": self.method,
            "path": self.path.format(**given["path"]),
            "query_string": given["query"],
            "json": self.bodies.get(example, next(iter(self.bodies.values()), None)),
        }
        return {**request, **CHANGES.get(example, {})}


def operations() -> list[Operation]:
    """Return the operations in the document."""
    found = []
    for path, item in DOCUMENT["paths"].items():
        [server] = item.get("servers", DOCUMENT["servers"])
        for method, members in item.items():
            if method == "servers":
                continue
            body = members.get("requestBody")
            responses = members["responses"].items()
            operation = Operation(
                members["operationId"],
                method.upper(),
                server["url"].rstrip("/") + path,
                members,
                [resolve(node) for node in members.get("parameters", [])],
                examples(body["content"]) if body else {},
                {int(status): resolve(node) for status, node in responses},
            )
            found.append(operation)
    return found


OPERATIONS = {operation.id: operation for operation in operations()}

Ask = Callable[[Operation, str], TestResponse]


@pytest.fixture
def ask(
    app: Flask, client: FlaskClient, database: Path, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """A function that returns the service's answer where an example says it comes."""

    def ask(operation: Operation, example: str) -> TestResponse:
        if example in ("page", "found"):
            add_pets(client, "available", "sold", "available", "sold", "sold")
        if example == "gone":
            monkeypatch.setattr("time.time", lambda: REMOVED_AT)
        if example == "storage_unavailable":
            database.rename(database.with_suffix(".away"))
        if example == "internal_error":
            app.view_functions[operation.id] = lambda **_: str(1 / 0)
        return client.open(**operation.request(example))

    return ask


def limits(field: fields.Field[Any]) -> dict[str, Any]:
    """Return what the code says of a member, in the words of JSON Schema."""
    found: dict[str, Any] = {"type": "string"}
    if isinstance(field, fields.Integer):
        found = {"type": "integer"}
    if field.load_default not in (marshmallow.missing, None):
        found["default"] = field.load_default
    for rule in field.validators:
        if isinstance(rule, validate.Range):
            found |= {"minimum": rule.min, "maximum": rule.max}
            if rule.max == schemas.INT64_MAX:
                found["format"] = "int64"
        if isinstance(rule, validate.OneOf):
            found["enum"] = list(rule.choices)
    return found


def documented_limits(node: dict[str, Any]) -> dict[str, Any]:
    """Return what the document says of a member, but for its meaning."""
    words = resolve(node)
    return {word: words[word] for word in words.keys() - {"$ref", "description"}}


def members_of_code(schema: marshmallow.Schema) -> dict[str, tuple[bool, Any]]:
    """Return whether each member is required, and its limits."""
    return {
        field.data_key or name: (field.required, limits(field))
        for name, field in schema.fields.items()
    }


def test_every_operation_is_a_route_and_every_route_an_operation(app: Flask) -> None:
    routes = {
        (rule.endpoint, method, re.sub("<.*?>", "{}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert routes == {
        (operation.id, operation.method, re.sub("{.*?}", "{}", operation.path))
        for operation in OPERATIONS.values()
    }


def test_the_query_has_the_limits_of_the_code() -> None:
    assert members_of_code(schemas.LIST_QUERY_SCHEMA) == {
        parameter["name"]: (
            parameter.get("required", False),
            documented_limits(parameter["schema"]),
        )
        for parameter in OPERATIONS["listPets"].parameters
    }


def test_a_new_pet_has_the_members_of_the_code() -> None:
    document = SCHEMAS["NewPet"]
    assert members_of_code(schemas.NEW_PET_SCHEMA) == {
        name: (name in document["required"], documented_limits(node))
        for name, node in document["properties"].items()
    }


def test_a_pet_has_the_members_that_come_back(client: FlaskClient) -> None:
    pet = SCHEMAS["Pet"]
    assert list(add_pet(client)) == list(pet["properties"]) == pet["required"]


def test_a_pet_is_a_new_pet_with_an_id() -> None:
    pet = {
        name: documented_limits(n) for name, n in SCHEMAS["Pet"]["properties"].items()
    }
    new_pet = members_of_code(schemas.NEW_PET_SCHEMA)
    for name, (_, words) in new_pet.items():
        assert pet[name] == {word: words[word] for word in words.keys() - {"default"}}
    assert pet.keys() - new_pet.keys() == {"id"}
    assert (pet["id"]["minimum"], pet["id"]["maximum"]) == (1, schemas.INT64_MAX)


def test_every_error_code_is_documented_under_its_status_and_no_other() -> None:
    documented = {
        (example["code"], status)
        for operation in OPERATIONS.values()
        for status, response in operation.responses.items()
        for example in examples(response["content"]).values()
        if status >= 400
    }
    assert documented == set(errors.STATUS_BY_CODE.items())


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        pytest.param(operation, status, id=f"{operation.id}-{status}")
        for operation in OPERATIONS.values()
        for status in operation.responses
    ],
)
def test_an_answer_is_as_documented(
    ask: Ask, operation: Operation, status: int
) -> None:
    response = operation.responses[status]
    headers = {name: resolve(h) for name, h in response.get("headers", {}).items()}
    bodies = examples(response["content"])
    sent = defaultdict(list)
    for example, body in bodies.items():
        answer = ask(operation, example)
        assert (answer.status_code, answer.get_json()) == (status, body)
        for name, value in answer.headers:
            if name not in ON_EVERY_ANSWER:
                sent[name].append(value)
    assert sent.keys() == headers.keys()
    for name, header in headers.items():
        if header.get("required"):
            assert len(sent[name]) == len(bodies)
        if "const" in header["schema"]:
            assert set(sent[name]) == {str(header["schema"]["const"])}
        if "example" in header:
            assert header["example"] in sent[name]


def test_an_error_is_the_error_body_with_the_codes_of_its_examples() -> None:
    error = SCHEMAS["Error"]
    assert set(error["properties"]) == set(error["required"])
    for operation in OPERATIONS.values():
        for status, response in operation.responses.items():
            if status >= 400:
                schema = response["content"]["application/json"]["schema"]
                bodies = examples(response["content"]).values()
                assert schema["$ref"] == "#/components/schemas/Error"
                code, repeated = schema["properties"].values()
                assert code == {"enum": list({body["code"]: 1 for body in bodies})}
                assert repeated == {"const": status}
                assert all(set(body) == set(error["required"]) for body in bodies)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize(
    "example",
    ["missing_api_key", "method_not_allowed", "internal_error", "storage_unavailable"],
)
def test_what_befalls_any_operation_is_documented(
    ask: Ask, operation: Operation, example: str
) -> None:
    assert ask(operation, example).status_code in operation.responses


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_key_is_needed_where_the_document_says_so(
    anonymous: FlaskClient, operation: Operation
) -> None:
    request = operation.request("")
    requirement = operation.members.get("security", DOCUMENT["security"])
    needed = anonymous.open(**request).status_code == 401
    assert needed == bool(requirement)
    for name in itertools.chain(*requirement):
        scheme = DOCUMENT["components"]["securitySchemes"][name]["scheme"]
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert anonymous.open(**request, headers=headers).status_code != 401


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_what_announces_its_end_is_deprecated(ask: Ask, operation: Operation) -> None:
    announced = "Deprecation" in ask(operation, "found").headers
    assert operation.members.get("deprecated", False) == announced


def test_the_document_is_served_without_a_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/v1/openapi.json")
    assert response.status_code == 200
    assert response.content_type == "application/json"
    assert response.get_json() == DOCUMENT
    assert_error(anonymous.post("/v1/openapi.json"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    "path", ["/v1//openapi.json", "/v1/openapi.json/", "/v1/openapi.jso", "/v1/x.json"]
)
def test_only_the_document_is(anonymous: FlaskClient, path: str) -> None:
    assert_error(anonymous.get(path), 401, "missing_api_key")


def test_under_a_prefix_the_servers_carry_it(app: Flask) -> None:
    client = Client(DispatcherMiddleware(Flask("outer"), {"/a b": app}))
    document = client.get("/a b/v1/openapi.json").get_json()
    [server] = document.pop("servers")
    [root] = document["paths"]["/healthz"].pop("servers")
    assert (server["url"], root["url"]) == ("/a%20b/v1", "/a%20b/")
    expected = json.loads(json.dumps(DOCUMENT))
    del expected["servers"], expected["paths"]["/healthz"]["servers"]
    assert document == expected
