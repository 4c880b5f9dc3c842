"""docs/masking-audit.md names tests, phrases and modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/masking-audit.md").read_text("utf-8")
CLAIMS = PAGE.partition("\n## Claims\n")[2].partition("\n## What no test shows\n")[0]
TESTS = ROOT / "tests"
MASKING = TESTS / "protocol/masking"
ROWS = [line.split(" | ") for line in CLAIMS.splitlines() if line.startswith("| ")][1:]


def file_of(name):
    """The file of a test that the page names: `::` parts it from a function."""
    path = name.partition("::")[0].removeprefix("tests/")
    return TESTS / path if "/" in path else MASKING / path


def missing(rows):
    """What is named in the last cells and does not exist."""
    for cells in rows:
        file = None
        for name, function in re.findall(r"`([\w/]+\.py)?(?:::(test_\w+))?`", cells[-1]):
            file = file_of(name) if name else file
            if file is None or not file.is_file():
                yield name
            elif function and f"def {function}(" not in file.read_text("utf-8"):
                yield f"{name}::{function}"


def test_every_test_on_the_page_exists():
    """A renamed or removed test requires a change of the page."""
    assert len(ROWS) >= 13
    assert list(missing(ROWS)) == []
    assert all("`" in cells[-1] for cells in ROWS)


def test_every_module_on_the_page_exists():
    for cells in ROWS:
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", cells[1]):
            places = [*ROOT.glob(f"*/fedloom/{name}"), *ROOT.glob(f"*/fedloom/*/{name}"),
                      *ROOT.glob(f"client_sdk/fedloom/protocol/masking/{name}")]  # fmt: skip
            assert places, name


def test_a_missing_test_is_detected():
    gone = "`test_member.py::test_nothing`, `test_none.py`, `test_seeds.py`"
    assert list(missing([["", "", gone]])) == ["test_member.py::test_nothing", "test_none.py"]
