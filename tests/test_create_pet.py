"""createPet: what it stores, and what it refuses."""

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.helpers import NEW_PET, add_pet, all_pets, assert_error

REX = '{"name": "Rex", "categoryId": 1}'


def with_member(value: str) -> str:
    """Return the body of a pet with a member that is ignored."""
    return REX.replace("}", f', "ignored": {value}}}')


def post(client: FlaskClient, body: str | bytes) -> TestResponse:
    """Send a body as it is."""
    return client.post("/v1/pets", data=body, content_type="application/json")


def test_a_pet_is_added(client: FlaskClient) -> None:
    pet = {"name": "Rex", "categoryId": 1, "status": "sold"}
    response = client.post("/v1/pets", json=pet)
    assert response.status_code == 201
    assert response.content_type == "application/json"
    assert response.headers["Location"] == "/v1/pets/1"
    assert response.text == '{"id":1,"name":"Rex","categoryId":1,"status":"sold"}\n'
    assert all_pets(client) == [{"id": 1, **pet}]


def test_the_location_has_the_prefix(client: FlaskClient) -> None:
    prefix = {"SCRIPT_NAME": "/store"}
    response = client.post("/v1/pets", json=NEW_PET, environ_overrides=prefix)
    assert response.headers["Location"] == "/store/v1/pets/1"


@pytest.mark.parametrize(
    "name",
    ["", " ", "\0", "a\0b", "\"'\\/", "'; DROP TABLE pets; --", "é", "🐈"]
    + ["x" * 60_000],
)
def test_a_name_is_returned_exactly_as_sent(client: FlaskClient, name: str) -> None:
    pet = add_pet(client, name=name)
    assert pet["name"] == name
    assert all_pets(client) == [pet]


@pytest.mark.parametrize(
    ("literal", "number"),
    [
        ("-9223372036854775808", -9223372036854775808),
        ("9223372036854775807", 9223372036854775807),
        ("9007199254740993", 9007199254740993),
        ("0", 0),
        # For JSON Schema, these are integers. As floats, some would be rounded.
        ("1.0", 1),
        ("-0.0", 0),
        ("20.00", 20),
        ("9007199254740993.0", 9007199254740993),
        ("-9223372036854775808.0", -9223372036854775808),
    ],
)
def test_a_category_id_is_a_64_bit_integer(
    client: FlaskClient, literal: str, number: int
) -> None:
    response = post(client, '{"name": "Rex", "categoryId": ' + literal + "}")
    assert f'"categoryId":{number},' in response.text
    assert all_pets(client) == [response.get_json()]


NOT_INT64 = (
    "categoryId: Must be an integer from -9223372036854775808 to 9223372036854775807, "
    "without quotes."
)
NOT_A_STATUS = "status: Must be one of: available, pending, sold."
LONE_SURROGATE = "name: Must not contain lone surrogates."


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ('"categoryId": 1', "name: Required."),
        ('"categoryId": 1, "name": null', "name: Must be a string."),
        ('"categoryId": 1, "name": 7', "name: Must be a string."),
        ('"categoryId": 1, "name": "\\ud800"', LONE_SURROGATE),
        ('"categoryId": 1, "name": "\\udc00"', LONE_SURROGATE),
        ('"name": "Rex"', "categoryId: Required."),
        ('"name": "Rex", "categoryId": null', NOT_INT64),
        ('"name": "Rex", "categoryId": 9223372036854775808', NOT_INT64),
        ('"name": "Rex", "categoryId": -9223372036854775809', NOT_INT64),
        ('"name": "Rex", "categoryId": 9223372036854775808.0', NOT_INT64),
        ('"name": "Rex", "categoryId": 1, "status": ""', NOT_A_STATUS),
        ('"name": "Rex", "categoryId": 1, "status": 7', NOT_A_STATUS),
        ('"name": "Rex", "categoryId": 1, "status": null', NOT_A_STATUS),
        ('"name": 7', "name: Must be a string. categoryId: Required."),
    ],
)
def test_every_invalid_member_is_named(
    client: FlaskClient, members: str, message: str
) -> None:
    response = post(client, "{" + members + "}")
    assert assert_error(response, 400, "invalid_body") == message
    assert all_pets(client) == []


@pytest.mark.parametrize(
    "value",
    ['"1"', "true", "[]", "1e3", "1.0e0", "1.5", "1.50", "1e-400", "1e999"]
    # An integer of so many digits would take very long.
    + ["1e999999999"],
)
def test_any_other_category_id_is_refused(client: FlaskClient, value: str) -> None:
    response = post(client, '{"name": "Rex", "categoryId": ' + value + "}")
    assert assert_error(response, 400, "invalid_body") == NOT_INT64


@pytest.mark.parametrize("body", ["[]", "null", "1", '"Rex"', "1e999"])
def test_a_body_has_to_be_an_object(client: FlaskClient, body: str) -> None:
    assert (
        assert_error(post(client, body), 400, "invalid_body") == "Send a JSON object."
    )


def test_unknown_members_are_ignored_and_the_last_of_a_repeated_one_counts(
    client: FlaskClient,
) -> None:
    ignored = '"id": 7, "x": 1e999, "name": 1'
    body = "{" + ignored + ', "name": "Tom", "categoryId": 2}'
    pet = {"id": 1, "name": "Tom", "categoryId": 2, "status": "available"}
    assert post(client, body).get_json() == pet


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (" ", "is not JSON: Expecting value: line 1 column 2 (char 1)"),
        (REX[:-1], "is not JSON: Expecting ',' delimiter: line 1 column 32 (char 31)"),
        (REX + "}", "is not JSON: Extra data: line 1 column 33 (char 32)"),
        (REX + "\0", "is not JSON: Extra data: line 1 column 33 (char 32)"),
        ("[" * 60_000, "is nested too deeply"),
        ('{"a":' * 10_000, "is nested too deeply"),
        (with_member("9" * 4301), "contains a number of more than 4,300 digits"),
        (with_member("9" * 4301 + ".0"), "contains a number of more than 4,300 digits"),
        (with_member("NaN"), "contains NaN, which is not JSON"),
        (with_member("Infinity"), "contains Infinity, which is not JSON"),
        (with_member("-Infinity"), "contains -Infinity, which is not JSON"),
    ],
    ids=range(11),
)
def test_a_malformed_body_is_refused_with_the_reason(
    client: FlaskClient, body: str, reason: str
) -> None:
    message = assert_error(post(client, body), 400, "malformed_body")
    assert message == f"Send a JSON object. The body {reason}."


@pytest.mark.parametrize(
    "body",
    # Without a byte order mark, UTF-16 and UTF-32 are UTF-8 with many U+0000.
    [REX.encode(encoding) for encoding in ("utf-16-le", "utf-16-be", "utf-32-be")]
    + [with_member(number).encode() for number in ("1.", ".5", "00.0", "+1.0")],
)
def test_what_python_or_another_encoding_may_accept_is_malformed(
    client: FlaskClient, body: bytes
) -> None:
    message = assert_error(post(client, body), 400, "malformed_body")
    assert message.startswith("Send a JSON object. The body is not JSON: ")


@pytest.mark.parametrize(
    "body",
    [b"\xff", b'"\xff"', b'"\xe9"', b'"\xed\xa0\x80"']
    + [REX.encode("utf-16"), REX.encode("utf-32")],
)
def test_a_body_that_is_not_utf_8_is_malformed(
    client: FlaskClient, body: bytes
) -> None:
    message = assert_error(post(client, body), 400, "malformed_body")
    assert message == "Send a JSON object. The body is not UTF-8."


def test_a_byte_order_mark_is_ignored(client: FlaskClient) -> None:
    assert post(client, REX.encode("utf-8-sig")).status_code == 201


def test_a_bug_while_a_body_is_parsed_is_not_the_fault_of_the_client(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*args: object, **options: object) -> None:
        raise AttributeError

    monkeypatch.setattr("json.loads", loads)
    response = post(client, REX)
    assert response.status_code == 500


def test_the_content_type_may_have_a_charset(client: FlaskClient) -> None:
    content_type = "application/json; charset=utf-8"
    response = client.post("/v1/pets", data=REX, content_type=content_type)
    assert response.status_code == 201


def test_a_body_may_have_64_kib(client: FlaskClient) -> None:
    assert post(client, REX.ljust(65_536)).status_code == 201
