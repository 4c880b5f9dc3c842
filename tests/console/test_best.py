"""The best model in the console: marked, promoted and downloaded in one press."""

import pytest
from playwright.sync_api import expect

from support.browser import DESKTOP, PHONE, act, shoot
from support.scene import wait_for

LOOKS = {"light": (DESKTOP, "light"), "dark": (DESKTOP, "dark"), "phone": (PHONE, "light")}


@pytest.fixture(scope="module")
def stalled(scene):
    """A run whose clients' loss cannot improve by so much: it ends early."""
    best = {"min_delta": 1000.0, "patience": 2}
    run = scene.submit(name="stalled", rounds=50, config={"delay_s": 0.1}, best=best)
    wait_for(lambda: scene.run(run)["state"] == "finished", "not finished")
    return scene.run(run)


@pytest.mark.parametrize("look", LOOKS)
def test_the_run_shows_its_best_model(watched, stalled, axe, look):
    """Its value, its round, its patience, and why the run ended early."""
    viewport, scheme = LOOKS[look]
    page = watched.open(f"/runs/{stalled['id']}", viewport=viewport, scheme=scheme)
    line = page.locator("#best")
    expect(line).to_contain_text("Best model: round 0, loss 0.6931")
    expect(line).to_contain_text("2 of 2 evaluations without an improvement")
    expect(line).to_contain_text(stalled["best"]["model"][:12])
    expect(page.locator(".head")).to_contain_text("loss has not improved by more than 1000")
    expect(page.locator("dl.facts").last).to_contain_text("min_delta 1000.0, patience 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"best-run-{look}")
    assert axe(page) == []


@pytest.mark.parametrize("look", LOOKS)
def test_the_models_mark_the_best_of_each_run(watched, scene, stalled, axe, look):
    """One model of each run, with a button to promote it."""
    viewport, scheme = LOOKS[look]
    page = watched.open("/models", viewport=viewport, scheme=scheme)
    row = page.locator(f"[id='model-{stalled['id']}-0']")
    expect(row).to_contain_text("best")
    best = scene.run(scene.finished)["best"]["round"]
    expect(page.locator(f"[id='model-{scene.finished}-{best}']")).to_contain_text("best")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    shoot(page, f"best-models-{look}")
    assert axe(page) == []


def test_the_best_model_is_promoted_and_downloaded(watched, scene, stalled):
    """By keyboard, from the run's page; the model's page names the run of which it is the best."""
    digest = stalled["best"]["model"]
    page = watched.open(f"/runs/{stalled['id']}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the best model").press("Enter")
    assert download.value.suggested_filename == f"{digest}.safetensors"
    act(page, "Promote", fields=[("Note", "the best one")], says=f"round 0 of {stalled['id']}")
    assert scene.control.get("promotions")["promotions"][0]["run"] == stalled["id"]
    page.get_by_role("link", name=digest[:12]).first.click()
    expect(page.locator(".head")).to_contain_text("promoted")
    expect(page.locator(".head")).to_contain_text(f"best of {stalled['id']}")
