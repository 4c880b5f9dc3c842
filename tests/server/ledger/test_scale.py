"""On a large ledger no list reads a whole table."""

import re

import pytest
import sqlalchemy as sa

from fedloom.server.planning.spec import parse
from fedloom.server.routes import application
from support.big_ledger import RUN, fill, name_of
from support.door import SPEC, Door
from support.routes import table

GROWING = {
    "cohorts", "updates", "rounds", "refusals", "audit", "tokens", "certificates", "models",
    "populations",
}  # fmt: skip
"""Tables that grow with every round, every client or every deed."""

VALUES = {"run": RUN, "number": "2", "name": name_of(1), "digest": f"{3:064x}"}
ENDLESS = {"/v1/events"}
WHOLE = {
    ("/v1/overview", "refusals"): "the latest thousand, and no more",
    ("/", "refusals"): "likewise",
    ("/v1/tokens", "tokens"): "counts them, in an index",
    ("/enrolment", "tokens"): "likewise",
    ("/models", "models"): "likewise",
    ("/v1/privacy", "populations"): "the runs of every client, in an index",
    ("/v1/privacy/clients", "populations"): "likewise",
    ("/privacy", "populations"): "likewise",
    ("/v1/client-shares", "cohorts"): "the tasks of every client, in an index",
    ("/metrics", "certificates"): "the first to end, of all clients, in an index",
}
"""Who may read a whole table, and why."""


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server on a ledger with some of each row: query plans do not depend on the number."""
    state = tmp_path_factory.mktemp("scale") / "state"
    state.mkdir()
    fill(state, num_rounds=3, cohort=5, num_clients=20, spec=parse(SPEC).as_dict())
    with Door(state) as door:
        yield door


def plans(door, url):
    """Statements of a request, each with SQLite's query plan."""
    seen = []

    def note(_connection, _cursor, statement, parameters, *_):
        if statement.lstrip().upper().startswith("SELECT"):
            seen.append((statement, parameters))

    engine = door.contexts.ledger._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        connection = door.connect()
        connection.request("GET", url)
        status = connection.getresponse().status
        connection.close()
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    assert status < 500, url
    with engine.connect() as connection:
        for statement, parameters in seen:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            yield statement, [row[-1] for row in rows]


def scanned(statement, plan):
    """Growing tables that a plan scans completely; the first rows of an order do not count."""
    sorts = any("TEMP B-TREE" in step for step in plan)
    stops = "LIMIT" in statement and "WHERE" not in statement and not sorts
    tables = {m.group(1) for step in plan if (m := re.match(r"SCAN (\w+)", step))}
    return set() if stops else tables & GROWING


@pytest.mark.long
def test_no_route_scans_a_table_that_grows(door):
    rows = table(application.create_app(door.context, door.runs, door.authority))
    asked = 0
    for row in rows:
        if row.method != "GET" or row.path in ENDLESS or row.path.startswith("/static"):
            continue
        if not set(re.findall(r"{(\w+)}", row.path)) <= VALUES.keys():
            continue
        for query in ("", "?limit=2", "?q=ward&label=site=north"):
            for statement, plan in plans(door, row.path.format_map(VALUES) + query):
                asked += 1
                found = {name for name in scanned(statement, plan) if (row.path, name) not in WHOLE}
                assert not found, (row.path, statement, plan)
    assert asked > 60


def test_queries_of_rounds_use_indexes(door):
    """An accept, a task with memory and a restart do not slow down as a run grows."""
    seen = []

    def note(_connection, _cursor, statement, parameters, *_):
        seen.append((statement, parameters))

    ledger, engine = door.contexts.ledger, door.contexts.ledger._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    ledger.last_counted(RUN, name_of(1))
    ledger.find_update(RUN, 1, name_of(1))
    ledger.accepted(RUN, 1)
    assert list(ledger.reported_metrics(RUN, 1))
    ledger.open_rounds()
    ledger.open_round_of(RUN)
    ledger.knows_model(f"{3:064x}")
    sa.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, parameters in seen:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            assert not scanned(statement, [row[-1] for row in rows]), statement
