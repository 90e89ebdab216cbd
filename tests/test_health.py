"""The health check."""

from pathlib import Path

from flask.testing import FlaskClient

from tests.checks import assert_unavailable


def test_a_store_that_answers_is_ok(anonymous: FlaskClient) -> None:
    response = anonymous.get("/healthz")
    assert (response.status_code, response.get_json()) == (200, {"status": "ok"})
    assert response.content_type == "application/json"


def test_a_store_without_its_file_is_unavailable(
    file_client: FlaskClient, database: Path
) -> None:
    anonymous = file_client.application.test_client()
    assert anonymous.get("/healthz").status_code == 200
    database.unlink()
    assert_unavailable(anonymous.get("/healthz"))
