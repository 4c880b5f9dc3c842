"""A real browser against a real server with real clients: `make console` runs these tests.

A test fails if one of its pages has an error in the browser's console, violates the content
security policy, or sends a request to another host.
"""

import os
import shutil
from pathlib import Path

import pytest

from support.scene import Scene

if os.environ.get("FEDLOOM_TEST_CONSOLE") != "1":
    collect_ignore_glob = ["test_*.py"]  # playwright may be missing

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
NAMES = ("oak", "elm", "ash", "fir", "yew", "bay", "bad-birch")


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A server with seven clients, one of them faulty, and a finished run."""
    with Scene(tmp_path_factory.mktemp("scene"), NAMES) as scene:
        scene.finished = scene.submit(name="first", rounds=4, config={"delay_s": 0.1})
        scene.until(scene.finished, 4)
        yield scene
    log = (scene.folder / "server.log").read_text()
    assert "Traceback" not in log, log[-4000:]


@pytest.fixture(scope="session")
def browser():
    """The system's Chromium."""
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pressed():
    """Names of controls that a test pressed."""
    return set()


@pytest.fixture
def watched(browser, scene, pressed):
    """Opens pages; fails the test if a page reports an error."""
    from support.browser import Watched

    with Watched(browser, scene, pressed) as watched:
        yield watched


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    """A stopped server with a large history."""
    from support.archive import past

    with Scene(tmp_path_factory.mktemp("archive"), (), past) as scene:
        yield scene


@pytest.fixture
def reader(browser, archive, pressed):
    """Opens pages of the archive like `watched`."""
    from support.browser import Watched

    with Watched(browser, archive, pressed) as watched:
        yield watched


@pytest.fixture(scope="session")
def axe():
    """Runs axe on a page; returns serious and critical findings."""
    path = Path(os.environ.get("FEDLOOM_TEST_AXE", "out/axe/axe.min.js"))
    if not path.exists():  # checked last: the page's other checks have run
        return lambda _: pytest.skip(f"axe is not in {path}: make console fetches it by npm")
    source = path.read_text()

    def look(page):
        page.evaluate(source)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            (v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:3]])
            for v in found["violations"]
            if v["impact"] in ("serious", "critical")
        ]

    return look


@pytest.fixture
def busy(scene):
    """A run with long rounds, stopped afterwards."""
    run = scene.submit(name="busy", rounds=500, config={"delay_s": 4.0})
    scene.until_open(run)
    yield run
    if scene.run(run)["state"] in ("running", "paused"):
        scene.control.post("runs", run, "stop")
