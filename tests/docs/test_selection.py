"""docs/strategies/selection.md: its example prints the shown output, its tables are complete."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fedloom.server.planning.spec import parse
from fedloom.strategies import SELECTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "selection.md").read_text("utf-8")


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_the_shown_output(capsys):
    exec(compile(block("python"), "docs/strategies/selection.md", "exec"), {})
    assert capsys.readouterr().out == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.build_selection().choices == 3


def test_it_names_every_policy_and_setting():
    """With the default, if it has one."""
    for name, policy in SELECTIONS.items():
        assert f"| `{name}` |" in PAGE
        for field in fields(policy):
            assert re.search(rf"\| `{field.name}` \|", PAGE), (name, field.name)
