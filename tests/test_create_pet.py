"""createPet: which bodies it accepts, and how it refuses the others."""

import json

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.helpers import NEW_PET, add_pet, assert_error

REX = json.dumps(NEW_PET)


def post(client: FlaskClient, body: str | bytes) -> TestResponse:
    return client.post("/v1/pets", data=body, content_type="application/json")


def with_member(name: str, literal: str) -> str:
    """Return a valid body with one member set to this JSON literal."""
    return json.dumps({**NEW_PET, name: "here"}).replace('"here"', literal)


def test_a_new_pet_is_returned_with_its_id_and_location(client: FlaskClient) -> None:
    response = post(client, json.dumps({**NEW_PET, "status": "pending"}))
    pet = {"id": 1, "name": "Rex", "categoryId": 1, "status": "pending"}
    assert response.status_code == 201
    assert response.content_type == "application/json"
    assert response.get_json() == pet
    assert response.headers["Location"] == "/v1/pets/1"
    assert client.get(response.headers["Location"]).get_json() == pet


def test_status_defaults_to_available_and_unknown_members_are_ignored(
    client: FlaskClient,
) -> None:
    pet = add_pet(client, id=99, tag={"a": [None]})
    assert pet == {"id": 1, **NEW_PET, "status": "available"}


@pytest.mark.parametrize(
    "name",
    ["", "a\0b", "\x01\x1f\x7f", "\"\\/'", "é😀", "e\u0301", "\u2028\ufeff\ufffe\uffff"]
    + ["\U0010ffff", "NaN", "</script>", "x" * 60_000],
)
def test_names_are_stored_and_returned_exactly(client: FlaskClient, name: str) -> None:
    for has_escapes in (True, False):
        body = json.dumps({**NEW_PET, "name": name}, ensure_ascii=has_escapes)
        pet = post(client, body).get_json()
        assert pet["name"] == name
        assert client.get(f"/v1/pets/{pet['id']}").get_json() == pet


@pytest.mark.parametrize(
    ("literal", "number"),
    [("0e99999", 0), ("1.0", 1), ("1e3", 1000), ("120e-1", 12)]
    + [("9007199254740993.0", 2**53 + 1), ("9223372036854775807", 2**63 - 1)]
    + [("-9223372036854775808", -(2**63))],
)
def test_a_category_id_is_any_json_number_without_a_fraction(
    client: FlaskClient, literal: str, number: int
) -> None:
    response = post(client, with_member("categoryId", literal))
    assert response.status_code == 201
    assert f'"categoryId":{number},' in response.text
    assert client.get("/v1/pets/1").text == response.text


OUT_OF_INT64 = "Must be greater than or equal to -9223372036854775808 and less "
OUT_OF_INT64 += "than or equal to 9223372036854775807."
NOT_AN_INTEGER, NULL = "Not a valid integer.", "Field may not be null."
NOT_A_STRING, SURROGATE = "Not a valid string.", "Must not contain lone surrogates."
OTHER_STATUS = "Must be one of: available, pending, sold."


@pytest.mark.parametrize(
    ("member", "message", "literals"),
    [
        ("name", NOT_A_STRING, ["1", "[]"]),
        ("name", NULL, ["null"]),
        ("name", SURROGATE, [r'"\ud800"', r'"a\udfffb"']),
        (
            "categoryId",
            OUT_OF_INT64,
            ["9223372036854775808", "-9223372036854775809", "1e19"],
        ),
        (
            "categoryId",
            NOT_AN_INTEGER,
            ["1.5", "1e-1", "1e-9999999", '"1"', "true", "[]"],
        ),
        # Python would need minutes to write out these integers.
        ("categoryId", NOT_AN_INTEGER, ["1e9999999", f"-1e{'9' * 20}", "9" * 5000]),
        ("categoryId", NULL, ["null"]),
        ("status", OTHER_STATUS, ['""', '"SOLD"', r'"\ud800"']),
        ("status", NOT_A_STRING, ['["sold"]']),
        ("status", NULL, ["null"]),
    ],
)
def test_an_invalid_member_is_named(
    client: FlaskClient, member: str, message: str, literals: list[str]
) -> None:
    for literal in literals:
        response = post(client, with_member(member, literal))
        assert assert_error(response, 400, "invalid_body") == f"{member}: {message}"
    assert client.get("/v1/pets").get_json() == []


def test_all_invalid_members_are_named(client: FlaskClient) -> None:
    response = post(client, '{"status": "lost", "categoryId": "1"}')
    assert assert_error(response, 400, "invalid_body") == (
        "name: Missing data for required field. "
        f"categoryId: {NOT_AN_INTEGER} status: {OTHER_STATUS}"
    )


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "1", '[{"name": "x"}]'])
def test_a_body_must_be_an_object(client: FlaskClient, body: str) -> None:
    message = assert_error(post(client, body), 400, "invalid_body")
    assert message == "Send a JSON object."


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "The body is not valid JSON: Expecting "),
        (f"{REX} x", "The body is not valid JSON: Extra data (line 1, column 34)."),
        (f"\ufeff{REX}", "The body begins with a byte order mark."),
        (b'{"name": "\xff", "categoryId": 1}', "The body is not valid UTF-8."),
        (REX.encode("utf-16"), "The body is not valid UTF-8."),
        (with_member("categoryId", "NaN"), "The body contains NaN, which is not "),
        (with_member("x", "[-Infinity]"), "The body contains -Infinity, which is not "),
        ('{"name": "a", "name": "b"}', "The body repeats the member 'name'."),
        (with_member("x", '{"é": 1, "é": 2}'), "The body repeats the member 'é'."),
        (
            '{"%s": 1, "%s": 2}' % (("x" * 9_000,) * 2),
            f"The body repeats the member '{'x' * 100}'.",
        ),
        ("[" * 60_000, "The body is nested too deeply."),
        ('{"a":' * 10_000, "The body is nested too deeply."),
    ],
)
def test_a_malformed_body_is_refused_with_the_reason(
    client: FlaskClient, body: str | bytes, message: str
) -> None:
    response = post(client, body)
    assert assert_error(response, 400, "malformed_body").startswith(message)


@pytest.mark.parametrize(
    ("media_type", "coding", "status"),
    [
        ("Application/JSON; charset=utf-8", "Identity", 201),
        ("application/json", "identity, br", 415),
        ("application/vnd.api+json", "", 415),
        ("", "", 415),
    ],
)
def test_a_body_needs_the_media_type_of_json_and_no_coding(
    client: FlaskClient, media_type: str, coding: str, status: int
) -> None:
    headers = {"Content-Type": media_type, "Content-Encoding": coding}
    response = client.post("/v1/pets", data=REX, headers=headers)
    assert response.status_code == status


def test_a_body_may_have_64_kib(client: FlaskClient) -> None:
    assert post(client, REX.ljust(65_536)).status_code == 201
    for body in (REX.ljust(65_537), "[" * 65_537):
        assert_error(post(client, body), 413, "body_too_large")


def test_a_smaller_max_content_length_applies(client: FlaskClient) -> None:
    client.application.config["MAX_CONTENT_LENGTH"] = 10
    assert_error(post(client, REX), 413, "body_too_large")
