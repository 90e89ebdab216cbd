"""docs/development.md: the files, tests and commands that it names exist."""

import re

from tests.process import ROOT

DOCUMENT = (ROOT / "docs" / "development.md").read_text("utf-8")
CI_RUN = (ROOT / ".ci" / "run").read_text("utf-8")


def test_every_file_in_the_table_exists() -> None:
    table = DOCUMENT.partition("## The files")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `(.*?)`", table, re.MULTILINE)
    assert [file for file in files if not (ROOT / file).exists()] == []
    modules = {file.name for file in ROOT.glob("*.py")}
    assert modules - set(files) == set()


def test_every_test_that_is_named_exists() -> None:
    tests = "".join(file.read_text("utf-8") for file in ROOT.glob("tests/test_*.py"))
    names = re.findall(r"^\| `(test_\w+)|, `(test_\w+)…` \|", DOCUMENT, re.MULTILINE)
    for name in filter(None, [name for pair in names for name in pair]):
        assert f"def {name}" in tests, name


def test_every_tool_of_ci_is_named_with_its_command() -> None:
    for tool in ("ruff format", "ruff check", "mypy --strict", "prettier --check"):
        assert tool in DOCUMENT
        assert tool in CI_RUN.replace('"', "")
