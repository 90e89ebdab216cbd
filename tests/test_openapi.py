"""openapi.json agrees with the service. system/test_clients.py runs schemathesis."""

import json
import re
from typing import Any

import pytest
from flask.testing import FlaskClient

import schemas
from tests.helpers import add_pet
from tests.request_table import ACCEPTED, REFUSED, Request
from tests.service import ROOT

DOCUMENT = json.loads((ROOT / "openapi.json").read_bytes())
SCHEMAS = DOCUMENT["components"]["schemas"]


def resolved(node: Any) -> Any:
    """Return a part of the document with each `$ref` replaced by what it refers to."""
    if isinstance(node, list):
        return [resolved(item) for item in node]
    if not isinstance(node, dict):
        return node
    target: dict[str, Any] = {}
    if "$ref" in node:
        target = DOCUMENT
        for name in node["$ref"].removeprefix("#/").split("/"):
            target = target[name]
    members = {name: value for name, value in node.items() if name != "$ref"}
    return {name: resolved(value) for name, value in {**target, **members}.items()}


OPERATIONS = {
    operation["operationId"]: {**resolved(operation), "method": method, "path": path}
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


def content(response: dict[str, Any]) -> dict[str, Any]:
    """Return the schema and the examples of a documented response or body."""
    return dict(response.get("content", {}).get("application/json", {}))


def test_every_route_under_v1_is_an_operation(client: FlaskClient) -> None:
    routes = {
        rule.endpoint.partition(".")[2]: (
            rule.methods - {"HEAD", "OPTIONS"},
            re.sub("<.*:pet_id>", "{petId}", rule.rule),
        )
        for rule in client.application.url_map.iter_rules()
        if rule.methods and rule.rule.startswith("/v1")
    }
    documented = {
        name: ({operation["method"].upper()}, f"/v1{operation['path']}")
        for name, operation in OPERATIONS.items()
    }
    assert routes == documented


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_but_one_needs_a_key(anonymous: FlaskClient, name: str) -> None:
    operation = OPERATIONS[name]
    path = f"/v1{operation['path']}".replace("{petId}", "1")
    response = anonymous.open(path, method=operation["method"])
    is_public = name == "getOpenapi"
    assert response.status_code == (200 if is_public else 401)
    # The `security` of the document is for all operations that have none.
    assert operation.get("security") == ([] if is_public else None)


def test_the_codes_of_every_response_are_those_of_the_service() -> None:
    documented = {
        (name, int(status), code)
        for name, operation in OPERATIONS.items()
        for status, response in operation["responses"].items()
        for code in content(response).get("examples", [""])
    }
    sent = {(row.operation, row.status, row.code) for row in [*ACCEPTED, *REFUSED]}
    # Other tests check the 500 and the 503.
    sent |= {(name, 500, "internal_error") for name in OPERATIONS}
    sent |= {(name, 503, "storage_unavailable") for name in OPERATIONS}
    sent -= {("getOpenapi", 503, "storage_unavailable")}
    assert documented == sent | {("getPet", 410, "gone")}


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_the_examples_of_errors_are_real(client: FlaskClient, row: Request) -> None:
    add_pet(client)
    response = OPERATIONS[row.operation]["responses"][str(row.status)]
    example = content(response)["examples"][row.code]["value"]
    assert row.send(client).get_json() == example
    assert example.keys() == SCHEMAS["Error"]["properties"].keys()


@pytest.mark.parametrize("row", ACCEPTED, ids=str)
def test_the_headers_of_a_response_are_documented(
    client: FlaskClient, row: Request
) -> None:
    for _ in range(21):
        add_pet(client)
    response = row.send(client)
    documented = OPERATIONS[row.operation]["responses"][str(row.status)]
    for name in ("Deprecation", "Sunset", "Link", "Location"):
        assert (name in response.headers) == (name in documented.get("headers", {}))


# schemathesis tries the limits and the required members. It notices only a part of what
# these tests compare.


def test_the_parameters_of_the_query_are_those_of_the_service() -> None:
    defaults = {
        parameter["name"]: parameter["schema"].get("default")
        for parameter in OPERATIONS["listPets"]["parameters"]
    }
    fields = schemas.LIST_QUERY.fields
    assert defaults == {
        field.data_key or key: field.load_default for key, field in fields.items()
    }


# What a response contains is not parsed, so schemas.py has no class for it.
IN_RESPONSES = {"PetStatus", "Pet", "Pets", "Error"}


@pytest.mark.parametrize("name", sorted(SCHEMAS.keys() - IN_RESPONSES))
def test_the_members_of_a_body_are_those_of_the_service(name: str) -> None:
    members = SCHEMAS[name]["properties"]
    fields = getattr(schemas, name)().fields
    assert [*members] == [field.data_key or key for key, field in fields.items()]
    # A `default` would make a member required in the types of some generators.
    assert not any("default" in member for member in members.values())


def test_a_pet_has_the_members_of_the_document(client: FlaskClient) -> None:
    members = add_pet(client).keys()
    assert members == SCHEMAS["Pet"]["properties"].keys()
    assert members == set(SCHEMAS["Pet"]["required"])


def test_the_values_of_a_member_are_those_of_the_service() -> None:
    assert SCHEMAS["PetStatus"]["enum"] == [*schemas.STATUSES]
    # Without its limits: JavaScript would round them to numbers that no int64 is.
    category_id = SCHEMAS["NewPet"]["properties"]["categoryId"]
    assert category_id["format"] == "int64"
    assert not {"minimum", "maximum"} & category_id.keys()


def test_the_default_of_the_status_is_in_its_description(client: FlaskClient) -> None:
    default = add_pet(client)["status"]
    description = SCHEMAS["NewPet"]["properties"]["status"]["description"]
    assert f"the pet is `{default}`" in description


def test_the_document_that_is_served_is_the_file(client: FlaskClient) -> None:
    response = client.get("/v1/openapi.json")
    assert response.get_json() == DOCUMENT
    # Indented, because people click its link.
    assert response.text.startswith('{\n  "openapi": "3.1.0",\n')
    response = client.get(
        "/v1/openapi.json", environ_overrides={"SCRIPT_NAME": "/store"}
    )
    assert response.get_json()["servers"] == [{"url": "/store/v1"}]
