"""Fixtures of the checks."""

from pathlib import Path

import pytest


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Return the path of a file that does not exist yet."""
    return tmp_path / "pets.db"
