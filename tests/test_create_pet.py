"""createPet: what is taken, exactly as it was sent, and what is refused and why."""

import json

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.checks import PET, add_pet, assert_error


def post(client: FlaskClient, body: str | bytes, **headers: str) -> TestResponse:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers = {"Content-Type": "application/json", **headers}
    return client.post("/v1/pets", data=body, headers=headers)


def test_a_new_pet_comes_back_with_its_id_and_place(client: FlaskClient) -> None:
    response = client.post("/v1/pets", json={**PET, "status": "pending"})
    pet = {"id": 1, "name": "Rex", "categoryId": 1, "status": "pending"}
    assert response.status_code == 201
    assert response.content_type == "application/json"
    assert response.get_json() == pet
    assert response.headers["Location"] == "/v1/pets/1"
    assert client.get(response.headers["Location"]).get_json() == pet


def test_a_pet_is_available_unless_told(client: FlaskClient) -> None:
    assert add_pet(client)["status"] == "available"


def test_other_members_are_ignored(client: FlaskClient) -> None:
    body = '{"name": "Rex", "categoryId": 1, "id": 99, "tag": {"a": [1e400, null]}}'
    pet = post(client, body).get_json()
    assert pet == {"id": 1, **PET, "status": "available"}


@pytest.mark.parametrize(
    "name",
    ["", " ", "\0", "a\0b", "\x01\x1f\x7f", "\"\\/'", "😀", "\u2028\u2029", "\ufeff"]
    + ["é", "e\u0301", "\ufffe\uffff", "\U0010ffff", "NaN", "</script>", "x" * 60_000],
)
def test_names_are_stored_and_returned_exactly(client: FlaskClient, name: str) -> None:
    pet = add_pet(client, name=name)
    assert pet["name"] == name
    assert client.get(f"/v1/pets/{pet['id']}").get_json() == pet
    assert client.get("/v1/pets").get_json() == [pet]


def test_a_name_in_raw_utf_8_is_the_name_in_escapes(client: FlaskClient) -> None:
    escaped = post(client, json.dumps({**PET, "name": "é😀"}))
    raw = post(client, json.dumps({**PET, "name": "é😀"}, ensure_ascii=False))
    assert escaped.get_json()["name"] == raw.get_json()["name"] == "é😀"


@pytest.mark.parametrize(
    ("literal", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("0e99999", 0),
        ("1.0", 1),
        ("1e3", 1000),
        ("120e-1", 12),
        ("9007199254740993.0", 9007199254740993),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_a_whole_number_is_an_integer_however_written(
    client: FlaskClient, literal: str, number: int
) -> None:
    response = post(client, f'{{"name": "Rex", "categoryId": {literal}}}')
    assert response.status_code == 201
    assert response.get_json()["categoryId"] == number
    assert f'"categoryId":{number},' in client.get("/v1/pets").text


INT64 = "Must be greater than or equal to -9223372036854775808 and less than or equal "
INT64 += "to 9223372036854775807."


@pytest.mark.parametrize(
    ("literal", "message"),
    [(text, INT64) for text in ("9223372036854775808", "-9223372036854775809", "1e19")]
    + [
        (text, "Not a valid integer.")
        for text in ("1.5", "1e-1", "1e-400", "1e-9999999", "1e-99999999999999999999")
        + (
            "1e400",
            "1e9999999",
            "-1e99999999999999999999",
            "9" * 5000,
            "-" + "9" * 5000,
        )
        + ('"1"', "true", "[]", "{}")
    ]
    + [("null", "Field may not be null.")],
)
def test_another_category_id_is_refused(
    client: FlaskClient, literal: str, message: str
) -> None:
    response = post(client, f'{{"name": "Rex", "categoryId": {literal}}}')
    assert assert_error(response, 400, "invalid_body") == f"categoryId: {message}"


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        ("1", "Not a valid string."),
        ("null", "Field may not be null."),
        ("[]", "Not a valid string."),
        ('"\\ud800"', "Must not contain lone surrogates."),
        ('"a\\udfffb"', "Must not contain lone surrogates."),
    ],
)
def test_another_name_is_refused(
    client: FlaskClient, literal: str, message: str
) -> None:
    response = post(client, f'{{"name": {literal}, "categoryId": 1}}')
    assert assert_error(response, 400, "invalid_body") == f"name: {message}"


@pytest.mark.parametrize("literal", ['""', '"SOLD"', '"\\ud800"', "null", '["sold"]'])
def test_another_status_is_refused(client: FlaskClient, literal: str) -> None:
    response = post(client, f'{{"name": "Rex", "categoryId": 1, "status": {literal}}}')
    assert assert_error(response, 400, "invalid_body").startswith("status: ")
    assert client.get("/v1/pets").get_json() == []


def test_every_member_at_fault_is_named(client: FlaskClient) -> None:
    response = post(client, '{"status": "lost", "categoryId": "1"}')
    assert assert_error(response, 400, "invalid_body") == (
        "name: Missing data for required field. "
        "categoryId: Not a valid integer. "
        "status: Must be one of: available, pending, sold."
    )


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "1", "true", '[{"name": "x"}]'])
def test_json_that_is_no_object_is_refused(client: FlaskClient, body: str) -> None:
    message = assert_error(post(client, body), 400, "invalid_body")
    assert message == "Send a JSON object."


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "line 1 column 2"),
        (b'{"name": "Rex"\n"categoryId": 1}', "line 2 column 1"),
        (b"{'name': 'Rex'}", "double quotes"),
        (b'{"name": "a\nb", "categoryId": 1}', "control character"),
        (b'{"name": "Rex", "categoryId": 01}', "delimiter"),
        (b'{"name": "Rex", "categoryId": 1} x', "Extra data"),
        (b"name=Rex&categoryId=1", "line 1 column 1"),
        (b'\xef\xbb\xbf{"name": "Rex", "categoryId": 1}', "BOM"),
        (b'{"name": "\xff", "categoryId": 1}', "utf-8"),
        (b'{"name": "\xed\xa0\x80", "categoryId": 1}', "utf-8"),
        ('{"name": "Rex", "categoryId": 1}'.encode("utf-16"), "utf-8"),
        (b'{"name": "Rex", "categoryId": NaN}', "NaN is no JSON number"),
        (b'{"name": "Rex", "x": -Infinity, "categoryId": 1}', "-Infinity is no JSON"),
        (b'{"name": "a", "categoryId": 1, "name": "b"}', "given twice"),
        (b'{"name": "a", "categoryId": 1, "x": {"y": 1, "y": 2}}', "given twice"),
        (b"[" * 60_000, "recursion"),
        (b'{"a":' * 10_000, "recursion"),
    ],
)
def test_a_body_that_is_no_json_is_malformed(
    client: FlaskClient, body: bytes, reason: str
) -> None:
    message = assert_error(post(client, body), 400, "malformed_body")
    assert message.startswith("The body is not JSON: ")
    assert reason in message


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/vnd.api+json"])
def test_another_media_type_is_unsupported(
    client: FlaskClient, media_type: str
) -> None:
    response = post(client, json.dumps(PET), Content_Type=media_type)
    assert_error(response, 415, "unsupported_media_type")
    assert response.headers["Accept"] == "application/json"


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity, br"])
def test_a_compressed_body_is_unsupported(client: FlaskClient, coding: str) -> None:
    response = post(client, json.dumps(PET), Content_Encoding=coding)
    assert_error(response, 415, "unsupported_media_type")
    assert response.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Content_Type", "application/json; charset=utf-8"),
        ("Content_Type", "Application/JSON"),
        ("Content_Encoding", "Identity"),
        ("Content_Encoding", ""),
    ],
)
def test_other_headers_of_a_plain_json_body_are_fine(
    client: FlaskClient, header: str, value: str
) -> None:
    response = post(client, json.dumps(PET), **{header: value})
    assert response.status_code == 201


def test_a_body_may_come_in_chunks(client: FlaskClient) -> None:
    response = client.post(
        "/v1/pets",
        json=PET,
        headers={"Transfer-Encoding": "chunked"},
        # So says a server that puts the chunks together.
        environ_overrides={"wsgi.input_terminated": True, "CONTENT_LENGTH": ""},
    )
    assert response.status_code == 201


@pytest.mark.parametrize("media_type", [None, "application/json", "text/plain"])
def test_a_missing_body_is_malformed_whatever_its_type(
    client: FlaskClient, media_type: str | None
) -> None:
    response = client.post("/v1/pets", content_type=media_type)
    message = assert_error(response, 400, "malformed_body")
    assert message == "The body is missing: send JSON."


def test_a_body_of_64_kib_is_the_largest(client: FlaskClient) -> None:
    body = json.dumps(PET).ljust(65_536)
    assert post(client, body).status_code == 201
    assert_error(post(client, body + " "), 413, "body_too_large")


def test_a_smaller_limit_of_flask_holds_too(client: FlaskClient) -> None:
    client.application.config["MAX_CONTENT_LENGTH"] = 10
    assert_error(post(client, json.dumps(PET)), 413, "body_too_large")


def test_media_type_comes_before_size_and_size_before_json(client: FlaskClient) -> None:
    large = "[" * 65_537
    response = post(client, large, Content_Type="text/plain")
    assert_error(response, 415, "unsupported_media_type")
    assert_error(post(client, large), 413, "body_too_large")
