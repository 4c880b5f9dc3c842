"""Every page in a real browser: complete, accessible, in dark and light, and on a phone."""

from itertools import product

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, Watched, shoot
from support.marks import sampled
from support.scene import Scene

PAGES = {
    "overview": "/",
    "runs": "/runs",
    "run": "/runs/{finished}",
    "rounds": "/runs/{finished}/rounds",
    "round": "/runs/{finished}/rounds/2",
    "compare": "/compare?runs={finished},{busy}",
    "new-run": "/runs/new?clone={finished}",
    "clients": "/clients",
    "client": "/clients/oak",
    "models": "/models",
    "model": "/models/{model}",
    "privacy": "/privacy",
    "enrolment": "/enrolment",
    "audit": "/audit",
    "logs": "/logs",
}
LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "light")}


@pytest.fixture(scope="module")
def shown(scene):
    """A federation with data on every page: a running and a finished run, and a faulty client."""
    name = "wards-of-the-general-hospital-north-2026"  # as long as allowed
    run = scene.submit(name=name, rounds=500, config={"delay_s": 1.5})
    scene.until(run, 3)
    yield {"finished": scene.finished, "busy": run, "model": scene.run(scene.finished)["model"]}
    scene.control.post("runs", run, "stop")


@pytest.mark.parametrize(("name", "look"), sampled(list(product(PAGES, LOOKS)), 2))
def test_page_is_complete(watched, shown, axe, name, look):
    """It has a heading, fits its window, is live, and axe finds nothing serious."""
    viewport, scheme = LOOKS[look]
    page = watched.open(PAGES[name].format(**shown), viewport=viewport, scheme=scheme)
    expect(page.locator("h1")).to_have_count(1)
    expect(page.locator("#link")).to_have_text("Live")
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"{name}-{look}")
    assert axe(page) == []


def test_curves_have_descriptions(watched, shown):
    """A chart is an image with a description, and its key shows the values."""
    page = watched.open(f"/runs/{shown['finished']}")
    plot = page.get_by_role("img", name="Loss over")
    expect(plot.locator("canvas")).to_be_visible()
    assert "training from" in plot.get_attribute("aria-label")
    expect(page.locator("figure .key").first).to_contain_text("evaluation")
    page.get_by_role("button", name="per time").click()
    expect(page.get_by_role("button", name="per time")).to_have_attribute("aria-pressed", "true")
    expect(plot.locator("canvas")).to_be_visible()


def test_compared_runs_share_a_plot(watched, shown):
    """With their settings side by side."""
    page = watched.open(f"/compare?runs={shown['finished']},{shown['busy']}")
    key = page.locator("figure .key").first
    expect(key).to_contain_text(shown["finished"])
    expect(key).to_contain_text(shown["busy"])
    expect(page.get_by_role("region", name="Settings side by side")).to_contain_text("Rounds")


def test_empty_server_shows_the_next_step(browser, pressed, tmp_path, axe):
    with Scene(tmp_path, ()) as scene:
        watched = Watched(browser, scene, pressed)
        page = watched.open("/")
        expect(page.locator(".empty")).to_contain_text("No client has enrolled yet")
        shoot(page, "empty-overview")
        assert axe(page) == []
        page.get_by_role("link", name="Create a token").click()
        expect(page.get_by_role("heading", name="Create a token")).to_be_visible()
        for path in ("/runs", "/clients", "/models", "/compare"):
            page.goto(scene.url + path)
            expect(page.locator(".empty")).to_be_visible()
        page.goto(scene.url + "/runs/new")
        expect(page.locator("main")).to_contain_text("The server has no model yet. Upload one")
        assert watched.end() == []


def test_unknown_page_is_reported(watched, scene):
    watched.forgiven.append("404")
    page = watched.open("/runs/nothing-like-this")
    expect(page.locator(".empty")).to_contain_text("Page not found")
    page.goto(scene.url + "/nowhere")
    expect(page.locator(".empty")).to_contain_text("Page not found")
