"""README.md: its first requests, its client in Python, and the embedding program."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app import create_app
from tests.helpers import KEY, NEW_PET, needs_linux
from tests.service import ROOT, run, serving

README = (ROOT / "README.md").read_text("utf-8")


def blocks(title: str, language: str) -> list[str]:
    """Return the fenced blocks of a language below a heading."""
    section = README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, section, re.DOTALL | re.MULTILINE)


def test_the_first_requests_get_the_responses_shown() -> None:
    client = create_app({"API_KEYS": "demo-key", "DATABASE": ":memory:"}).test_client()
    commands = blocks("Run it", "sh")[1].splitlines()
    [responses] = blocks("Run it", "text")
    for command, body in zip(commands, responses.splitlines(True), strict=True):
        data = "".join(re.findall("-d '(.*?)'", command))
        response = client.open(
            urlsplit(command.split()[1]).path,
            method="POST" if data else "GET",
            headers=[text.split(": ") for text in re.findall("-H '(.*?)'", command)],
            data=data,
        )
        assert response.text == body


@needs_linux
def test_the_python_client_adds_a_pet_and_follows_every_page(database: Path) -> None:
    [program] = blocks("Operations", "python")
    with serving(database) as service:
        for _ in range(21):
            service.request("POST", "/v1/pets", NEW_PET)
        program = program.replace("127.0.0.1:5000", service.address())
        client = run("python", "-c", program.replace("demo-key", KEY))
        added, *listed = client.stdout.splitlines()
        assert added.startswith("{'id': 22, 'name': 'Rex', ")
        assert listed == [f"{number} Rex" for number in range(1, 23)]
        client = run("python", "-c", program)
        assert client.stderr.startswith("The API key is not valid.")


@needs_linux
@pytest.mark.parametrize(("number", "port"), [(0, "--port 0"), (1, "-b 127.0.0.1:0")])
def test_the_embedding_program_serves_pets_below_its_prefix(
    tmp_path: Path, number: int, port: str
) -> None:
    [program] = blocks("Embedding", "python")
    command = blocks("Embedding", "sh")[number]
    (tmp_path / "shop.py").write_text(program.replace("demo-key", KEY))
    command = re.sub(r'"\$PYTHONPATH/\.venv/bin/(\w+)"', r"exec \1", command)
    command = command.replace("/path/to/clone", str(ROOT)).strip()
    shell = ["sh", "-c", f"cd {tmp_path}; {command} {port}"]
    with serving(tmp_path / "unused.db", shell) as shop:
        pets = shop.request("GET", "/store/v1/pets")
        assert (pets.status, pets.body) == (200, [])


def test_every_error_code_of_the_document_is_listed() -> None:
    document = (ROOT / "openapi.json").read_text()
    codes = set(re.findall(r'"code": "(\w+)"', document)) | {"method_not_allowed"}
    section = README.partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| \d+ \| `(\w+)` \|", section, re.MULTILINE)) == codes
    [error] = blocks("Errors", "json")
    assert json.loads(error)["code"] in codes
