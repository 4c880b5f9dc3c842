"""docs/glossary.md and docs/architecture.md name modules and files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = [ROOT / name for name in ("client_sdk", "server", "simulations", "strategies")]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `(fedloom\.[\w.]+)` \|$", GLOSSARY, re.MULTILINE)
PAGES = ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"]


def exists(module):
    """Whether one of the roots has this module or package."""
    path = Path(*module.split("."))
    return any(
        (root / path).with_suffix(".py").exists() or (root / path).is_dir() for root in ROOTS
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_module_on_the_page_exists(page):
    """Renaming a module requires a change of the page."""
    named = set(re.findall(r"`(fedloom(?:\.\w+)+)`", (ROOT / page).read_text("utf-8")))
    assert {module for module in named if not exists(module)} == set()


def test_every_row_has_a_term_a_meaning_and_a_module():
    assert len(ROWS) == GLOSSARY.count("\n| ") - 1
    assert len(ROWS) > 50


def test_terms_are_in_order_and_defined_once():
    """Alphabetical order, so that readers and authors find a term."""
    terms = [term for term, _, _ in ROWS]
    assert terms == sorted(set(terms))


def test_a_missing_module_is_detected():
    """The check itself can fail."""
    assert exists("fedloom.strategies.base")
    assert exists("fedloom.server.engine")
    assert not exists("fedloom.server.nothing")
