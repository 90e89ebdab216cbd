"""README.md and docs/: first requests, Python client, shop, and shell syntax."""

import json
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app import create_app
from tests.helpers import KEY, NEW_PET, needs_linux
from tests.service import PROXIED, ROOT, add_pets, run, serving

README = (ROOT / "README.md").read_text("utf-8")
API = (ROOT / "docs" / "api.md").read_text("utf-8")


def section(page: str, title: str) -> str:
    """Return what is below a heading."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def fenced(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def blocks(page: str, title: str, language: str) -> list[str]:
    """Return the fenced blocks of a language below a heading."""
    return fenced(section(page, title), language)


def test_the_first_requests_get_the_responses_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    [commands] = blocks(README, "First requests", "sh")
    [responses] = blocks(README, "First requests", "text")
    for command, body in zip(
        commands.splitlines(), responses.splitlines(True), strict=True
    ):
        # Each command is: curl URL -H HEADER ... [-d BODY]
        _, url, *options = shlex.split(command)
        values = list(zip(options[::2], options[1::2], strict=True))
        data = "".join(value for option, value in values if option == "-d")
        response = client.open(
            urlsplit(url).path,
            method="POST" if data else "GET",
            headers=[value.split(": ") for option, value in values if option == "-H"],
            data=data,
        )
        assert response.text == body


@needs_linux
def test_the_python_client_lists_all_pets_or_says_what_is_wrong(database: Path) -> None:
    [program] = blocks(API, "A client in Python", "python")
    # `~` may be in a prefix, but is no letter.
    with serving(database, PROXIED, SCRIPT_NAME="/~alice") as service:
        add_pets(service, 20, "/~alice")
        # The encoding of the output lacks a cat, and the other one controls terminals.
        cat = {**NEW_PET, "name": "\x1b🐈"}
        service.request("POST", "/~alice/v1/pets", cat)
        program = program.replace("127.0.0.1:5000", f"{service.address()}/~alice")
        refused = run("python", "-c", program)
        program = program.replace("demo-key", KEY)
        accepted = run("python", "-c", program, PYTHONIOENCODING="ascii")
        html = run("python", "-c", program.replace("/v1/pets", f"/v1/{'x' * 9000}"))
        moved = run("python", "-c", program.replace("/v1/pets", "/moved"))
    stopped = run("python", "-c", program)
    added, *listed = map(json.loads, accepted.stdout.splitlines())
    assert added["id"] == 22
    assert [pet["id"] for pet in listed] == [*range(1, 23)]
    assert listed[20]["name"] == "\x1b🐈"
    for client, beginning in (
        (refused, '401: {"code":"invalid_api_key",'),
        (html, "414: <html>"),
        (moved, "302: <!doctype html>"),
        (stopped, "URLError: <urlopen error"),
    ):
        assert client.returncode == 1
        assert client.stderr.startswith(beginning)
    assert stopped.stderr.count("\n") == 1


@needs_linux
@pytest.mark.parametrize("server", ["flask", "gunicorn"])
def test_the_shop_serves_its_own_route_and_the_pets(
    tmp_path: Path, server: str
) -> None:
    [program] = blocks(API, "Embedding", "python")
    (tmp_path / "shop.py").write_text(program.replace("demo-key", KEY))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    [command] = [
        line
        for block in blocks(API, "Embedding", "sh")
        for line in block.splitlines()
        if f".venv/bin/{server} " in line
    ]
    # The command as it is, with the variable that the page sets, on any free port.
    folder, clone = shlex.quote(str(tmp_path)), shlex.quote(str(ROOT))
    shell = ["sh", "-c", f"cd {folder}; clone={clone}; {command}"]
    ports = {"FLASK_RUN_PORT": "0", "GUNICORN_CMD_ARGS": "--bind 127.0.0.1:0"}
    with serving(tmp_path / "unused.db", shell, **ports) as shop:
        answer = shop.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.endswith(b"\r\n\r\nThe pets are at /store/v1/pets.\n")
        pets = shop.request("GET", "/store/v1/pets")
        assert (pets.status, pets.body) == (200, [])


def test_every_error_code_of_the_document_is_listed() -> None:
    document = (ROOT / "openapi.json").read_text()
    codes = set(re.findall(r'"code": "(\w+)"', document)) | {"method_not_allowed"}
    listed = re.findall(r"^\| \d+ \| `(\w+)` \|", section(API, "Errors"), re.MULTILINE)
    assert set(listed) == codes
    [error] = blocks(README, "Operations", "json")
    assert json.loads(error)["code"] in codes


@needs_linux
@pytest.mark.parametrize("name", ["server.md", "cluster.md"])
def test_every_block_is_valid_shell(name: str) -> None:
    document = (ROOT / "docs" / name).read_text("utf-8")
    for block in fenced(document, "sh"):
        assert run("sh", "-n", "-c", block).stderr == ""
