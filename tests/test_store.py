"""A store other than PetStore: any subclass of Store."""

import json
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from storage import StorageUnavailable, Store
from tests.helpers import add_pet, assert_error, create_client
from tests.request_table import REQUESTS, Request


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


@pytest.mark.parametrize("row", REQUESTS, ids=str)
def test_another_store_gives_the_same_responses(row: Request, database: Path) -> None:
    client = create_client(database, ListStore())
    add_pet(client)
    response = row.send(client)
    assert response.status_code == row.status
    if row.code:
        assert_error(response, row.status, row.code)
    # The setting DATABASE is ignored.
    assert not database.exists()


def test_another_store_that_cannot_answer_is_503() -> None:
    response = create_client(":memory:", UnreachableStore()).get("/healthz")
    assert_error(response, 503, "storage_unavailable")
