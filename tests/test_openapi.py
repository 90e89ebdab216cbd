"""The OpenAPI document says what the code does, and the code what the document says."""

import json
import re
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from flask.testing import FlaskClient
from marshmallow import fields, validate

import schemas
from app import HEADERS
from tests.helpers import add_pet, routes
from tests.process import ROOT
from tests.request_table import REQUESTS, Request

DOCUMENT = json.loads((ROOT / "openapi.json").read_bytes())


def inlined(node: Any) -> Any:
    """Return a part of the document with no `$ref` in it, and no description."""
    if isinstance(node, list):
        return [inlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {k: inlined(v) for k, v in node.items() if k not in ("$ref", "description")}
    if "$ref" in node:
        target = reduce(getitem, node["$ref"].split("/")[1:], DOCUMENT)
        return inlined(target) | found
    return found


SCHEMAS = inlined(DOCUMENT["components"]["schemas"])
OPERATIONS = {
    operation["operationId"]: operation | {"route": f"{method.upper()} /v1{path}"}
    for path, methods in inlined(DOCUMENT["paths"]).items()
    for method, operation in methods.items()
}
# The text of the document has the first of them; the last two follow from the body.
ON_EVERY_ANSWER = {name for name, _ in HEADERS} | {"Content-Type", "Content-Length"}


def requests_of(name: str) -> list[Request]:
    """Return the requests for an operation, or for a method that its path lacks."""
    method, path = OPERATIONS[name]["route"].split()
    pattern = re.compile(re.sub("{.*}", ".*", path) + r"(\?.*)?")
    rows = [row for row in REQUESTS if pattern.fullmatch(row.path)]
    return [row for row in rows if row.method == method or row.status == 405]


def content_of(node: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the schema of a body, which is JSON and nothing else, and its examples."""
    [(media_type, body)] = node["content"].items()
    assert media_type == "application/json"
    return body["schema"], [e["value"] for e in body.get("examples", {}).values()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_of_an_operation_is_documented(name: str) -> None:
    statuses = {str(row.status) for row in requests_of(name)}
    assert OPERATIONS[name]["responses"].keys() == statuses


@pytest.mark.parametrize(
    ("name", "status"),
    [(name, status) for name in OPERATIONS for status in OPERATIONS[name]["responses"]],
)
def test_an_answer_is_as_documented(
    file_client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str, status: str
) -> None:
    documented = OPERATIONS[name]["responses"][status]
    rows = [row for row in requests_of(name) if str(row.status) == status]
    answers = [row.send(file_client, monkeypatch) for row in rows]
    # The body.
    schema, examples = content_of(documented)
    if codes := list(dict.fromkeys(row.code for row in rows if row.code)):
        members = {"code": {"enum": codes}, "status": {"const": int(status)}}
        assert schema == SCHEMAS["Error"] | {"properties": members}
    else:
        others = {"listPets": "Pets", "getOpenapi": "Document"}
        assert schema == SCHEMAS[others.get(name, "Pet")]
    # An empty page says nothing, and the document is no example of itself.
    bodies = [answer.get_json() for answer in answers]
    bodies = [body for body in bodies if body not in ([], DOCUMENT)]
    assert [body for body in bodies if body not in examples] == []
    assert [example for example in examples if example not in bodies] == []
    # The headers.
    headers = documented.get("headers", {})
    sent = {field for answer in answers for field, _ in answer.headers}
    assert sent - ON_EVERY_ANSWER == headers.keys()
    for field, header in headers.items():
        values = [reply.headers[field] for reply in answers if field in reply.headers]
        assert header.get("required", False) == (len(values) == len(answers))
        type_ = "integer" if values[0].isdecimal() else "string"
        assert header["schema"]["type"] == type_
        value = header["schema"].get("const", header.get("example"))
        # The methods may come in any order.
        assert value is None if field == "Allow" else str(value) in values


def test_every_operation_is_a_route_and_all_routes_but_two_are_operations(
    client: FlaskClient,
) -> None:
    others = {"GET /healthz": "api.health", "GET /": "api.page"}
    assert routes(client) == others | {
        operation["route"]: f"api.{name}" for name, operation in OPERATIONS.items()
    }


def test_a_bearer_key_is_needed_where_401_is_documented() -> None:
    for operation in OPERATIONS.values():
        needed = [{"apiKey": []}] if "401" in operation["responses"] else []
        assert operation.get("security", DOCUMENT["security"]) == needed
    schemes = inlined(DOCUMENT["components"]["securitySchemes"])
    assert schemes == {"apiKey": {"type": "http", "scheme": "bearer"}}


def test_what_announces_its_end_is_deprecated() -> None:
    for operation in OPERATIONS.values():
        announced = "Deprecation" in str(operation["responses"])
        assert operation.get("deprecated", False) == announced


def schema_of(field: fields.Field) -> dict[str, Any]:
    """Return the JSON schema of what a field of the code takes."""
    schema = {"type": "integer" if isinstance(field, fields.Integer) else "string"}
    for rule in field.validators:
        if isinstance(rule, validate.OneOf):
            schema["enum"] = list(rule.choices)
        elif isinstance(rule, validate.Range):
            schema |= {"minimum": rule.min, "maximum": rule.max}
            if rule.max == schemas.INT64.max:
                schema["format"] = "int64"
    return schema


def test_the_parameters_are_those_of_the_code() -> None:
    parameters = []
    for name, field in schemas.LIST_QUERY.fields.items():
        schema = schema_of(field)
        if field.load_default is not None:
            schema["default"] = field.load_default
        # Examples would be filled in by tools whose first try would then find nothing.
        parameters.append({"name": name, "in": "query", "schema": schema})
    assert OPERATIONS["listPets"]["parameters"] == parameters
    int64 = {"type": "integer", "format": "int64"}
    assert OPERATIONS["getPet"]["parameters"] == [
        {"name": "petId", "in": "path", "required": True, "schema": int64, "example": 1}
    ]


def test_the_bodies_are_those_of_the_code(client: FlaskClient) -> None:
    in_code = {f.data_key or f.name: f for f in schemas.NEW_PET.fields.values()}
    new_pet = {name: schema_of(field) for name, field in in_code.items()}
    required = [name for name, field in in_code.items() if field.required]
    pet = {"id": new_pet["categoryId"] | {"minimum": 1}, **new_pet}
    assert list(pet) == list(add_pet(client))
    text = {"type": "string"}
    status = {"type": "integer", "minimum": 400, "maximum": 599}
    error = {"code": text, "message": text, "status": status}
    # No default in NewPet: types that are made from it would require the member.
    assert {
        "PetStatus": new_pet["status"],
        "NewPet": {"type": "object", "required": required, "properties": new_pet},
        "Pet": {"type": "object", "required": list(pet), "properties": pet},
        "Pets": {"type": "array", "items": SCHEMAS["Pet"]},
        "Error": {"type": "object", "required": list(error), "properties": error},
        "Document": {"type": "object", "additionalProperties": True},
    } == SCHEMAS


def test_the_body_of_a_request_is_a_new_pet() -> None:
    body = OPERATIONS["createPet"]["requestBody"]
    sent = [r.json for r in requests_of("createPet") if r.status == 201]
    assert (body["required"], *content_of(body)) == (True, SCHEMAS["NewPet"], sent)


def test_the_words_name_the_limit_and_the_default_of_the_code() -> None:
    words = json.dumps(DOCUMENT)
    assert f"at most {schemas.MAX_BODY_BYTES:,} bytes" in words
    default = schemas.NEW_PET.fields["status"].load_default
    assert words.count(f"`{default}` where it is left out") == 2
