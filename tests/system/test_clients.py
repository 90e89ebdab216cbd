"""Clients of the service: schemathesis, and the one in JavaScript."""

import subprocess
from pathlib import Path

from tests.helpers import KEY
from tests.service import PROXIED, ROOT, add_pets, environment, run, serving
from tests.test_readme import API, blocks


def test_schemathesis_finds_no_response_that_the_document_lacks(database: Path) -> None:
    with serving(database) as service:
        subprocess.run(
            ["schemathesis", "run", "openapi.json", "--checks", "all", "--seed", "1"]
            + ["--url", f"http://{service.address()}/v1", "--no-color"]
            + ["--header", f"Authorization: Bearer {KEY}"]
            + ["--max-examples", "300", "--generation-database", "none"],
            cwd=ROOT,
            env=environment(),
            check=True,
        )
        assert "Traceback" not in service.log()


def test_the_javascript_client_adds_a_pet_and_lists_all(database: Path) -> None:
    [program] = blocks(API, "A client in JavaScript", "js")
    node = ("node", "--input-type=module", "--eval")
    with serving(database, PROXIED, SCRIPT_NAME="/~alice") as service:
        add_pets(service, 21, "/~alice")
        program = program.replace("127.0.0.1:5000", f"{service.address()}/~alice")
        refused = run(*node, program)
        program = program.replace("demo-key", KEY)
        listed = run(*node, program)
        moved = run(*node, program.replace("/v1/pets", "/moved"))
    stopped = run(*node, program)
    added, *pets = listed.stdout.splitlines()
    rex = "{{ id: {}, name: 'Rex', categoryId: 1, status: 'available' }}"
    assert added == rex.format(22)
    assert pets == [rex.format(number) for number in range(1, 23)]
    assert (listed.returncode, listed.stderr) == (0, "")
    assert (refused.returncode, stopped.returncode) == (1, 1)
    assert '{"code":"invalid_api_key",' in refused.stderr
    assert "ECONNREFUSED" in stopped.stderr
    assert "unexpected redirect" in moved.stderr
