"""A store other than PetStore: any object with its four methods."""

import json
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from flask.testing import FlaskClient

from app import create_app
from storage import StorageUnavailable
from tests.helpers import assert_error, assert_unavailable
from tests.process import AUTHORIZED, KEY, run
from tests.request_table import REQUESTS, Request


class ListStore:
    """The pets in a list."""

    def __init__(self) -> None:
        self.pets: list[dict[str, Any]] = []
        self.lock = Lock()

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[bytes, int | None]:
        pets = [
            pet
            for pet in self.pets
            if pet["id"] > after and status in (None, pet["status"])
        ]
        last_id = pets[limit - 1]["id"] if len(pets) > limit else None
        return json.dumps(pets[:limit]).encode(), last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, bytes]:
        # Without the lock, a pet could appear after one with a larger id.
        with self.lock:
            pet_id = len(self.pets) + 1
            pet = {
                "id": pet_id,
                "name": name,
                "categoryId": category_id,
                "status": status,
            }
            self.pets.append(pet)
        return pet_id, json.dumps(pet).encode()

    def get(self, pet_id: int) -> bytes | None:
        for pet in self.pets:
            if pet["id"] == pet_id:
                return json.dumps(pet).encode()
        return None

    def check(self) -> None:
        """Do nothing: a list can always answer."""


class UnreachableStore(ListStore):
    def check(self) -> None:
        raise StorageUnavailable("it cannot be reached")


def create_client(store: object, **config: str) -> FlaskClient:
    """Return a client with a key, of an application with this store."""
    client = create_app({"API_KEYS": KEY, **config}, store).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = AUTHORIZED["Authorization"]
    return client


# The other rows remove SQLite's file.
ROWS = [row for row in REQUESTS if row.code != "storage_unavailable"]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_custom_store_gives_the_same_responses(
    monkeypatch: pytest.MonkeyPatch, row: Request
) -> None:
    response = row.send(create_client(ListStore()), monkeypatch)
    assert response.status_code == row.status
    if row.code:
        assert_error(response, row.status, row.code)


def test_a_custom_store_that_cannot_answer_is_503() -> None:
    assert_unavailable(create_client(UnreachableStore()).get("/healthz"))


def test_database_is_ignored_if_a_store_is_given(tmp_path: Path) -> None:
    client = create_client(ListStore(), DATABASE=str(tmp_path / "pets.db"))
    assert client.get("/v1/pets").get_json() == []
    assert list(tmp_path.iterdir()) == []


def test_no_instance_folder_is_created_if_a_store_is_given(checkout: Path) -> None:
    program = "import app; app.create_app(store=object())"
    ended = run("python", "-c", program, folder=checkout, PETSTORE_API_KEYS=KEY)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (checkout / "instance").exists()
