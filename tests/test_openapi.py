"""The OpenAPI document and the service say the same about every operation.

The requests come from tests/request_table.py, and the rules of the input from
schemas.py. So these tests check a new operation as well. docs/development.md shows how
to add one.
"""

import itertools
import json
import re
from collections.abc import Callable
from functools import cache, reduce
from operator import getitem
from typing import Any

import pytest
from flask.testing import FlaskClient
from marshmallow import Schema, fields, missing, validate
from werkzeug.test import TestResponse

import schemas
from errors import RESPONSE_HEADERS
from tests.conftest import create_client
from tests.helpers import add_pet, add_pets, assert_error, routes
from tests.process import ROOT
from tests.request_table import REQUESTS, Request

DOCUMENT = json.loads((ROOT / "openapi.json").read_bytes())


def inlined(node: Any) -> Any:
    """Return a part of the document with `$ref` resolved and without descriptions."""
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
RESPONSES = [
    (name, status) for name in OPERATIONS for status in OPERATIONS[name]["responses"]
]
# The description of the document has RESPONSE_HEADERS, so that its responses need not.
HEADERS_OF_EVERY_RESPONSE = {name for name, _ in RESPONSE_HEADERS}
HEADERS_OF_EVERY_RESPONSE |= {"Content-Type", "Content-Length"}


# Answers.


def documented_path(row: Request) -> str | None:
    """Return the path in the document that a request is for."""
    path = row.path.partition("?")[0]
    paths = [f"/v1{path}" for path in DOCUMENT["paths"]]
    found = [p for p in paths if re.fullmatch(re.sub("{.*?}", "[^/]*", p), path)]
    # A path without parameters comes first, as it does in Flask.
    return min(found, key=lambda p: p.count("{"), default=None)


def requests_of(name: str) -> list[Request]:
    """Return the requests for an operation, and those for its path that get 405."""
    method, path = OPERATIONS[name]["route"].split()
    rows = [row for row in REQUESTS if documented_path(row) == path]
    return [row for row in rows if row.method == method or row.status == 405]


def content_of(node: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the schema of a JSON body and its examples."""
    [(media_type, body)] = node["content"].items()
    assert media_type == "application/json"
    return body["schema"], [e["value"] for e in body.get("examples", {}).values()]


def sort_unique(bodies: list[Any]) -> list[Any]:
    """Return each of the bodies once, in the order of their JSON."""
    texts = {json.dumps(body, sort_keys=True) for body in bodies}
    return [json.loads(text) for text in sorted(texts)]


JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value has the types and exactly the members of a schema."""
    if JSON_TYPES[type(value)] != schema["type"]:
        return False
    if isinstance(value, list):
        return all(fits(item, schema["items"]) for item in value)
    if not isinstance(value, dict):
        return True
    if "properties" not in schema:
        # Only the schema of the response of getOpenapi lists no members.
        return bool(value == DOCUMENT)
    members = schema["properties"]
    has_all = value.keys() == members.keys() == set(schema["required"])
    return has_all and all(fits(value[name], members[name]) for name in members)


Responses = Callable[[str, str], list[TestResponse]]


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> Responses:
    """Return a function that sends the requests of an operation with one status."""

    @cache
    def send(name: str, status: str) -> list[TestResponse]:
        rows = [row for row in requests_of(name) if str(row.status) == status]
        assert rows, (
            f"tests/request_table.py has no request for {name} with status {status}"
        )
        client = create_client(tmp_path_factory.mktemp(name) / "pets.db")
        with pytest.MonkeyPatch.context() as monkeypatch:
            return [row.send(client, monkeypatch) for row in rows]

    return send


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_status_of_an_operation_is_documented_and_tested(name: str) -> None:
    tested = {str(row.status) for row in requests_of(name)}
    documented = OPERATIONS[name]["responses"].keys()
    assert documented == tested, (
        f"openapi.json needs these responses of {name}: {sorted(tested - documented)}, "
        f"tests/request_table.py these rows: {sorted(documented - tested)}"
    )


@pytest.mark.parametrize(("name", "status"), RESPONSES)
def test_the_body_of_a_response_is_documented(
    responses: Responses, name: str, status: str
) -> None:
    documented = OPERATIONS[name]["responses"][status]
    if "content" not in documented:
        assert [
            response.data for response in responses(name, status) if response.data
        ] == []
        return
    schema, _ = content_of(documented)
    bodies = [response.get_json() for response in responses(name, status)]
    if int(status) < 400:
        assert [body for body in bodies if not fits(body, schema)] == []
        return
    codes = schema["properties"]["code"].get("enum", [])
    assert sorted(codes) == sorted({body["code"] for body in bodies})
    members = {"code": {"enum": codes}, "status": {"const": int(status)}}
    assert schema == SCHEMAS["Error"] | {"properties": members}


@pytest.mark.parametrize(("name", "status"), RESPONSES)
def test_the_examples_of_a_response_are_real(
    responses: Responses, name: str, status: str
) -> None:
    documented = OPERATIONS[name]["responses"][status]
    if "content" not in documented:
        return
    _, examples = content_of(documented)
    # Several operations may share a response in the document. At least one of them has
    # to return exactly the examples.
    sharing = [
        o for o in OPERATIONS if OPERATIONS[o]["responses"].get(status) == documented
    ]
    real = []
    for operation in sharing:
        bodies = [response.get_json() for response in responses(operation, status)]
        # Empty pages and the OpenAPI document need no examples.
        real.append(
            sort_unique([body for body in bodies if body not in ([], DOCUMENT)])
        )
    assert sort_unique(examples) in real


@pytest.mark.parametrize(("name", "status"), RESPONSES)
def test_the_headers_of_a_response_are_documented(
    responses: Responses, name: str, status: str
) -> None:
    documented = OPERATIONS[name]["responses"][status].get("headers", {})
    all_headers = [response.headers for response in responses(name, status)]
    sent = {field for headers in all_headers for field, _ in headers}
    assert sent - HEADERS_OF_EVERY_RESPONSE == documented.keys()
    for field, header in documented.items():
        values = [headers[field] for headers in all_headers if field in headers]
        assert header.get("required", False) == (len(values) == len(all_headers))
        type_ = "integer" if values[0].isdecimal() else "string"
        assert header["schema"]["type"] == type_
        value = header["schema"].get("const", header.get("example"))
        if field == "Allow":
            # No example: the methods may come in any order.
            assert value is None
        else:
            assert str(value) in values


def test_the_shared_404_is_that_of_get_pet_without_its_headers() -> None:
    own = OPERATIONS["getPet"]["responses"]["404"]
    assert own.keys() == {"headers", "content"}
    shared = inlined(DOCUMENT["components"]["responses"]["PetNotFound"])
    assert shared == {"content": own["content"]}


# Input.

# The marshmallow schemas that the code loads queries and bodies with.
INPUTS = [value for value in vars(schemas).values() if isinstance(value, Schema)]
# The JSON schema of each type of field.
FIELD_SCHEMAS = {fields.Integer: {"type": "integer"}, fields.String: {"type": "string"}}
# The JSON schema of a parameter in the path, by the type of its example.
PATH_SCHEMAS = {int: {"type": "integer", "format": "int64"}, str: {"type": "string"}}


def json_name(field: fields.Field) -> str:
    """Return the name of a field in a query or in JSON."""
    return field.data_key or field.name


def json_schema(field: fields.Field) -> dict[str, Any]:
    """Return the JSON schema of the values that a field accepts."""
    schema: dict[str, Any] = dict(FIELD_SCHEMAS[type(field)])
    for rule in field.validators:
        if isinstance(rule, validate.OneOf):
            schema["enum"] = list(rule.choices)
        elif isinstance(rule, validate.Range):
            schema |= {"minimum": rule.min, "maximum": rule.max}
            if rule.max == schemas.INT64.max:
                schema["format"] = "int64"
    return schema


def body_schema(schema: Schema) -> dict[str, Any]:
    """Return the JSON schema of the bodies that a schema accepts."""
    # No `default`: code generators would make these members required.
    members = {json_name(field): field for field in schema.fields.values()}
    required = [name for name, field in members.items() if field.required]
    return {
        "type": "object",
        **({"required": required} if required and not schema.partial else {}),
        "properties": {name: json_schema(field) for name, field in members.items()},
    }


def query_parameters(schema: Schema) -> list[dict[str, Any]]:
    """Return the parameters of the queries that a schema accepts."""
    parameters = []
    for field in schema.fields.values():
        documented = json_schema(field)
        if field.load_default not in (None, missing):
            documented["default"] = field.load_default
        # Examples are left out: tools would send them, and find no pets.
        parameter = {"name": json_name(field), "in": "query", "schema": documented}
        parameters.append(parameter | ({"required": True} if field.required else {}))
    return parameters


# Every member and parameter that some operation checks.
NAMES = {json_name(field) for schema in INPUTS for field in schema.fields.values()}


def accepted_request(name: str) -> Request:
    """Return a request that the operation accepts."""
    rows = [row for row in requests_of(name) if row.status < 300]
    assert rows, f"tests/request_table.py has no request that {name} accepts"
    return rows[0]


def refused_names(response: TestResponse, pattern: str) -> set[str]:
    """Return the members or parameters that a 400 names, as the pattern finds them."""
    if response.status_code != 400:
        return set()
    return NAMES & set(re.findall(pattern, response.get_json()["message"]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_parameters_in_the_path_are_documented(name: str) -> None:
    _, path = OPERATIONS[name]["route"].split()
    parameters = OPERATIONS[name].get("parameters", [])
    documented = [p for p in parameters if p["in"] == "path"]
    assert [p["name"] for p in documented] == re.findall("{(.*?)}", path)
    for parameter in documented:
        assert parameter.keys() == {"name", "in", "required", "schema", "example"}
        assert parameter["required"] is True
        assert parameter["schema"] == PATH_SCHEMAS[type(parameter["example"])]
    # The path with these examples is the path of an accepted request.
    examples = {p["name"]: p["example"] for p in documented}
    assert path.format(**examples) == accepted_request(name).path.partition("?")[0]


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_parameters_in_the_query_are_documented(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parameters = OPERATIONS[name].get("parameters", [])
    documented = [p for p in parameters if p["in"] != "path"]
    # A parameter that the service knows is refused if it is repeated. The message
    # names all of these: "Send limit and status only once."
    row = accepted_request(name)
    query = "&".join(f"{known}=1&{known}=1" for known in sorted(NAMES))
    row = row._replace(path=f"{row.path.partition('?')[0]}?{query}")
    refused = refused_names(row.send(client, monkeypatch), r"\w+")
    assert refused == {parameter["name"] for parameter in documented}
    assert documented in [[], *map(query_parameters, INPUTS)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_body_of_a_request_is_documented(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    body = OPERATIONS[name].get("requestBody")
    schema, examples = content_of(body) if body else ({}, [])
    accepted = [row.json for row in requests_of(name) if row.status < 300]
    assert examples == [sent for sent in accepted if sent is not None], (
        f"the examples of the requestBody of {name} are not the bodies that it accepts"
    )

    def refused(sent: object) -> set[str]:
        row = accepted_request(name)._replace(json=sent)
        return refused_names(row.send(client, monkeypatch), r"(\w+):")

    # No member may be an object or null.
    members = schema.get("properties", {}).keys()
    message = f"{name} checks other members than its requestBody in openapi.json has"
    assert refused(dict.fromkeys(NAMES, {})) == members, message
    assert refused(dict.fromkeys(NAMES, None)) == members, message
    assert refused({}) == set(schema.get("required", [])), message
    assert schema in [{}, *map(body_schema, INPUTS)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_body_that_is_needed_is_documented_as_required(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    response = accepted_request(name)._replace(json=None).send(client, monkeypatch)
    if OPERATIONS[name].get("requestBody", {}).get("required", False):
        assert_error(response, 400, "malformed_body")
    else:
        assert response.status_code < 300, (
            f"{name} needs a body: openapi.json has to say that it is required"
        )


def test_the_schemas_of_the_pets_are_those_of_the_code(client: FlaskClient) -> None:
    new_pet = body_schema(schemas.NEW_PET)
    members = new_pet["properties"]
    pet = {"id": members["categoryId"] | {"minimum": 1}, **members}
    assert list(pet) == list(add_pet(client))
    text = {"type": "string"}
    status = {"type": "integer", "minimum": 400, "maximum": 599}
    error = {"code": text, "message": text, "status": status}
    expected = {
        "PetStatus": members["status"],
        "NewPet": new_pet,
        "Pet": {"type": "object", "required": list(pet), "properties": pet},
        "Pets": {"type": "array", "items": SCHEMAS["Pet"]},
        "Error": {"type": "object", "required": list(error), "properties": error},
        "Document": {"type": "object", "additionalProperties": True},
    }
    assert {name: SCHEMAS[name] for name in expected} == expected


# The rest.


def test_every_operation_is_a_route_and_all_routes_but_two_are_operations(
    client: FlaskClient,
) -> None:
    others = {"GET /healthz": "api.get_health", "GET /": "api.get_page"}
    documented = {o["route"]: f"api.{name}" for name, o in OPERATIONS.items()}
    message = "app.py and openapi.json have different operations"
    assert routes(client) == others | documented, message


def test_an_operation_needs_a_key_if_401_is_documented() -> None:
    for operation in OPERATIONS.values():
        needed = [{"apiKey": []}] if "401" in operation["responses"] else []
        assert operation.get("security", DOCUMENT["security"]) == needed
    schemes = inlined(DOCUMENT["components"]["securitySchemes"])
    assert schemes == {"apiKey": {"type": "http", "scheme": "bearer"}}


def test_an_operation_is_deprecated_if_its_responses_say_so() -> None:
    for operation in OPERATIONS.values():
        announced = "Deprecation" in str(operation["responses"])
        assert operation.get("deprecated", False) == announced


def test_every_operation_has_one_of_the_tags() -> None:
    used = [operation["tags"] for operation in OPERATIONS.values()]
    assert {len(tags) for tags in used} == {1}
    assert {tags[0] for tags in used} == {tag["name"] for tag in DOCUMENT["tags"]}


def test_the_descriptions_name_the_maximum_body_size_and_the_defaults() -> None:
    assert f"at most {schemas.MAX_BODY_BYTES:,} bytes" in json.dumps(DOCUMENT)
    for name, schema in itertools.product(SCHEMAS, INPUTS):
        if SCHEMAS[name] != body_schema(schema) or schema.partial:
            continue
        members = DOCUMENT["components"]["schemas"][name]["properties"]
        for field in schema.fields.values():
            if field.load_default is not missing:
                words = f"`{field.load_default}` if it is left out"
                assert words in members[json_name(field)]["description"]


def test_the_replacement_of_get_pet_returns_pet_7(client: FlaskClient) -> None:
    add_pets(client, *["sold"] * 8)
    query = "/pets?after=6&limit=1"
    [pet] = client.get(f"/v1{query}").get_json()
    assert pet["id"] == 7
    responses = DOCUMENT["components"]["responses"]
    [gone] = content_of(responses["Gone"])[1]
    operation = DOCUMENT["paths"]["/pets/{petId}"]["get"]
    for node in (operation, responses["Gone"], {"description": gone["message"]}):
        assert query in node["description"]
