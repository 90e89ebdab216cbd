"""What the tests share: an application on a fresh database file, and its clients."""

from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import create_app
from tests.service import AUTHORIZED, KEY


def client_with_key(app: Flask) -> FlaskClient:
    """Return a client that sends the key with every request."""
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = AUTHORIZED["Authorization"]
    return client


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PETSTORE_API_KEYS", "PETSTORE_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "pets.db"


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Flask:
    """An application on the file of a test that has one, else in memory."""
    path = ":memory:"
    if "database" in request.fixturenames:
        path = str(request.getfixturevalue("database"))
    return create_app({"API_KEYS": KEY, "DATABASE": path})


@pytest.fixture
def anonymous(app: Flask) -> FlaskClient:
    """A client without a key."""
    return app.test_client()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A client with a key."""
    return client_with_key(app)
