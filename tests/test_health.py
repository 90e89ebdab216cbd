"""The health check."""

from flask.testing import FlaskClient


def test_a_store_that_answers_is_ok(anonymous: FlaskClient) -> None:
    response = anonymous.get("/healthz")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})
    assert response.content_type == "application/json"
