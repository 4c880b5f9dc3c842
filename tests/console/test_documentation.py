"""The documentation site of a server in a browser: search, pages, themes, no other host."""

from itertools import product

import pytest
from playwright.sync_api import expect

from fedloom.server.web.documentation import ARCHIVE
from support.browser import DESKTOP, shoot
from support.marks import sampled

PHONE = {"width": 390, "height": 844}
PAGES = ("", "client.html", "architecture.html", "reference/settings.html",
         "notebooks/partitions.html", "strategies/index.html")  # fmt: skip

pytestmark = pytest.mark.skipif(
    not ARCHIVE.exists(), reason="there is no site: make docs builds it"
)


def test_the_console_leads_to_it_and_search_finds_a_page(watched):
    """By keyboard, from the link Help."""
    page = watched.open()
    page.get_by_role("link", name="Help").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/")
    for door in ("Deploy a device", "Run experiments", "Operate", "Reference"):
        expect(page.get_by_role("link", name=door, exact=True).first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("over-selection")
    found = page.locator(".md-search-result__link").first
    expect(found).to_be_visible()
    found.click()
    expect(page.locator("h1")).to_be_visible()
    assert "/docs/" in page.url


def test_a_stranger_reads_it(watched):
    """It says how to log in."""
    page = watched.open("/docs/console-security.html", log_in=False)
    expect(page.locator("h1")).to_be_visible()


@pytest.mark.parametrize(
    ("viewport", "scheme"), sampled(list(product([DESKTOP, PHONE], ["light", "dark"])), 3)
)
def test_pages_are_whole(watched, axe, viewport, scheme):
    """No error, no request elsewhere, nothing wider than the screen, no serious finding of axe."""
    page = watched.open("/docs/", viewport=viewport, scheme=scheme)
    root = page.url
    for path in PAGES:
        page.goto(root + path)
        expect(page.locator("h1")).to_be_visible()
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0, path
        name = path.removesuffix(".html").replace("/", "-") or "start"
        shoot(page, f"docs-{name}-{viewport['width']}-{scheme}", whole=False)
        assert axe(page) == [], path
