"""Fixtures: clients of the application, and what every test needs."""

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flask.testing import FlaskClient

import app
from tests.helpers import create_client


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """Let SIGINT end the services that tests start.

    A shell script starts programs in the background with SIGINT ignored. If pytest is
    one of them, the services would ignore it, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the caller from the environment."""
    for name in ("PETSTORE_API_KEYS", "PETSTORE_DATABASE", "FLASK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def before_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the application believe that getPet has not been removed yet."""
    monkeypatch.setattr(app, "now", lambda: datetime(2027, 1, 1, tzinfo=UTC))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "pets.db"


@pytest.fixture
def client(database: Path) -> FlaskClient:
    """Return a client that sends a key. Its application stores pets in the file."""
    return create_client(database)


@pytest.fixture
def anonymous(client: FlaskClient) -> FlaskClient:
    """Return a client that sends no key to the same application."""
    return client.application.test_client()
