"""Fixtures: applications in memory and on a file, and clients of them."""

import shutil
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from app import create_app
from tests.helpers import BEFORE_REMOVAL, set_clock
from tests.process import AUTHORIZED, KEY, ROOT


def create_client(database: Path | str) -> FlaskClient:
    """Return a client of a new application on a database. It sends the key."""
    client = create_app({"API_KEYS": KEY, "DATABASE": database}).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = AUTHORIZED["Authorization"]
    return client


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the caller from the environment."""
    for name in ("PETSTORE_API_KEYS", "PETSTORE_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests that use getPet pass after its removal, too."""
    set_clock(monkeypatch, BEFORE_REMOVAL)


@pytest.fixture
def client() -> FlaskClient:
    """Return a client with a key. Its application stores pets in memory."""
    return create_client(":memory:")


@pytest.fixture
def anonymous(client: FlaskClient) -> FlaskClient:
    """Return a client of the same application that sends no key."""
    return client.application.test_client()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "pets.db"


@pytest.fixture
def file_client(database: Path) -> FlaskClient:
    """Return a client with a key. Its application stores pets in the file."""
    return create_client(database)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with a copy of the Python files, which a test may change."""
    for file in ROOT.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path
