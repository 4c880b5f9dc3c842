"""How fast the console's routes answer on a large ledger: 1,000 rounds of 200 of 10,000 clients.

    python benchmarks/console.py [--state DIR] [--times 20]

Prints the median and the 95th percentile of every GET route, asked one after another over the Unix
socket; the server's thread shares the interpreter with whoever asks, so figures err upwards.
Exits with 1 if a 95th percentile is above 200 ms.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fastapi import routing

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fedloom.server import api
from fedloom.server.ledger import Ledger
from fedloom.server.spec import parse
from support.big_ledger import RUN, fill, name_of
from support.door import SPEC, Door

LIMIT_S = 0.2
VALUES = {"run": RUN, "number": "500", "name": name_of(4711), "digest": f"{1000:064x}"}
QUERIES = {
    "/v1/clients": ["", "?q=ward-0471", "?state=online", "?label=site=north", "?after=ward-05000"],
    "/v1/runs/{run}/rounds": ["", "?before=500"],
    "/v1/runs/{run}/refusals": ["?limit=1000"],
}
SKIPPED = {"/v1/events", "/v1/models/{digest}", "/v1/models/{digest}/signature"}
"""One never ends, the others are files."""


def urls(app):
    """Every GET route of the application, with the queries worth asking."""
    for found in routing.iter_route_contexts(app.routes):
        route, path = found.original_route, found.path
        if isinstance(route, routing.APIRoute) and "GET" in found.methods and path not in SKIPPED:
            if not set(re.findall(r"{(\w+)}", path)) <= VALUES.keys():
                continue
            for query in QUERIES.get(path, [""]):
                yield path.format_map(VALUES) + query


def measure(door, url, times):
    """Seconds of each answer, and the status."""
    taken, status = [], 0
    for _ in range(times):
        connection = door.connect()
        begun = time.perf_counter()
        connection.request("GET", url)
        response = connection.getresponse()
        response.read()
        taken.append(time.perf_counter() - begun)
        status = response.status
        connection.close()
    return sorted(taken), status


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, help="a filled state directory, made if missing")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        state = arguments.state or Path(temporary)
        state.mkdir(parents=True, exist_ok=True)
        if not (state / "ledger.sqlite").exists():
            begun = time.perf_counter()
            fill(state, spec=parse(SPEC | {"rounds": 1000}).as_dict())
            print(f"ledger made in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        Ledger.in_directory(state).close()
        with Door(state) as door:
            app = api.create_app(door.world, door.runs, door.authority)
            slow = 0
            print(f"{'route':<60} {'status':>6} {'p50 ms':>8} {'p95 ms':>8}")
            for url in urls(app):
                taken, status = measure(door, url, arguments.times)
                p95 = taken[max(0, round(0.95 * len(taken)) - 1)]
                slow += p95 > LIMIT_S or status >= 500
                shown = url.replace(RUN, "RUN")
                print(f"{shown:<60} {status:>6} {1e3 * statistics.median(taken):>8.1f} "
                      f"{1e3 * p95:>8.1f}{'  SLOW' if p95 > LIMIT_S else ''}")  # fmt: skip
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
