"""The disk: strace shows the system calls of the service, and lets some of them fail.

https://man7.org/linux/man-pages/man1/strace.1.html
"""

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from tests.helpers import KEY, NEW_PET, all_pets, create_client, wal_of
from tests.service import GUNICORN, add_pets, run, serving


def strace(database: Path, *options: str) -> list[str]:
    """Return a command that serves with strace, which writes to `trace_of`."""
    # -D: the service stays the process that the test has started. -y: with paths.
    calls = "trace=pwrite64,fdatasync,sendto"
    command = ["strace", "-D", "-f", "-y", "-e", calls, "-o", str(trace_of(database))]
    return [*command, *options, *GUNICORN]


def trace_of(database: Path) -> Path:
    """Return the path of the file to which strace writes the system calls."""
    return database.with_suffix(".trace")


def events_in(database: Path) -> list[str]:
    """Return the writes and syncs of the WAL, and the responses, in their order."""
    wal = re.escape(f"<{wal_of(database)}>")
    # The call of a thread may be interrupted by one of another thread, and resumed.
    pattern = rf'(pwrite64|fdatasync)\(\d+{wal}|sendto\(.*"HTTP/1.1 (\d+) '
    found = re.findall(pattern, trace_of(database).read_text())
    return [call or status for call, status in found]


def test_a_file_system_that_cannot_share_memory_is_refused(database: Path) -> None:
    # SQLite maps this file into memory, to share an index of the WAL.
    shared = ["-P", f"{database}-shm", "-e", "inject=mmap:error=ENODEV"]
    command = strace(database, *shared, "-e", "trace=mmap")
    ended = run(*command, PETSTORE_API_KEYS=KEY, PETSTORE_DATABASE=str(database))
    assert ended.returncode == 1
    assert ended.stderr.strip() == (
        f"Error: PETSTORE_DATABASE: {database}: disk I/O error; the disk may be full "
        "or failing, or its file system cannot share memory."
    )


def test_each_201_is_sent_after_a_sync_of_its_pet(database: Path) -> None:
    with serving(database, strace(database)) as service:
        add_pets(service, 3)
        assert service.stop() == 0
    calls = [call for call, _ in groupby(events_in(database))]
    add = ["pwrite64", "fdatasync", "201"]
    # The first write and sync are those of the header of the WAL. The last sync is that
    # of the checkpoint at the end.
    assert calls == [*add[:2], *add * 3, "fdatasync"]


def test_threads_that_add_pets_share_syncs(database: Path) -> None:
    slow = strace(database, "-e", "inject=fdatasync:delay_exit=20000")
    with (
        serving(database, slow) as service,
        ThreadPoolExecutor(8) as threads,
    ):
        for writer in [threads.submit(add_pets, service, 10) for _ in range(8)]:
            writer.result()
        service.kill()
    events = events_in(database)
    assert events.count("fdatasync") < events.count("201") == 80


def test_a_sync_that_fails_is_503_and_the_service_works_again(database: Path) -> None:
    # The third sync of the WAL fails, the fifth one, and so on. strace counts those of
    # each thread, so there is only one.
    fail = ["-P", str(wal_of(database)), "-e", "inject=fdatasync:error=EIO:when=3+2"]
    command = [*strace(database, *fail), "--threads", "1"]
    names: list[str] = []
    statuses: list[int] = []
    with serving(database, command) as service:
        while len(names) < 5:
            name = f"{len(statuses)}"
            pet = {**NEW_PET, "name": name}
            statuses.append(service.request("POST", "/v1/pets", pet).status)
            if statuses[-1] == 201:
                names.append(name)
            pets = service.request("GET", "/v1/pets").body
            assert [pet["name"] for pet in pets] == names
            assert service.request("GET", "/healthz").status == 200
        service.kill()
    assert {*statuses} == {201, 503}
    pets = all_pets(create_client(database))
    assert [pet["name"] for pet in pets] == names
