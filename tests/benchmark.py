"""Measure the service on this machine. Run it with: python -m tests.benchmark

The table shows requests per second, and the 99th percentile of their duration. The
clients run on the same machine, and keep their connections open.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from tests.helpers import NEW_PET
from tests.service import Service, request, serving

SECONDS = 3.0
REQUESTS = {
    "list 20": ("GET", "/v1/pets", None),
    "list 100": ("GET", "/v1/pets?limit=100", None),
    "create": ("POST", "/v1/pets", NEW_PET),
}


def measure(service: Service, method: str, path: str, body: object) -> list[float]:
    """Send requests on one connection, and return their durations in seconds."""
    durations = []
    with closing(service.connect()) as connection:
        end = time.monotonic() + SECONDS
        while (began := time.monotonic()) < end:
            assert request(connection, method, path, body).status < 300
            durations.append(time.monotonic() - began)
    return durations


def main() -> None:
    """Print the table."""
    print("| request | connections | requests/s | 99th percentile |")
    print("|---|---|---|---|")
    with TemporaryDirectory() as folder, serving(Path(folder, "pets.db")) as service:
        for _ in range(1_000):
            service.request("POST", "/v1/pets", NEW_PET)
        for name, arguments in REQUESTS.items():
            for count in (1, 16):
                with ThreadPoolExecutor(count) as threads:
                    clients = [
                        threads.submit(measure, service, *arguments)
                        for _ in range(count)
                    ]
                durations = sum((client.result() for client in clients), [])
                percentile = 1000 * quantiles(durations, n=100)[-1]
                rate = len(durations) / SECONDS
                print(f"| {name} | {count} | {rate:,.0f} | {percentile:.1f} ms |")


if __name__ == "__main__":
    main()
