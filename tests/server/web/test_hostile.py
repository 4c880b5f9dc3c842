"""Input of clients and operators is shown as text on every page, and no URL is unsafe."""

import logging
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from fedloom.server.ledger import tables
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.spec import parse
from support.big_ledger import RUN, fill, name_of
from support.door import SPEC, Door

EVIL = "\"><img src=x onerror=alert(1)>'`{{7*7}}<script>alert(1)</script>\u202e\x1b[31m"
MEASURED = {"num_examples": 5, "values": {EVIL: 0.5, "loss": float("nan")}}
WRITTEN = (
    (tables.clients, "note"), (tables.clients, "hold_reason"), (tables.clients, "sdk_version"),
    (tables.runs, "reason"), (tables.rounds, "reason"), (tables.cohorts, "reason"),
)  # fmt: skip

PAGES = (
    "/", "/runs", f"/runs/{RUN}", f"/runs/{RUN}/rounds", f"/runs/{RUN}/rounds/2",
    f"/compare?runs={RUN}", "/clients", f"/clients/{name_of(1)}", "/models", "/enrolment", "/audit",
    "/logs", "/runs/new", f"/runs/new?clone={RUN}", f"/models/{3:064x}",
    *(f"{path}{quote(EVIL)}" for path in ("/login?next=", "/nowhere/", "/clients?q=", "/clients/",
      "/clients?label=", "/audit?who=", "/logs?q=", "/logs?client=", "/logs?run=", "/runs/")),
)  # fmt: skip


class _Reader(HTMLParser):
    """Finds executable markup."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        runs = any(name.startswith("on") for name in given) or tag == "style" or "style" in given
        foreign = tag == "script" and not given.get("src", "").startswith("/static/")
        leads = [given.get(name) or "" for name in ("href", "src", "action")]
        away = any(to.lower().startswith(("javascript:", "//", "x", "data:text")) for to in leads)
        if runs or foreign or away:
            self.found.append((tag, given))


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server whose ledger, trail and log hold markup in all free text."""
    state = tmp_path_factory.mktemp("hostile") / "state"
    state.mkdir()
    fill(state, num_rounds=3, cohort=5, num_clients=20, spec=parse(SPEC).as_dict())
    with Door(state) as door:
        ledger = door.contexts.ledger
        with ledger._engine.begin() as connection:
            for table, column in WRITTEN:
                if column in table.c:
                    connection.execute(table.update().values({column: EVIL}))
            for table in (tables.rounds, tables.cohorts):
                for column in {"training", "evaluation"} & set(table.c.keys()):
                    connection.execute(table.update().values({column: MEASURED}))
            row = {"client": EVIL, "run": RUN, "round": 1, "code": EVIL, "message": EVIL}
            connection.execute(tables.refusals.insert().values(at=1e9, detail=EVIL, **row))
            label = {"client": name_of(1), "name": EVIL, "value": EVIL, "own": True}
            connection.execute(tables.labels.insert().values(label))
            assert connection.execute(sa.select(tables.refusals)).first()
        logging.getLogger("fedloom.test").warning("line %s", EVIL, extra=about(EVIL, EVIL, 1))
        ledger.trail.append(EVIL, "socket", EVIL, EVIL, {EVIL: EVIL})
        yield door


@pytest.mark.parametrize("live", [False, True])
def test_markup_is_shown_as_text(door, live):
    """On whole pages and live parts."""
    shown = 0
    for page in PAGES:
        url = page + ("&" if "?" in page else "?") + "part=live" if live else page
        connection = door.connect()
        connection.request("GET", url, headers={"Accept": "text/html"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status < 500, url
        reader = _Reader()
        reader.feed(text)
        assert not reader.found, (url, reader.found[:3])
        shown += "onerror" in text
    assert shown >= 8
