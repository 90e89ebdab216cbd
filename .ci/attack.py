"""Run the scripts of deploy/ as root while the user of the service attacks them.

This user renames whatever appears in the folder of the database, and puts links to a
folder and to a file of root there. Afterwards, root's files must be as they were, and
this user must not have their content. Without root, there is nothing to attack.
"""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.test_deploy import AS_USER, IS_ROOT, Machine, python_for

# In half of the rounds, the user takes only the files of the scripts: they get further.
ROUNDS = [("pets.db", "pets.db-wal", "pets.db-shm"), ()] * 5
SECRET = "root's secret"
ATTACK = """
import itertools, os, sys, time
folder, to_folder, to_file, *spared = sys.argv[1:]
for number in itertools.count():
    time.sleep(number % 4 / 50)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not (os.path.islink(path) or name in spared or name.startswith("taken-")):
            try:
                os.rename(path, os.path.join(folder, f"taken-{number}"))
                os.symlink((to_folder, to_file)[number % 2], path)
            except OSError:
                pass
"""


def state(folder: Path) -> dict[str, object]:
    """Return the owner, the mode and the content of everything in a folder."""
    return {
        str(path): (
            path.stat().st_uid,
            path.stat().st_gid,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
        if not {".git", "__pycache__"} & set(path.parts)
    }


def attack(machine: Machine) -> str:
    """Attack each script, and return how often each last line was seen."""
    root_folder = machine.root / "of-root"
    root_folder.mkdir()
    secret = root_folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    before = {**state(root_folder), **state(machine.clone)}
    backup = machine.back_up()
    folder = machine.database.parent
    command = [python_for("nobody"), "-c", ATTACK, str(folder), str(root_folder)]
    lines = []
    for spared in ROUNDS:
        machine.deploy("restore", str(backup))
        attacker = subprocess.Popen([*command, str(secret), *spared], **AS_USER)
        try:
            for script, arguments in (
                ("backup", []),
                ("upgrade", [machine.version()]),
                ("restore", [str(backup)]),
            ):
                line = machine.deploy(script, *arguments)
                lines.append(f"{script} {line.partition('.')[0].partition(' /')[0]}")
            assert attacker.poll() is None, "the attacker has ended"
        finally:
            attacker.kill()
            attacker.wait()
            for path in folder.iterdir():
                if path.is_symlink():
                    path.unlink()
    machine.kill()
    assert {**state(root_folder), **state(machine.clone)} == before
    assert len(set(lines)) > 3, f"the attack changed nothing: {lines}"
    for path in [*machine.backups.iterdir(), *folder.rglob("*")]:
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path
            assert (path.stat().st_uid == 0) == (path.parent == machine.backups), path
    return ", ".join(f"{lines.count(line)} x {line}" for line in sorted(set(lines)))


def main() -> None:
    """Attack a machine of its own, in a folder that every user may open."""
    if not IS_ROOT:
        print("Not attacked: only root has something to lose.")
        return
    with TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        machine = Machine(Path(name) / "machine")
        machine.start()
        machine.add("Rex")
        print(attack(machine))


if __name__ == "__main__":
    main()
