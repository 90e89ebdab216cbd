"""The README: what it shows is what comes back, and what it lists is what there is."""

import json
import re
import shlex
from urllib.parse import urlsplit

from app import SETTINGS, create_app
from errors import STATUS_BY_CODE
from tests.service import COMMAND, ROOT

README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """Return the text below a heading, up to the next."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_run_and_test_are_one_line_each() -> None:
    run, *_ = blocks(section("Run"), "sh")
    [test] = blocks(section("Test"), "sh")
    assert run.count("\n") == test.count("\n") == 1


def test_the_first_requests_get_the_answers_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    _, *commands = blocks(section("Run"), "sh")
    answers = blocks(section("Run"), "json")
    assert len(commands) == len(answers) == 2
    for command, answer in zip(commands, answers, strict=True):
        _, _, url, *options = shlex.split(command)
        pairs = list(zip(options[::2], options[1::2], strict=True))
        headers = [text.split(": ") for name, text in pairs if name == "-H"]
        data = next((text for name, text in pairs if name == "-d"), None)
        response = client.open(
            urlsplit(url).path,
            method="POST" if data else "GET",
            headers=headers,
            data=data,
        )
        assert response.text == answer.rstrip("\n")


def test_the_error_shown_is_the_one_that_comes_back() -> None:
    client = create_app({"API_KEYS": "k", "DATABASE": ":memory:"}).test_client()
    [shown] = blocks(section("Errors"), "json")
    response = client.get("/v1/pets?limit=0", headers={"Authorization": "Bearer k"})
    assert response.get_json() == json.loads(shown)


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \|", section("Errors"), re.MULTILINE)
    assert {code: int(status) for status, code in listed} == STATUS_BY_CODE


def test_every_setting_is_listed() -> None:
    listed = re.findall(r"^\| `PETSTORE_(\w+)` \|", section("Settings"), re.MULTILINE)
    assert tuple(listed) == SETTINGS


def test_every_route_is_listed() -> None:
    app = create_app({"API_KEYS": "k", "DATABASE": ":memory:"})
    routes = {
        f"{method} {re.sub('<.*>', '{petId}', rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    listed = re.findall(r"^\| `(\w+ [^`]+)` \(", section("Operations"), re.MULTILINE)
    assert set(listed) == routes


def test_the_systemd_unit_starts_what_the_procfile_does() -> None:
    [unit] = blocks(section("On a server"), "ini")
    command = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)[0]
    program, bind, address, *options = shlex.split(command)
    assert (bind, address) == ("--bind", "127.0.0.1:8000")
    assert options == COMMAND[1:]
