"""The navigation on each page, and what limited users see of it."""

import re
import time

import pytest

from fedloom.server.access import passwords
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.web.render import PLACES
from support.door import Door
from support.visitor import Visitor

PASSWORD = "correct horse battery"


@pytest.fixture
def door(tmp_path, monkeypatch):
    monkeypatch.setattr(passwords, "COST", passwords.Cost(n=16, r=1, p=1))
    with Door(tmp_path / "state", console="127.0.0.1:0", max_running=1) as door:
        yield door


def visitor(door, studies=None):
    wish = {"name": "ci", "scope": "operator", "studies": studies}
    return Visitor(door.site, token=door.ask("POST", "/api-tokens", wish)[1]["token"])


def places_of(text):
    """Where the navigation of a page leads."""
    [nav] = re.findall(r'(?s)<nav class="places".*?</nav>', text)
    return re.findall(r'href="([^"]*)"', nav)


def test_every_page_has_the_navigation_also_with_a_queue(door, tmp_path):
    door.submit(tmp_path, name="first")
    waits = door.submit(tmp_path, name="second")
    paths = [path for _, path, *_ in PLACES]
    for path in paths:
        answer = visitor(door).ask("GET", path)
        assert (answer.status, places_of(answer.text)) == (200, paths)
    found = visitor(door).ask("GET", "/runs").text
    assert re.search(rf"(?s){waits}.*?place 1</span>", found)


def test_a_user_of_a_study_sees_the_places_that_are_open(door, tmp_path):
    """From the overview, where a login leads; no page offers what is closed."""
    own = door.submit(tmp_path, name="own", study="cardio")
    hashed = passwords.hashed(PASSWORD)
    accounts = door.contexts.ledger.accounts
    accounts.add_user("bea", Scope.OPERATOR, hashed, time.time(), ["cardio"])
    bea = Visitor(door.site)
    assert bea.log_in("bea", PASSWORD).headers["location"] == "/"
    open_to_it = ["/", "/runs", "/clients", "/models"]
    for path in ("/", "/runs", f"/runs/{own}", f"/runs/{own}/rounds"):
        text = bea.ask("GET", path).text
        assert places_of(text) == open_to_it
        offered = {href for href in re.findall(r'href="(/[^"#?]*)', text) if "/static" not in href}
        assert [href for href in offered if "of a study" in bea.ask("GET", href).text] == []
    closed = bea.ask("GET", "/audit", accept="text/html")
    assert (closed.status, places_of(closed.text)) == (404, open_to_it)
