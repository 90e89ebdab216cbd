"""A store other than PetStore: any subclass of Store."""

import json
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from storage import StorageUnavailable, Store
from tests.helpers import add_pet, all_pets, assert_unavailable, create_client


class ListStore(Store):
    """The pets in a list."""

    def __init__(self) -> None:
        self.pets: list[dict[str, Any]] = []
        self.ids = count(1)
        self.lock = Lock()

    def list_page(
        self, *, limit: int, status: str | None, after: int
    ) -> tuple[str, int | None]:
        pets = [
            pet
            for pet in self.pets
            if pet["id"] > after and status in (None, pet["status"])
        ]
        last_id = pets[limit - 1]["id"] if len(pets) > limit else None
        return json.dumps(pets[:limit]), last_id

    def add(self, *, name: str, category_id: int, status: str) -> tuple[int, str]:
        # Without the lock, a pet could appear after one with a larger id.
        with self.lock:
            pet_id = next(self.ids)
            pet = {
                "id": pet_id,
                "name": name,
                "categoryId": category_id,
                "status": status,
            }
            self.pets.append(pet)
        return pet_id, json.dumps(pet)

    def get(self, pet_id: int) -> str | None:
        for pet in self.pets:
            if pet["id"] == pet_id:
                return json.dumps(pet)
        return None

    def check(self) -> None:
        """Do nothing: a list can always answer."""


class UnreachableStore(ListStore):
    """A store whose database server does not answer."""

    def check(self) -> None:
        raise StorageUnavailable("it cannot be reached")


def test_a_store_that_lacks_a_method_cannot_be_created() -> None:
    class Incomplete(Store):
        pass

    with pytest.raises(TypeError, match="add.*check.*get.*list_page"):
        Incomplete()  # type: ignore[abstract]


def test_the_application_uses_another_store_and_no_database(database: Path) -> None:
    client = create_client(database, ListStore())
    pets = [add_pet(client), add_pet(client, status="sold")]
    assert all_pets(client, "/v1/pets?limit=1") == pets
    assert client.get("/v1/pets/2").get_json() == pets[1]
    assert client.get("/healthz").status_code == 200
    assert not database.exists()


def test_another_store_that_cannot_answer_is_503() -> None:
    assert_unavailable(create_client("", UnreachableStore()).get("/healthz"))
