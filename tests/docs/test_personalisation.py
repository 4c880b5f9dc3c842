"""docs/strategies/personalisation.md: its examples run, its tables are complete."""

import contextlib
import io
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

from fedloom.server.planning.spec import parse
from fedloom.strategies import Personal

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "personalisation.md").read_text("utf-8")


def block(language):
    """The page's first block in this language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0]


def test_the_example_prints_the_shown_output():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "personalisation.md", "exec"), {"__name__": "page"})
    assert printed.getvalue() == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.build_personal() == Personal(keep=("head.*",))


def test_it_gives_the_default_of_every_setting():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    for field in fields(Personal):
        assert field.default is not MISSING
        shown = rows[field.name].strip("`")
        assert type(field.default)(tomllib.loads(f"x = {shown}")["x"]) == field.default
