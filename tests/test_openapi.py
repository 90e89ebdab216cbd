"""The OpenAPI document says what the code does, and the code what the document says."""

import json
import re
from collections import defaultdict
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

import schemas
from app import HEADERS
from tests.checks import PET, add_pet
from tests.requests import REQUESTS, TOM
from tests.service import KEY

DOCUMENT = json.loads(Path(__file__).parents[1].joinpath("openapi.json").read_bytes())


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


PATHS, SCHEMAS = inlined(DOCUMENT["paths"]), inlined(DOCUMENT["components"]["schemas"])
OPERATIONS = {
    node["operationId"]: node for at in PATHS.values() for node in at.values()
}
ANSWERS = {
    (name, int(status)): answer
    for name, operation in OPERATIONS.items()
    for status, answer in operation["responses"].items()
}


def body_of(node: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of a body, which is JSON and nothing else, and its examples."""
    assert list(node["content"]) == ["application/json"]
    body = node["content"]["application/json"]
    return body["schema"], {k: v["value"] for k, v in body.get("examples", {}).items()}


# The text of the document has the first of them; the last two follow from the body.
ON_EVERY_ANSWER = {name for name, _ in HEADERS} | {"Content-Type", "Content-Length"}


def test_every_example_has_its_request_and_every_request_its_example() -> None:
    rows = [(row.operation, row.example) for row in REQUESTS if row.operation]
    examples = [(key[0], name) for key in ANSWERS for name in body_of(ANSWERS[key])[1]]
    assert sorted(rows) == sorted(examples)


@pytest.mark.parametrize(("operation", "status"), ANSWERS)
def test_an_answer_is_as_documented(
    file_client: FlaskClient,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    status: int,
) -> None:
    _, bodies = body_of(ANSWERS[operation, status])
    headers = ANSWERS[operation, status].get("headers", {})
    sent = defaultdict(list)
    for row in REQUESTS:
        if row.operation == operation and row.example in bodies:
            answer = row.send(file_client, monkeypatch)
            assert (answer.status_code, answer.get_json()) == (
                status,
                bodies[row.example],
            )
            for name, value in answer.headers:
                sent[name].append(value)
    assert sent.keys() - ON_EVERY_ANSWER == headers.keys()
    for name, header in headers.items():
        # The last page has no Link.
        is_required = len(sent[name]) == len(bodies) and "page" not in bodies
        assert header.get("required", False) == is_required
        if "const" in header["schema"]:
            assert set(sent[name]) == {str(header["schema"]["const"])}
        if "example" in header:
            assert header["example"] in sent[name]


def test_every_operation_is_a_route_and_all_routes_but_two_are_operations(
    client: FlaskClient,
) -> None:
    routes = {
        (rule.endpoint, re.sub("<.*?>", "{}", rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    others = {("api.health", "/healthz", "get"), ("api.page", "/", "get")}
    assert routes - others == {
        (f"api.{operation['operationId']}", re.sub("{.*?}", "{}", f"/v1{at}"), method)
        for at, item in PATHS.items()
        for method, operation in item.items()
    }


def test_one_server_has_every_path() -> None:
    assert DOCUMENT["servers"] == [{"url": "/v1"}]
    assert json.dumps(DOCUMENT).count('"servers":') == 1


def test_a_failure_is_the_error_body_with_a_code_of_its_status() -> None:
    for (_, status), answer in ANSWERS.items():
        if status >= 400:
            schema, bodies = body_of(answer)
            codes = list({body["code"]: None for body in bodies.values()})
            members = {"code": {"enum": codes}, "status": {"const": status}}
            assert schema == SCHEMAS["Error"] | {"properties": members}


def test_a_bearer_key_is_needed_where_401_is_documented(anonymous: FlaskClient) -> None:
    for name, operation in OPERATIONS.items():
        security = operation.get("security", DOCUMENT["security"])
        assert security == ([{"apiKey": []}] if (name, 401) in ANSWERS else [])
    scheme = DOCUMENT["components"]["securitySchemes"]["apiKey"]
    assert scheme["type"] == "http"
    headers = {"Authorization": f"{scheme['scheme']} {KEY}"}
    assert anonymous.get("/v1/pets", headers=headers).status_code == 200


def test_what_announces_its_end_is_deprecated() -> None:
    for (name, status), answer in ANSWERS.items():
        if status < 400:
            announced = "Deprecation" in answer.get("headers", {})
            assert OPERATIONS[name].get("deprecated", False) == announced


def integer(minimum: int, maximum: int, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, **more}


def an_object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


INT64 = {"type": "integer", "format": "int64"}
STATUS = {"type": "string", "enum": list(schemas.STATUS.choices)}


def test_the_parameters_have_the_limits_of_the_code() -> None:
    fields = schemas.LIST_QUERY.fields
    assert list(fields) == ["limit", "status", "after"]
    [limit], [after] = fields["limit"].validators, fields["after"].validators
    size = integer(limit.min, limit.max, default=fields["limit"].load_default)
    last = integer(after.min, after.max, default=fields["after"].load_default)
    # Examples would be filled in by tools whose first try would then find nothing.
    assert OPERATIONS["listPets"]["parameters"] == [
        {"name": "limit", "in": "query", "schema": size},
        {"name": "status", "in": "query", "schema": STATUS},
        {"name": "after", "in": "query", "schema": INT64 | last},
    ]
    assert OPERATIONS["getPet"]["parameters"] == [
        {"name": "petId", "in": "path", "required": True, "schema": INT64, "example": 1}
    ]


def test_the_bodies_have_the_members_and_limits_of_the_code(
    client: FlaskClient,
) -> None:
    in_code = schemas.NEW_PET.fields.values()
    fields = {field.data_key or field.name: field for field in in_code}
    new_pet = {
        "name": {"type": "string"},
        "categoryId": INT64 | integer(schemas.INT64.min, schemas.INT64.max),
        "status": STATUS,
    }
    assert list(new_pet) == list(fields)
    pet = {"id": INT64 | integer(1, schemas.INT64.max), **new_pet}
    assert list(pet) == list(add_pet(client))
    text = {"type": "string"}
    error = {"code": text, "message": text, "status": integer(400, 599)}
    required = [name for name in fields if fields[name].required]
    assert {
        "PetStatus": STATUS,
        "NewPet": an_object(new_pet, required),
        "Pet": an_object(pet, list(pet)),
        "Pets": {"type": "array", "items": an_object(pet, list(pet))},
        "Error": an_object(error, list(error)),
        "Document": {"type": "object", "additionalProperties": True},
    } == SCHEMAS


def test_a_success_has_the_schema_of_its_operation() -> None:
    successes = {k[0]: body_of(ANSWERS[k])[0] for k in ANSWERS if k[1] < 400}
    assert successes == {
        "listPets": SCHEMAS["Pets"],
        "createPet": SCHEMAS["Pet"],
        "getPet": SCHEMAS["Pet"],
        "getOpenapi": SCHEMAS["Document"],
    }


def test_the_body_of_a_request_is_a_new_pet() -> None:
    body = OPERATIONS["createPet"]["requestBody"]
    examples = {"least": PET, "whole": TOM}
    assert (body["required"], body_of(body)) == (True, (SCHEMAS["NewPet"], examples))
    description = DOCUMENT["paths"]["/pets"]["post"]["requestBody"]["description"]
    assert f"at most {schemas.MAX_BODY_BYTES:,} bytes" in description


def test_a_default_of_a_body_is_said_in_words_alone() -> None:
    """Types that are generated from a schema with a default require the member."""
    for operation in OPERATIONS.values():
        assert '"default":' not in json.dumps(operation.get("requestBody"))
    words = f"`{schemas.NEW_PET.fields['status'].load_default}` where it is left"
    new_pet = DOCUMENT["components"]["schemas"]["NewPet"]
    for node in (new_pet, new_pet["properties"]["status"]):
        assert words in node["description"]


def test_the_document_is_served_without_a_key(anonymous: FlaskClient) -> None:
    response = anonymous.get("/v1/openapi.json")
    assert (response.status_code, response.get_json()) == (200, DOCUMENT)
    assert set(response.headers.keys()) == ON_EVERY_ANSWER
