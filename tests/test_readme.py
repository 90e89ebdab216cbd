"""README.md: its commands and clients work, and its tables match the code."""

import json
import re
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app import StartError, create_app
from errors import STANDARD_ERRORS
from tests.helpers import routes
from tests.process import KEY, ROOT, run, serving
from tests.request_table import REQUESTS

README = (ROOT / "README.md").read_text("utf-8")


def section(title: str) -> str:
    """Return the text below a heading, up to the next heading of the same level."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(title: str, language: str) -> list[str]:
    """Return the fenced blocks of a language below a heading."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, section(title), re.DOTALL | re.MULTILINE)


def first_column(text: str) -> list[str]:
    """Return the code at the start of each row of a table."""
    return re.findall(r"^\| `(.*?)`", text, re.MULTILINE)


# Run it.


def test_the_first_requests_get_the_responses_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    [console] = blocks("Run it", "console")
    shown = re.findall(r"^\$ (.*)\n(.*\n)", console, re.MULTILINE)
    assert len(shown) == 2
    for command, body in shown:
        data = "".join(re.findall("-d '(.*?)'", command))
        response = client.open(
            urlsplit(command.split()[2]).path,
            method="POST" if data else "GET",
            headers=[text.split(": ") for text in re.findall("-H '(.*?)'", command)],
            data=data,
        )
        assert response.text == body


def test_the_command_prints_a_valid_key() -> None:
    [command] = [block for block in blocks("Run it", "sh") if "secrets" in block]
    key = run("sh", "-c", command).stdout.strip()
    client = create_app({"API_KEYS": key, "DATABASE": ":memory:"}).test_client()
    headers = {"Authorization": f"Bearer {key}"}
    assert client.get("/v1/pets", headers=headers).status_code == 200


# The client in Python.

[PYTHON_CLIENT] = blocks("Operations", "python")


def run_python_client(port: int, key: str = KEY) -> tuple[str, str]:
    """Run the client, and return what it prints and its error."""
    client = PYTHON_CLIENT.replace(":5000", f":{port}").replace("demo-key", key)
    ended = run("python", "-c", client)
    return ended.stdout, ended.stderr


def test_the_python_client_adds_a_pet_and_follows_every_page(database: Path) -> None:
    with serving(database) as service:
        for _ in range(21):
            service.request("POST", "/v1/pets", {"name": "Tom", "categoryId": 1})
        created, *listed = run_python_client(service.port)[0].splitlines()
        assert created.startswith("{'id': 22, ")
        assert listed == [*(f"{number} Tom" for number in range(1, 22)), "22 Rex"]
        _, error = run_python_client(service.port, "other-key")
        assert error.startswith("The API key is not valid.")


class BadGateway(StreamRequestHandler):
    """Answers as nginx does while the service is restarted."""

    def handle(self) -> None:
        self.request.recv(65_536)
        body = b"<html>502 Bad Gateway</html>"
        head = "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n"
        self.wfile.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


class Html(BadGateway):
    """Answers 200 with HTML, as a proxy with a login page does."""

    def handle(self) -> None:
        self.request.recv(65_536)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
        self.wfile.write(head + b"\r\n<html>")


@pytest.mark.parametrize("handler", [BadGateway, Html])
def test_the_python_client_prints_one_line_if_the_response_is_not_json(
    handler: type[StreamRequestHandler],
) -> None:
    with TCPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.handle_request).start()
        output, error = run_python_client(server.server_address[1])
    assert output == ""
    assert len(error.splitlines()) == 1


# Embedding.


def test_the_embedding_program_serves_pets_below_its_prefix(tmp_path: Path) -> None:
    [program] = blocks("Embedding", "python")
    [command] = blocks("Embedding", "sh")
    (tmp_path / "shop.py").write_text(program.replace("demo-key", KEY))
    command = command.replace("/path/to/clone/.venv/bin/", "exec ")
    command = command.replace("/path/to/clone", str(ROOT))
    shell = ["sh", "-c", f"cd {tmp_path}; {command}"]
    with serving(tmp_path / "unused.db", shell) as shop:
        pets = shop.request("GET", "/store/v1/pets")
        assert (pets.status, pets.body) == (200, [])
    assert f"`app.{StartError.__name__}`" in section("Embedding")


# Tables.


def test_the_error_shown_is_a_real_one(client: FlaskClient) -> None:
    [error] = blocks("Errors", "json")
    assert client.get("/v1/pets/1").text == error


def test_every_error_code_is_listed_with_its_status() -> None:
    listed = re.findall(r"^\| (\d+) \| `(\w+)` \|", section("Errors"), re.MULTILINE)
    tested = {(str(row.status), row.code) for row in REQUESTS if row.code}
    raised = {(str(status), code) for status, (code, _) in STANDARD_ERRORS.items()}
    assert set(listed) == tested | raised
    assert len(listed) == len(set(listed))


def test_every_setting_is_listed(client: FlaskClient) -> None:
    settings = client.application.config.keys() - Flask("another").config.keys()
    assert set(first_column(section("Settings"))) == {
        f"PETSTORE_{name}" for name in settings
    }


def test_every_route_is_listed(client: FlaskClient) -> None:
    table = section("Operations").partition("**A new pet**")[0]
    assert set(first_column(table)) == routes(client).keys()


def test_every_member_and_parameter_is_listed() -> None:
    document = json.loads((ROOT / "openapi.json").read_bytes())
    members = document["components"]["schemas"]["NewPet"]["properties"]
    parameters = document["paths"]["/pets"]["get"]["parameters"]
    text = section("Operations")
    new_pet, _, listing = text.partition("**A new pet**")[2].partition("**A list**")
    listing = listing.partition("**getPet")[0]
    assert first_column(new_pet) == list(members)
    names = [parameter["$ref"].rpartition("/")[2] for parameter in parameters]
    assert first_column(listing) == names
