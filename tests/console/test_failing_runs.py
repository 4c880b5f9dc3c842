"""A run that cannot continue: on the overview, on its page and on the page of its round."""

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, Watched, shoot
from support.marks import sampled
from support.scene import Scene, wait_for

LOOKS = {
    "light": (DESKTOP, "light"),
    "dark": (DESKTOP, "dark"),
    "phone": ({"width": 390, "height": 844}, "light"),
    "phone-dark": (PHONE, "dark"),
}
COHORT = {"goal": 2, "quorum": 2, "deadline_s": 600.0}
ERROR = "not_finite: Expected a finite metric 'loss', got nan"


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    """A server whose two clients return NaN, and a run that this paused."""
    with Scene(tmp_path_factory.mktemp("ward"), ("bad-ash", "bad-elm")) as scene:
        scene.paused = scene.submit(name="lost", cohort=COHORT, config={"delay_s": 0.1})
        wait_for(lambda: scene.run(scene.paused)["state"] == "paused", "the run does not pause")
        yield scene


@pytest.fixture
def seen(browser, ward, pressed):
    """Opens pages of that server."""
    with Watched(browser, ward, pressed) as watched:
        yield watched


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", ["/", "/runs/{run}", "/runs/{run}/rounds/1"])
def test_a_paused_run_says_why_and_what_to_do(seen, ward, axe, path, look):
    """The finding leads to the round, whose failures lead to a client that failed."""
    viewport, scheme = LOOKS[look]
    page = seen.open(path.format(run=ward.paused), viewport=viewport, scheme=scheme)
    if path.endswith("rounds/1"):
        failures = page.locator(".failures")
        expect(failures).to_contain_text("2 refused")
        expect(failures).to_contain_text(ERROR)
        expect(failures.get_by_role("link", name="bad-ash")).to_have_attribute(
            "href", "/clients/bad-ash"
        )
    else:
        alert = page.locator(".alerts li.bad", has_text=ward.paused)
        expect(alert).to_contain_text(f"{ward.paused} cannot continue and is paused")
        expect(alert).to_contain_text(ERROR)
        expect(alert.locator(".todo")).to_contain_text("lower train.learning_rate")
    expect(page.locator("body")).not_to_contain_text("Everything is well")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    place = {"/": "overview", "/runs/{run}": "run"}.get(path, "round")
    shoot(page, f"lost-{place}-{look}")
    assert axe(page) == []


@pytest.mark.parametrize("look", sampled(["light", "phone-dark"], 2))
def test_an_open_round_out_of_reach_counts_down_without_reload(seen, ward, axe, look):
    """From a healthy page to the failures, and from there to the end of the wait."""
    viewport, scheme = LOOKS[look]
    run = ward.submit(name="doomed", cohort={**COHORT, "give_up_s": 12.0}, config={"delay_s": 3.0})
    page = seen.open(f"/runs/{run}", viewport=viewport, scheme=scheme)
    expect(page.locator("#now + *, [aria-labelledby=now]").first).to_contain_text("quorum 2")
    expect(page.locator(".barline .bad")).to_contain_text("quorum out of reach, ends in")
    expect(page.locator(".failures")).to_contain_text(ERROR)
    expect(page.locator(".alerts li.bad")).to_contain_text("cannot reach its quorum of 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"doomed-run-{look}")
    assert axe(page) == []
    expect(page.locator(".alerts li.bad")).to_contain_text("cannot continue and is paused")
    ward.control.post("runs", run, "stop")
