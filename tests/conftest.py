"""What the tests share: applications in memory and on a file, and their clients."""

import shutil
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app import create_app
from tests.service import AUTHORIZED, KEY, ROOT


def client_of(database: Path | str) -> FlaskClient:
    """Return a client that sends the key, of a new application on a database."""
    client = create_app({"API_KEYS": KEY, "DATABASE": database}).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = AUTHORIZED["Authorization"]
    return client


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PETSTORE_API_KEYS", "PETSTORE_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def client() -> FlaskClient:
    """A client with a key, of an application in memory."""
    return client_of(":memory:")


@pytest.fixture
def anonymous(client: FlaskClient) -> FlaskClient:
    """A client without a key, of the same application."""
    return client.application.test_client()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path of a file that is not there yet."""
    return tmp_path / "pets.db"


@pytest.fixture
def file_client(database: Path) -> FlaskClient:
    """A client with a key, of an application on the file."""
    return client_of(database)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a copy of all the code, which may be changed."""
    for file in ROOT.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path
