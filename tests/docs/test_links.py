"""Every relative link of every page has a target, and so has every anchor."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    ".",
    "docs",
    "docs/adr",
    "docs/strategies",
    "docs/tutorials",
    "benchmarks",
    "client_sdk",
    "server",
    "simulations",
    "strategies",
)
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_ELSEWHERE = ("http://", "https://", "mailto:")


def _anchors(page):
    """The anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        kept = re.sub(r"[^\w\- ]", "", _LINK.sub("", heading).strip().lower())
        yield kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_link_targets_exist(page):
    """Relative links only; the test uses no network."""
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if link.startswith(_ELSEWHERE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        if anchor:
            assert anchor in set(_anchors(target)), f"{link}: no such heading"


def test_every_page_of_docs_is_in_its_index():
    """Readers do not find a page without a link."""
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "strategies").glob("*.md")]
    for page in pages:
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path == "README.md" or f"]({path})" in index, path
