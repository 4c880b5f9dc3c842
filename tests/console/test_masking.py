"""Masking sessions in a browser: the table of a round, and the members of a session on demand."""

import re

import pytest
from playwright.sync_api import expect

from fedloom.server.ledger.masking import blames
from fedloom.server.ledger.masking import sessions as phases
from fedloom.server.planning.spec import parse
from support.browser import DESKTOP, PHONE, Watched, shoot
from support.masked_rounds import AT, MASKED, NUMBER, RUN, abandoned, done, masked_ledger, send
from support.scene import Scene

ROUND = f"/runs/{RUN}/rounds/{NUMBER}"


def past(state):
    """A session that is done, one that was abandoned, and one that shares."""
    rosters = (("", "abcd"), ("", "efgh"), ("", "ijkl"))
    ledger = masked_ledger(state, rosters, "abcdefghijkl", spec=parse(MASKED).as_dict())
    done(ledger, 0, "abd")
    abandoned(ledger, 1, closing="efg", reason="threshold not reached: 2 of 4 members did in time")
    ledger.blame((*AT[:2], 1), "h", blames.FALSE_SHARES)
    send(ledger, phases.SHARES, "ij", session=2)
    ledger.close()


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A server with such a round in its history."""
    with Scene(tmp_path_factory.mktemp("masked"), (), past) as scene:
        yield scene


@pytest.fixture
def pages(browser, masked, pressed):
    with Watched(browser, masked, pressed) as watched:
        yield watched


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_round_leads_to_the_members_of_its_sessions(pages, axe, viewport, scheme):
    """Only the table scrolls sideways, and both pages can be read by everybody."""
    page = pages.open(ROUND, viewport=viewport, scheme=scheme)
    rows = page.locator("table.sessions tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("proved dead 3 of 4 gave it up")
    expect(rows.nth(2)).to_contain_text("2 so far")
    name = f"masking-{viewport['width']}-{scheme}"
    shoot(page, f"{name}-round")
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    rows.nth(1).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Masking session 1")
    expect(page.locator("#member-h")).to_contain_text("false_shares")
    expect(page.locator("#member-e td")).to_have_count(9)
    shoot(page, f"{name}-session")
    assert page.evaluate(fits)
    page.get_by_role("link", name=re.compile("2 ›")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Masking session 2")
    page.get_by_role("link", name=re.compile("‹ 1")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Masking session 1")
    assert axe(page) == []
