"""How fast the console's routes answer on a large ledger: 1,000 rounds of 200 of 10,000 clients.

    python benchmarks/console.py [--state DIR] [--times 20] [--values 10000000]

Beside that run there are fifty others, 15,000 tokens, 100,000 entries of the audit trail, and files
of the models that are looked at. The description of the API is there, as a server makes it soon
after its start. Prints the median and the 95th percentile of every GET route, asked one after
another over the Unix socket, each as if nobody had asked before; the server's thread shares the
interpreter with whoever asks, so figures err upwards. Exits with 1 if a 95th percentile is above
200 ms.
"""

import argparse
import gc
import re
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np
from fastapi import routing

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fedloom.protocol.tensors.container import write_file
from fedloom.server.ledger import Ledger, tables
from fedloom.server.ledger.access.tables import audit
from fedloom.server.planning.spec import parse
from fedloom.server.routes import application
from fedloom.server.storage.model_store import ModelStore
from support.big_ledger import RUN, START, fill, name_of, round_rows
from support.door import SPEC, Door

LIMIT_S = 0.2
LAST, BEFORE = f"{1000:064x}", f"{999:064x}"
VALUES = {"run": RUN, "number": "500", "name": name_of(4711), "digest": LAST}
QUERIES = {
    "/v1/clients": ["", "?q=ward-0471", "?state=online", "?label=site=north", "?after=ward-05000"],
    "/v1/runs/{run}/rounds": ["", "?before=500"],
    "/v1/runs/{run}/refusals": ["?limit=1000"],
    "/v1/models/{digest}/layers": ["", f"?base={BEFORE}"],
    "/v1/model-comparison": [f"?of={LAST}&of={BEFORE}"],
    "/v1/audit": ["", "?action=run", "?who=ada&action=run.note", "?subject=nothing"],
    "/models/{digest}": [
        "",
        f"?base={BEFORE}",
        "?part=live",
        "?tensors.sort=-norm",
        "?tensors.as=csv",
    ],
    "/clients": [
        "",
        "?q=ward-0471",
        "?q=second+floor",
        "?state=online&version=1.0.0",
        "?label=site=north",
        "?sort=-success",
        "?sort=staleness&page=60",
        "?sort=state",
        "?as=csv&q=ward-00",
    ],
    "/runs": ["", "?q=large", "?state=finished", "?sort=-metric.accuracy", "?as=csv"],
    "/runs/{run}": ["", "?part=live", "?refusals.sort=-times&refusals.page=20", "?refusals.as=csv"],
    "/runs/{run}/rounds": ["", "?sort=metric.loss", "?sort=-p95_s&page=20", "?as=csv"],
    "/runs/{run}/rounds/{number}": ["", "?sort=-took_s&state=reported", "?part=live", "?as=csv"],
    "/enrolment": ["", "?sort=state&page=100", "?q=guest-4"],
    "/audit": ["", "?who=ada", "?subject=nothing", "?sort=-subject&page=900", "?sort=detail"],
    "/clients/{name}": ["", "?sort=-metric.loss&state=reported", "?as=csv"],
    "/privacy": [
        "",
        "?label=site=north",
        "?sort=-spent&runs.sort=-clients&clients.sort=-runs&clients.page=50",
        "?clients.q=ward-047",
        "?clients.as=csv",
    ],
    "/logs": ["", "?client=oak&run=large&level=warning"],
    "/compare": [
        "",
        f"?runs={RUN}",
        f"?runs={RUN},past-00,past-01",
        f"?runs={RUN},past-00&sort=-rounds",
    ],
    "/v1/curves": [f"?runs={RUN},past-00"],
    "/models": ["", f"?run={RUN}", "?sort=metric.loss&page=5", "?as=csv", "?promotions.sort=note"],
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


def fill_more(state, num_values):
    """What else a server gathers in years: runs, tokens, a trail; and models to look at."""
    ledger = Ledger.in_directory(state)
    spec = parse(SPEC | {"rounds": 3}).as_dict()
    with ledger._write() as connection:  # noqa: SLF001 - in bulk, as no server writes
        for index in range(50):
            connection.execute(tables.runs.insert(), [{
                "id": f"past-{index:02d}", "name": "past", "spec": spec, "state": "finished",
                "reason": "", "created_at": START + index, "ended_at": START + 1e4 + index,
                "model": LAST, "strategy_state": None, "committed": 3, "last_round": 3,
            }])  # fmt: skip
            for number in range(1, 4):
                row, cohorts, _ = round_rows(number, [name_of(i) for i in range(5)], Random(index))
                name = {"run": f"past-{index:02d}"}
                connection.execute(tables.rounds.insert(), [row | name])
                connection.execute(tables.cohorts.insert(), [each | name for each in cohorts])
        connection.execute(tables.tokens.insert(), [
            {"id": f"x{n}", "secret_hash": "x", "client": f"guest-{n}", "created_at": START + n,
             "expires_at": 4e9 if n % 2 else START + n + 60.0, "used_at": None}
            for n in range(5000)
        ])  # fmt: skip
        connection.execute(audit.insert(), [
            {"id": n + 1, "previous": f"{n:064x}", "at": START + n, "who": ("ada", "eve")[n % 2],
             "how": "token",
             "action": ("run.note", "client.label")[n % 3 == 0], "subject": f"s{n % 100}",
             "detail": "{}", "hash": f"{n:064x}"} for n in range(100_000)
        ])  # fmt: skip
    ledger.close()
    store, generator = ModelStore(state / "models"), np.random.default_rng(7)
    shapes = [(num_values // 40, 4)] * 9 + [(num_values // 40 * 4,)]
    for digest in (BEFORE, LAST):
        params = {f"layer{i}.weight": generator.standard_normal(shape, np.float32)
                  for i, shape in enumerate(shapes)}  # fmt: skip
        write_file(store.path(digest), params)


def measure(door, url, times):
    """Seconds of each answer, each as if it were the first, and the status."""
    taken, status = [], 0
    for _ in range(times):
        door.app.state.context.inspector.forget()
        door.app.state.answers.forget()
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
    parser.add_argument(
        "--values", type=int, default=10_000_000, help="of each model that is there"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        state = arguments.state or Path(temporary)
        state.mkdir(parents=True, exist_ok=True)
        if not (state / "ledger.sqlite").exists():
            begun = time.perf_counter()
            fill(state, spec=parse(SPEC | {"rounds": 1000}).as_dict())
            fill_more(state, arguments.values)
            print(f"ledger made in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        Ledger.in_directory(state).close()
        shutil.rmtree(state / "pki", ignore_errors=True)  # each door makes its own
        with Door(state) as door:
            app = application.create_app(door.context, door.runs, door.authority)
            gc.collect()
            gc.freeze()  # as a server does after its start
            slow = 0
            print(f"{'route':<60} {'status':>6} {'p50 ms':>8} {'p95 ms':>8}")
            for url in ["/v1/openapi.json", *urls(app)]:
                first = url == "/v1/openapi.json"
                if first:
                    door.call_async(application.describe_soon, door.app, 0.0)
                taken, status = measure(door, url, 1 if first else arguments.times)
                p95 = taken[max(0, round(0.95 * len(taken)) - 1)]
                slow += p95 > LIMIT_S or status >= 500
                shown = url.replace(RUN, "RUN")
                print(f"{shown:<60} {status:>6} {1e3 * statistics.median(taken):>8.1f} "
                      f"{1e3 * p95:>8.1f}{'  SLOW' if p95 > LIMIT_S else ''}")  # fmt: skip
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
