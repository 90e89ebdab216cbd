"""What the tests assert, and how they make pets."""

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

# A pet to add: the least that createPet takes.
PET = {"name": "Rex", "categoryId": 1}

# When getPet is removed: date -ud 2030-12-05T00:00:00Z +%s
REMOVED_AT = 1922659200.0


def assert_error(response: TestResponse, status: int, code: str) -> None:
    """Check that a response is the Error body of the contract, and nothing else."""
    assert response.status_code == status
    assert response.content_type == "application/json"
    body = response.get_json()
    assert set(body) == {"code", "message", "status"}
    assert (body["code"], body["status"]) == (code, status)
    assert body["message"].endswith(".")


def add_pets(client: FlaskClient, *statuses: str) -> list[int]:
    """Add a pet of each status, and return their ids."""
    return [add_pet(client, status=status)["id"] for status in statuses]


def add_pet(client: FlaskClient, **members: object) -> dict[str, object]:
    """Add a pet, and return it as the answer has it."""
    response = client.post("/v1/pets", json={**PET, **members})
    assert response.status_code == 201, response.text
    return response.get_json()
