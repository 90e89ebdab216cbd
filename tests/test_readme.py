"""The README: what it shows is what comes back, and what it lists is what there is."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from flask import Flask
from werkzeug.test import Client

from app import StartError, create_app
from errors import STANDARD_ERRORS
from tests.conftest import client_of
from tests.requests import REQUESTS
from tests.service import COMMAND, KEY, ROOT, serving

README = (ROOT / "README.md").read_text("utf-8")


def section(title: str) -> str:
    """Return the text below a heading, up to the next."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_run_and_test_are_one_line_each() -> None:
    [run] = blocks(section("Run"), "sh")
    [test] = blocks(section("Test"), "sh")
    assert run.count("\n") == test.count("\n") == 1


def test_the_first_requests_get_the_answers_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    [shown] = blocks(section("Run"), "console")
    pairs = re.findall(r"^\$ (.*)\n(.*)\n", shown, re.MULTILINE)
    assert len(pairs) == 2
    for command, answer in pairs:
        _, _, url, *options = shlex.split(command)
        given = list(zip(options[::2], options[1::2], strict=True))
        data = next((text for name, text in given if name == "-d"), None)
        response = client.open(
            urlsplit(url).path,
            method="POST" if data else "GET",
            headers=[text.split(": ") for name, text in given if name == "-H"],
            data=data,
        )
        assert response.text == f"{answer}\n"


def test_the_client_in_python_adds_a_pet_follows_every_page_and_shows_an_error(
    database: Path,
) -> None:
    [client] = blocks(section("Operations"), "python")
    with serving(database) as service:
        for _ in range(21):
            service.request("POST", "/v1/pets", {"name": "Tom", "categoryId": 1})
        client = client.replace("127.0.0.1:5000", f"127.0.0.1:{service.port}")
        said = [
            subprocess.run(
                [sys.executable, "-c", client.replace("demo-key", key)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ).stdout.splitlines()
            for key in (KEY, "other")
        ]
    [created, *listed], [refused] = said
    assert created.startswith("{'id': 22, ")
    assert listed == [*(f"{n} Tom" for n in range(1, 22)), "22 Rex"]
    assert refused.startswith("The API key is not valid.")


def test_the_embedding_program_serves_under_its_prefix() -> None:
    [program] = blocks(section("Embedding"), "python")
    names: dict[str, object] = {}
    exec(program, names)
    shop = names["shop"]
    assert isinstance(shop, Flask)
    answer = Client(shop).get(
        "/store/v1/pets", headers={"Authorization": "Bearer demo-key"}
    )
    assert answer.get_json() == []
    assert f"`app.{StartError.__name__}`" in section("Embedding")


def test_the_error_shown_is_the_one_that_comes_back() -> None:
    [shown] = blocks(section("Errors"), "json")
    response = client_of(":memory:").get("/v1/pets?limit=0")
    assert response.get_json() == json.loads(shown)


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \|", section("Errors"), re.MULTILINE)
    tested = {(str(row.status), row.code) for row in REQUESTS if row.code}
    assert set(listed) == tested - {("400", "bad_request")}
    for status in STANDARD_ERRORS:
        assert str(status) in section("Errors")


def test_every_setting_is_listed() -> None:
    listed = re.findall(r"^\| `(PETSTORE_\w+)` \|", section("Settings"), re.MULTILINE)
    read = re.findall(r'\("(\w+)", "(\w+)"\):', (ROOT / "app.py").read_text())
    assert listed == [f"PETSTORE_{name}" for name in read[0]]


def test_every_route_is_listed() -> None:
    app = create_app({"API_KEYS": "k", "DATABASE": ":memory:"})
    routes = {
        f"{method} {re.sub('<.*>', '{petId}', rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    listed = re.findall(r"^\| `(\w+ [^`]+)` \(", section("Operations"), re.MULTILINE)
    assert set(listed) == routes


def test_the_systemd_unit_starts_what_the_procfile_does() -> None:
    [unit] = blocks(section("On a server"), "ini")
    command = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)[0]
    program, bind, address, *options = shlex.split(command)
    assert (Path(program).name, bind, address) == (
        COMMAND[0],
        "--bind",
        "127.0.0.1:8000",
    )
    assert options == COMMAND[1:]
