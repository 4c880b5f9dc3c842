"""Pages of a browser, watched: an error in a page fails the test that opened it."""

import os
from pathlib import Path

from playwright.sync_api import expect

from support.controls import WATCH
from support.patience import PATIENCE_S

DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 360, "height": 740}
OUT = Path(os.environ.get("FEDLOOM_TEST_CONSOLE_OUT", "out/console"))

expect.set_options(timeout=1000 * PATIENCE_S)


class Watched:
    """Contexts of a browser, their errors, and the pressed controls.

    Args:
        browser: opens them.
        scene: the server of the pages.
        pressed: gets the names of pressed controls (`support.controls`).
    """

    def __init__(self, browser, scene, pressed=None):
        self._browser = browser
        self._scene = scene
        self._contexts = []
        self.wrong = []
        self.forgiven = []
        self.pressed = set() if pressed is None else pressed

    def open(self, path="/", *, scope="admin", viewport=DESKTOP, scheme="light", log_in=True):
        """A page, logged in by a link like an operator."""
        context = self._browser.new_context(viewport=viewport, color_scheme=scheme)
        context.set_default_timeout(1000 * PATIENCE_S)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.expose_binding("pressedControl", lambda _, name: self.pressed.add(name))
        context.add_init_script(WATCH)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
        context.on("request", self._asked)
        if log_in:
            link = self._scene.control.post("login-links", body={"scope": scope})["url"]
            page.goto(link)
        page.goto(self._scene.url + path)
        return page

    def _heard(self, message):
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.location}: {message.text}")

    def _asked(self, request):
        if not request.url.startswith((self._scene.url, "data:", "blob:")):
            self.wrong.append(f"a request to {request.url}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        wrong = self.end()
        assert kind is not None or wrong == []

    def end(self):
        """Close everything and return the errors."""
        for context in self._contexts:
            context.close()
        return [w for w in self.wrong if not any(text in w for text in self.forgiven)]


def shoot(page, name, *, whole=True):
    """Store a picture of a page."""
    OUT.mkdir(parents=True, exist_ok=True)
    page.wait_for_timeout(350)  # until bars and curves are drawn
    page.screenshot(path=OUT / f"{name}.png", full_page=whole)


def act(page, name, *, fields=(), says=None, yes=None):
    """Press a button, read the question, confirm it."""
    page.get_by_role("button", name=name, exact=True).first.click()
    dialog = page.locator("#confirm")
    expect(dialog).to_be_visible()
    if says:
        expect(dialog.locator(".consequence")).to_contain_text(says)
    for label, value in fields:
        dialog.get_by_label(label).fill(value)
    dialog.get_by_role("button", name=yes or name, exact=True).click()
    expect(dialog).not_to_be_visible()


def stays(page):
    """Mark a page, to check later that it was not reloaded."""
    page.evaluate("window.notLoadedAnew = 1")
    return lambda: page.evaluate("window.notLoadedAnew") == 1
