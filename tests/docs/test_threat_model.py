"""docs/threat-model.md names tests, modules and commands that exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
ATTACKS = PAGE.partition("\n## The network\n")[2].partition("\n## Differential privacy\n")[0]

_TEST = re.compile(r"`([\w/]+\.py)?::(\w+)`( †)?")
_MAKE = re.compile(r"`make ([\w-]+)`")
RARE = ("faults/", "packaging/test_packages.py", "console/", "flower/")
"""What `make test` leaves out, beside tests that are marked long or longest."""


def named(text):
    """The tests of a text: file, function, marked †."""
    for row in re.split(r"\n(?=\|)|\n\n", text):
        path = "no file before it"
        for file, function, mark in _TEST.findall(row):
            path = file or path
            yield path, function, bool(mark)


def rows(text):
    """The rows of a text's tables, without their heads."""
    for head, body in re.findall(r"^(\|.*\n)\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        assert head.rstrip().endswith("tests |"), head
        yield from body.splitlines()


@cache
def in_file(file):
    """Whether each test of a file is marked long, or longest."""
    path = TESTS / file
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text("utf-8"))
    marks = [n.value for n in tree.body if isinstance(n, ast.Assign) and "pytestmark" in _names(n)]
    whole = any("mark.long" in ast.unparse(value) for value in marks)
    return {
        node.name: whole
        or any(ast.unparse(d).endswith(("mark.long", "mark.longest")) for d in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def _names(assignment):
    return [target.id for target in assignment.targets if isinstance(target, ast.Name)]


def test_every_test_on_the_page_exists():
    """A renamed or removed test requires a change of the page."""
    missing = [f"{file}::{name}" for file, name, _ in named(PAGE) if name not in in_file(file)]
    assert missing == []
    assert len({(file, name) for file, name, _ in named(PAGE)}) > 100


def test_tests_that_make_test_leaves_out_are_marked():
    """Those that need minutes, root, a network or a browser."""
    wrong = [
        f"{file}::{name}"
        for file, name, marked in named(PAGE)
        if marked != (file.startswith(RARE) or in_file(file)[name])
    ]
    assert wrong == []


def test_every_attack_has_a_test():
    """Or a command that checks it."""
    found = list(rows(ATTACKS))
    assert len(found) > 60
    without = [row for row in found if not _TEST.search(row.rsplit("|", 2)[1])]
    assert [row for row in without if not _MAKE.search(row.rsplit("|", 2)[1])] == []


def test_every_section_of_attacks_has_what_is_not_held():
    """The page is for those who ask for it."""
    sections = re.split(r"^## ", ATTACKS, flags=re.MULTILINE)
    assert [s.splitlines()[0] for s in sections if "\nNot held:" not in s] == []


def test_every_command_on_the_page_exists():
    """The targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert set(_MAKE.findall(PAGE)) - targets == set()


def test_a_missing_test_and_a_missing_mark_are_detected():
    """The checks can fail."""
    text = "| `docs/test_threat_model.py::named`, `::nothing` † |\n| `::test_it` |"
    assert list(named(text)) == [
        ("docs/test_threat_model.py", "named", False),
        ("docs/test_threat_model.py", "nothing", True),
        ("no file before it", "test_it", False),
    ]
    assert "test_every_attack_has_a_test" in in_file("docs/test_threat_model.py")
    assert "named" not in in_file("docs/test_threat_model.py")
    assert in_file("no file before it") == {}
    assert in_file("e2e/test_crashes.py")["test_a_run_with_kills_has_the_computed_model"]
