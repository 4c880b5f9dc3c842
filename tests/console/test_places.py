"""Navigation: pages of long lists, filters, downloads, and single presses."""

import json
import re

import numpy as np
import pytest
from playwright.sync_api import expect

from support.archive import digest_of
from support.big_ledger import RUN, name_of
from support.browser import Watched, act, shoot, stays
from support.scene import wait_for

FIRST = {
    "/audit": ("Next", "First"),
    "/clients": ("Next", "First"),
    "/privacy": ("Next", "First"),
    f"/clients/{name_of(7)}": ("Next", "First"),
    f"/runs/{RUN}/rounds": ("Next", "First"),
    f"/runs/{RUN}/rounds/9": ("Next", "First"),
}
"""Long lists, and what leads on and back to their beginning."""


def first_row(page):
    """The first row of the last table of a page."""
    return page.locator("tbody").last.locator("tr").first.inner_text()


@pytest.mark.parametrize("path", FIRST)
def test_long_list_has_pages(reader, path):
    """One press opens the next page, and one returns."""
    on, back = FIRST[path]
    page = reader.open(path)
    begun = first_row(page)
    pager = page.locator(".pager").last
    pager.get_by_role("link", name=on, exact=True).click()
    expect(pager).to_contain_text(back)
    assert first_row(page) != begun
    pager.get_by_role("link", name=back, exact=True).click()
    page.wait_for_url(lambda url: not any(word in url for word in ("before", "after", "page=")))
    assert first_row(page) == begun


def test_neighbours_of_a_round_are_one_press_away(reader):
    page = reader.open(f"/runs/{RUN}/rounds/9")
    page.get_by_role("link", name="10 ›").click()
    expect(page.locator("h1")).to_have_text("Round 10")
    page.get_by_role("link", name="‹ 9").click()
    expect(page.locator("h1")).to_have_text("Round 9")


FILTERS = [
    ("/runs", {"Search": "large"}, {"State": "finished"}, 1),
    ("/runs", {"Search": "nothing"}, {}, None),
    ("/audit", {"Who": "ada", "Action": "run", "Subject": RUN}, {}, 60),
    ("/clients", {"Label": "site=north"}, {"State": "offline", "Version": "1.0.0"}, ...),
    ("/clients", {"Search": "ward-0023"}, {}, 10),
    ("/models", {}, {"Run": RUN}, 70),
    ("/privacy", {"Label": "site=nowhere"}, {}, None),
]
"""Page, what is typed, what is chosen, and how many rows are left: None for none, ... for some."""


@pytest.mark.parametrize(("path", "typed", "chosen", "rows"), FILTERS)
def test_filter_keeps_matching_rows(reader, path, typed, chosen, rows):
    """The fields keep their values."""
    page = reader.open(path)
    for label, text in typed.items():
        page.get_by_label(label, exact=True).fill(text)
    for label, value in chosen.items():
        page.get_by_label(label, exact=True).select_option(value)
    page.get_by_role("button", name="Filter").first.click()
    if rows is None:
        expect(page.locator(".empty").last).to_be_visible()
    elif rows is ...:
        expect(page.locator("#clients header")).to_contain_text("matching")
        assert 0 < page.locator("tbody tr").count() < 100
    else:
        expect(page.locator("tbody").first.locator("tr")).to_have_count(rows)
    for label, text in {**typed, **chosen}.items():
        expect(page.get_by_label(label, exact=True)).to_have_value(text)


def test_log_is_filtered_by_client_and_run(watched, scene):
    """Existing and new lines."""
    page = watched.open("/logs")
    page.get_by_label("Client").fill("bad-birch")
    page.get_by_label("Minimum level").select_option("warning")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**client=bad-birch**")
    run = scene.submit(name="odd", rounds=1, config={"delay_s": 0.1})
    subject = page.locator("#lines tr .about")
    expect(subject.first).to_contain_text(run)  # without reload
    assert all("bad-birch" in each for each in subject.all_inner_texts())
    shoot(page, "logs-of-client", whole=False)
    page.get_by_label("Run").fill(run)
    page.get_by_label("Search").fill("refus")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url(f"**run={run}**")
    assert all(run in each for each in subject.all_inner_texts())
    subject.first.get_by_role("link", name=run).click()
    expect(page.locator("h1")).to_have_text("Round 1")
    page.go_back()
    page.get_by_role("link", name="All lines").click()
    page.wait_for_url(re.compile(r"/logs\?level=warning$"))
    scene.until(run, 1)


def test_model_is_compared_with_one_that_is_chosen(reader, archive):
    """By default with its base model; the values are those of the files."""
    page = reader.open(f"/models/{digest_of(70)}")
    row = page.locator("#tensor-w")
    expect(page.get_by_label("Compare with")).to_have_value(digest_of(69))
    expect(row.locator("td").nth(5)).to_have_text(f"{np.linalg.norm(np.arange(12)):.4g}")
    page.get_by_label("Compare with").select_option(digest_of(68))
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"**base={digest_of(68)}**")
    expect(row.locator("td").nth(5)).to_have_text(f"{2 * np.linalg.norm(np.arange(12)):.4g}")
    expect(row.locator("td").nth(6)).to_have_text("3 %")
    expect(page.get_by_label("Compare with")).to_have_value(digest_of(68))
    shoot(page, "model-compared")


def test_model_is_downloaded_with_its_signature(reader, archive):
    """From the list and from its page, with the bytes of the file."""
    name = digest_of(70)
    whole = (archive.state / "models" / f"{name}.safetensors").read_bytes()
    page = reader.open("/models")
    for path in ("/models", f"/models/{name}"):
        page.goto(archive.url + path)
        with page.expect_download() as caught:
            page.get_by_role("link", name="Download").first.click()
        assert caught.value.path().read_bytes() == whole
        assert caught.value.suggested_filename == f"{name}.safetensors"
    with page.expect_download() as caught:
        page.get_by_role("link", name="Signature").click()
    statement = json.loads(json.loads(caught.value.path().read_text())["statement"])
    assert (statement["digest"], statement["run"], statement["round"]) == (name, RUN, 70)


def test_run_is_rolled_back_from_the_page_of_a_model(watched, scene):
    run = scene.submit(name="again", rounds=3, config={"delay_s": 0.1})
    scene.until(run, 3)
    page = watched.open(f"/models/{scene.round(run, 2)['model_out']}")
    act(page, "Roll back to this model", says="undone", yes="Roll back")
    wait_for(lambda: scene.run(run)["rounds_committed"] == 2, "not rolled back")
    scene.control.post("runs", run, "stop")


def test_round_is_retried_while_open_and_after(watched, scene, busy):
    """Each retry starts from the same model."""
    number = scene.live(busy)["number"]
    page = watched.open(f"/runs/{busy}/rounds/{number}")
    same = stays(page)
    act(page, "Retry round", says="opens it again from the same model", yes="Retry it")
    wait_for(lambda: scene.round(busy, number)["state"] == "abandoned", "not dropped")
    assert scene.round(busy, number)["reason"] == "tried again by the operator"
    wait_for(lambda: scene.live(busy).get("number", 0) > number, "not opened again")
    expect(page.locator(".head .tag")).to_have_text("abandoned")
    expect(page.get_by_role("button", name="Retry round")).to_have_count(0)
    assert same()
    scene.control.post("runs", busy, "pause")
    last = scene.live(busy)["number"]
    assert scene.round(busy, last)["model_in"] == scene.round(busy, number)["model_in"]
    scene.control.post("runs", busy, "abort")
    wait_for(lambda: scene.round(busy, last)["state"] == "abandoned", "not aborted")
    page.goto(f"{scene.url}/runs/{busy}/rounds/{last}")
    act(page, "Retry round", says="at once", yes="Retry it")
    wait_for(lambda: scene.live(busy).get("number", 0) > last, "not opened again")
    assert scene.run(busy)["state"] == "running"


def test_dialog_is_cancelled(watched, scene, busy):
    """Nothing happens, and the button has the focus again."""
    page = watched.open(f"/runs/{busy}")
    page.get_by_role("button", name="Stop run").click()
    page.locator("#confirm").get_by_role("button", name="Cancel").click()
    expect(page.locator("#confirm")).not_to_be_visible()
    expect(page.get_by_role("button", name="Stop run")).to_be_focused()
    assert scene.run(busy)["state"] == "running"


def test_runs_are_picked_for_a_comparison(watched, scene, busy):
    """Also with time as the axis."""
    page = watched.open(f"/runs/{busy}")
    page.get_by_role("link", name="Compare").click()
    expect(page.get_by_label(busy)).to_be_checked()
    page.get_by_label(scene.finished).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("figure .key").first).to_contain_text(scene.finished)
    page.get_by_role("button", name="per time").click()
    expect(page.locator("figure .key").first).to_contain_text(scene.finished)


def test_digest_is_copied(reader):
    """In full, though only a part is shown."""
    page = reader.open("/models")
    page.get_by_role("button", name=f"Copy the digest {digest_of(70)[:12]}").first.click()
    expect(page.locator(".toast")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == digest_of(70)
    page.locator(".toast").get_by_role("button", name="Dismiss").click()
    expect(page.locator(".toast")).to_have_count(0)


def test_theme_and_help_have_buttons(reader):
    """The chosen theme persists."""
    page = reader.open("/")
    page.get_by_role("button", name="Switch between dark and light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.goto(page.url)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.locator("#keys").get_by_role("button", name="Close").click()
    expect(page.locator("#keys")).not_to_be_visible()


def test_run_starts_from_another_model_without_evaluation(watched, scene):
    """As chosen in the form."""
    page = watched.open(f"/runs/{scene.finished}")
    page.get_by_role("link", name="Clone").click()
    chosen = scene.round(scene.finished, 3)["model_out"]
    page.get_by_label("Initial model").select_option(chosen)
    page.get_by_label("Clients evaluate each model").set_checked(False)
    page.get_by_label("Rounds").fill("1")
    page.get_by_label("Strategy").select_option("fedavg")
    page.get_by_label("All other settings").fill("[config]\ndelay_s = 0.1")
    page.get_by_role("button", name="Start the run").click()
    page.wait_for_url(re.compile(r"/runs/first-\w+$"))
    run = page.url.rpartition("/")[2]
    scene.until(run, 1)
    assert scene.round(run, 1)["model_in"] == chosen
    assert scene.run(run)["spec"]["evaluate"] is False


def test_token_lifetime_is_chosen(reader, archive):
    page = reader.open("/enrolment")
    page.get_by_label("Client’s name").fill("brief")
    page.get_by_label("Valid for").select_option(label="an hour")
    page.get_by_role("button", name="Create a token").click()
    page.get_by_role("button", name="Copy token only").click()
    expect(page.locator(".toast")).to_contain_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied
    assert copied in page.locator(".qr pre").inner_text()
    [token] = [t for t in archive.control.get("tokens")["tokens"] if t["client"] == "brief"]
    assert token["expires_at"] - token["created_at"] == pytest.approx(3600, abs=2)


def test_login_link_from_another_site_is_confirmed(browser, archive, pressed):
    watched = Watched(browser, archive, pressed)
    page = watched.open("/", log_in=False)
    link = archive.control.post("login-links", body={"scope": "viewer"})["url"]
    page.goto("about:blank")
    page.set_content(f'<a href="{link}">the console</a>')
    page.get_by_role("link").click()
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(archive.url + "/")
    expect(page.locator(".who")).to_contain_text("viewer")
    assert watched.end() == []
