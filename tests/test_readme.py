"""The README: what it shows is what comes back, and what it lists is what there is."""

import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import Client

from app import StartError, create_app
from errors import STANDARD_ERRORS
from storage import WRITE_TIMEOUT
from tests.helpers import routes
from tests.process import COMMAND, KEY, ROOT, run, serving
from tests.request_table import REQUESTS

README = (ROOT / "README.md").read_text("utf-8")


def section(title: str) -> str:
    """Return the text below a heading, up to the next."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str) -> str:
    """Return the one fenced block of a language below a heading."""
    pattern = rf"^```{language}\n(.*?)^```$"
    [text] = re.findall(pattern, section(title), re.DOTALL | re.MULTILINE)
    return text


def first_column(title: str) -> list[str]:
    """Return the code that begins each row of the table below a heading."""
    return re.findall(r"^\| `(.*?)`", section(title), re.MULTILINE)


def test_the_first_requests_get_the_answers_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    shown = re.findall(r"^\$ (.*)\n(.*\n)", block("Run", "console"), re.MULTILINE)
    assert len(shown) == 2
    for command, answer in shown:
        data = "".join(re.findall("-d '(.*?)'", command))
        response = client.open(
            urlsplit(command.split()[2]).path,
            method="POST" if data else "GET",
            headers=[text.split(": ") for text in re.findall("-H '(.*?)'", command)],
            data=data,
        )
        assert response.text == answer


def test_the_client_in_python_adds_a_pet_follows_every_page_and_shows_an_error(
    database: Path,
) -> None:
    with serving(database) as service:
        for _ in range(21):
            service.request("POST", "/v1/pets", {"name": "Tom", "categoryId": 1})
        client = block("Operations", "python").replace(":5000", f":{service.port}")
        ended = [
            run("python", "-c", client.replace("demo-key", key)) for key in (KEY, "x")
        ]
    created, *listed = ended[0].stdout.splitlines()
    assert created.startswith("{'id': 22, ")
    assert listed == [*(f"{n} Tom" for n in range(1, 22)), "22 Rex"]
    assert ended[1].stderr.startswith("The API key is not valid.")


def test_the_embedding_program_serves_under_its_prefix() -> None:
    names: dict[str, object] = {}
    exec(block("Embedding", "python"), names)
    shop = names["shop"]
    assert isinstance(shop, Flask)
    headers = {"Authorization": "Bearer demo-key"}
    answer = Client(shop).get("/store/v1/pets", headers=headers)
    assert answer.get_json() == []
    assert f"`app.{StartError.__name__}`" in section("Embedding")


def test_the_error_shown_is_the_one_that_comes_back(client: FlaskClient) -> None:
    response = client.get("/v1/pets/1")
    assert response.get_json() == json.loads(block("Errors", "json"))


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \|", section("Errors"), re.MULTILINE)
    tested = {(str(row.status), row.code) for row in REQUESTS if row.code}
    assert set(listed) == tested - {("400", "bad_request")}
    for status in STANDARD_ERRORS:
        assert str(status) in section("Errors")


def test_every_setting_is_listed(client: FlaskClient) -> None:
    settings = client.application.config.keys() - Flask("another").config.keys()
    assert set(first_column("Settings")) == {f"PETSTORE_{name}" for name in settings}


def test_every_route_is_listed(client: FlaskClient) -> None:
    assert set(first_column("Operations")) == routes(client).keys()


def test_the_systemd_unit_starts_what_the_procfile_does() -> None:
    [command] = re.findall("ExecStart=(.*)", block("On a server", "ini"))
    program, *options = shlex.split(command)
    bound = ["--bind", "127.0.0.1:8000"]
    assert [Path(program).name, *options] == [COMMAND[0], *bound, *COMMAND[1:]]


def test_it_says_how_long_a_write_waits() -> None:
    assert f"writes wait, {WRITE_TIMEOUT:g} seconds at most;" in README
