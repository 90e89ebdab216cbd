"""createPet: what is taken, exactly as it was sent, and what is refused and why."""

import json

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.checks import PET, add_pet, assert_error


def post(client: FlaskClient, body: str | bytes) -> TestResponse:
    return client.post("/v1/pets", data=body, content_type="application/json")


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


@pytest.mark.parametrize(
    "literal",
    ["1.5", "1e-1", "1e-400", "1e-9999999", "1e-99999999999999999999"]
    + ["9223372036854775808", "-9223372036854775809", "9" * 5000, "-" + "9" * 5000]
    + ["1e400", "1e9999999", "-1e9999999", "1e99999999999999999999"]
    + ['"1"', "true", "null", "[]", "{}"],
)
def test_another_category_id_is_refused(client: FlaskClient, literal: str) -> None:
    response = post(client, f'{{"name": "Rex", "categoryId": {literal}}}')
    assert_error(response, 400, "invalid_body")
    assert response.get_json()["message"] == (
        "categoryId must be an integer "
        "from -9223372036854775808 to 9223372036854775807."
    )


@pytest.mark.parametrize("literal", ["1", "null", "[]", '"\\ud800"', '"a\\udfffb"'])
def test_another_name_is_refused(client: FlaskClient, literal: str) -> None:
    response = post(client, f'{{"name": {literal}, "categoryId": 1}}')
    assert_error(response, 400, "invalid_body")
    message = "name must be a string without lone surrogates."
    assert response.get_json()["message"] == message


@pytest.mark.parametrize(
    "literal", ['""', '"SOLD"', '"\\ud800"', "null", "1", '["sold"]']
)
def test_another_status_is_refused(client: FlaskClient, literal: str) -> None:
    response = post(client, f'{{"name": "Rex", "categoryId": 1, "status": {literal}}}')
    assert_error(response, 400, "invalid_body")
    message = "status must be one of available, pending, sold."
    assert response.get_json()["message"] == message


def test_every_member_at_fault_is_named(client: FlaskClient) -> None:
    response = post(client, '{"status": "lost", "categoryId": "1"}')
    assert_error(response, 400, "invalid_body")
    assert response.get_json()["message"] == (
        "name is missing, it must be a string without lone surrogates; "
        "categoryId must be an integer "
        "from -9223372036854775808 to 9223372036854775807; "
        "status must be one of available, pending, sold."
    )


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "1", "true", '[{"name": "x"}]'])
def test_json_that_is_no_object_is_refused(client: FlaskClient, body: str) -> None:
    assert_error(post(client, body), 400, "invalid_body")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "is not JSON at line 1, column 2"),
        (b'{"name": "Rex"\n"categoryId": 1}', "is not JSON at line 2, column 1"),
        (b"{'name': 'Rex'}", "is not JSON"),
        (b'{"name": "a\nb", "categoryId": 1}', "is not JSON"),
        (b'{"name": "Rex", "categoryId": 01}', "is not JSON"),
        (b'{"name": "Rex", "categoryId": 1} x', "is not JSON"),
        (b"name=Rex&categoryId=1", "is not JSON"),
        (b'\xef\xbb\xbf{"name": "Rex", "categoryId": 1}', "is not JSON"),
        (b'{"name": "\xff", "categoryId": 1}', "is not UTF-8"),
        (b'{"name": "\xed\xa0\x80", "categoryId": 1}', "is not UTF-8"),
        ('{"name": "Rex", "categoryId": 1}'.encode("utf-16"), "is not UTF-8"),
        (b'{"name": "Rex", "categoryId": NaN}', "contains NaN"),
        (b'{"name": "Rex", "categoryId": -Infinity}', "contains -Infinity"),
        (b'{"name": "Rex", "x": Infinity, "categoryId": 1}', "contains Infinity"),
        (b'{"name": "a", "categoryId": 1, "name": "b"}', 'the member "name" twice'),
        (b'{"name": "a", "categoryId": 1, "x": {"y": 1, "y": 2}}', 'member "y" twice'),
        (b'{"\\ud800": 1, "\\ud800": 2}', r'the member "\ud800" twice'),
        (b"[" * 60_000, "is nested too deeply"),
        (b'{"a":' * 10_000, "is nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_is_malformed(
    client: FlaskClient, body: bytes, reason: str
) -> None:
    response = post(client, body)
    assert_error(response, 400, "malformed_body")
    assert reason in response.get_json()["message"]


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/vnd.api+json"])
def test_another_media_type_is_unsupported(
    client: FlaskClient, media_type: str
) -> None:
    body = json.dumps(PET)
    response = client.post("/v1/pets", data=body, content_type=media_type)
    assert_error(response, 415, "unsupported_media_type")
    assert response.headers["Accept"] == "application/json"


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON"]
)
def test_spellings_of_the_media_type_are_fine(
    client: FlaskClient, media_type: str
) -> None:
    body = json.dumps(PET)
    response = client.post("/v1/pets", data=body, content_type=media_type)
    assert response.status_code == 201


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Content-Encoding", "gzip"),
        ("Content-Encoding", "GZIP"),
        ("Content-Encoding", "identity, br"),
        ("Transfer-Encoding", "gzip, chunked"),
    ],
)
def test_a_compressed_body_is_unsupported(
    client: FlaskClient, header: str, value: str
) -> None:
    response = client.post("/v1/pets", json=PET, headers={header: value})
    assert_error(response, 415, "unsupported_media_type")
    assert response.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("coding", ["identity", "IDENTITY"])
def test_a_body_may_be_said_to_be_uncompressed(
    client: FlaskClient, coding: str
) -> None:
    response = client.post("/v1/pets", json=PET, headers={"Content-Encoding": coding})
    assert response.status_code == 201


@pytest.mark.parametrize("coding", ["chunked", "CHUNKED"])
def test_a_body_may_come_in_chunks(client: FlaskClient, coding: str) -> None:
    response = client.post(
        "/v1/pets",
        json=PET,
        headers={"Transfer-Encoding": coding},
        # So says a server that puts the chunks together.
        environ_overrides={"wsgi.input_terminated": True},
    )
    assert response.status_code == 201


@pytest.mark.parametrize("media_type", [None, "application/json", "text/plain"])
def test_a_missing_body_is_malformed_whatever_its_type(
    client: FlaskClient, media_type: str | None
) -> None:
    response = client.post("/v1/pets", content_type=media_type)
    assert_error(response, 400, "malformed_body")
    assert response.get_json()["message"].startswith("The body is missing.")


def test_a_body_of_64_kib_is_the_largest(client: FlaskClient) -> None:
    body = json.dumps(PET).ljust(65_536)
    assert post(client, body).status_code == 201
    assert_error(post(client, body + " "), 413, "body_too_large")


def test_a_smaller_limit_of_flask_holds_too(app: Flask, client: FlaskClient) -> None:
    app.config["MAX_CONTENT_LENGTH"] = 10
    assert_error(post(client, json.dumps(PET)), 413, "body_too_large")


def test_media_type_comes_before_size_and_size_before_json(client: FlaskClient) -> None:
    large = "[" * 65_537
    response = client.post("/v1/pets", data=large, content_type="text/plain")
    assert_error(response, 415, "unsupported_media_type")
    assert_error(post(client, large), 413, "body_too_large")


def test_a_refused_pet_is_not_stored(client: FlaskClient) -> None:
    post(client, '{"name": "Rex", "categoryId": 1, "status": "lost"}')
    assert client.get("/v1/pets").get_json() == []
    assert add_pet(client)["id"] == 1
