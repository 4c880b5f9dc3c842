"""Links lead to pages: one of each kind, on a running, an old and an empty server."""

from playwright.sync_api import expect

from support.archive import digest_of
from support.big_ledger import RUN, name_of
from support.browser import Watched
from support.controls import controls, is_pressed
from support.scene import Scene

PAST = (
    "/", "/runs", f"/runs/{RUN}", f"/runs/{RUN}/rounds", f"/runs/{RUN}/rounds/9", "/clients",
    f"/clients/{name_of(7)}", "/models", f"/models/{digest_of(70)}", "/audit", "/compare",
    "/privacy",
)  # fmt: skip
LINKS = "a[href^='/']:not([download])"


def links_of(page):
    """The links of a page without downloads, named as in `support.controls`."""
    return page.locator(LINKS).evaluate_all(
        """all => all.map((e) => `link ${e.getAttribute("href")} ${e.textContent}`
             .replace(/\\s+/g, " ").trim())"""
    )


def follow(watched, address):
    """Press one link of every kind that was not pressed before."""
    page = watched.open()
    page.goto(address)
    kinds = {name for name in controls() if name.startswith("link ")}
    for index, name in enumerate(links_of(page)):
        left = {kind for kind in kinds if not is_pressed(kind, watched.pressed)}
        if not any(is_pressed(kind, {name}) for kind in left):
            continue
        page.goto(address)
        link = page.locator(LINKS).nth(index)
        there = link.get_attribute("href")
        link.evaluate("e => e.click()")  # some are visible only to the keyboard
        page.wait_for_url(lambda url, there=there: url.endswith(there))
        expect(page.locator("h1, .empty").first).to_be_visible()


def test_links_of_a_running_server(watched, scene, busy):
    """With a paused run, for which the overview has an alert."""
    scene.control.post("runs", busy, "pause")
    for path in ("/", "/runs", f"/runs/{busy}", f"/runs/{busy}/rounds", "/clients/bad-birch",
                 f"/runs/{busy}/rounds/1", "/logs?client=bad-birch"):  # fmt: skip
        follow(watched, scene.url + path)


def test_links_of_a_server_with_history(reader, archive):
    for path in PAST:
        follow(reader, archive.url + path)


def test_links_of_an_empty_server(browser, pressed, tmp_path):
    """Pages name the first step; an unknown page links to the overview."""
    with Scene(tmp_path, ()) as scene:
        watched = Watched(browser, scene, pressed)
        watched.forgiven.append("404")
        for path in ("/", "/runs", "/clients", "/nowhere"):
            follow(watched, scene.url + path)
        assert watched.end() == []
