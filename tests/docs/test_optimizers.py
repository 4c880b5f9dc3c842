"""docs/strategies/optimizers.md: its example prints the shown output, its tables are complete."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from fedloom.server.planning.spec import parse
from fedloom.strategies import STRATEGIES, Schedule, ServerOptimizer
from fedloom.strategies.optimizers.schedules import Shape

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "optimizers.md").read_text("utf-8")
KINDS = [kind for kind in STRATEGIES.values() if kind.own_rule is ServerOptimizer.own_rule]
"""Those that take any client rule; the others are on the page of client rules."""


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.mark.long
def test_the_example_prints_the_shown_output(capsys):
    exec(compile(block("python"), "docs/strategies/optimizers.md", "exec"), {})
    assert capsys.readouterr().out == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.build_strategy().schedule.rounds == 200


def test_it_names_every_optimizer_setting_and_schedule():
    """In its tables."""
    for kind in KINDS:
        assert f"| `{kind.__name__.lower()}` |" in PAGE
        for field in fields(kind):
            if field.name not in ("rule", "aggregation"):
                assert f"| `{field.name}` |" in PAGE, field.name
    for shape in get_args(Shape):
        assert f"| `{shape}` |" in PAGE
    for field in fields(Schedule):
        assert re.search(rf"`(schedule\.)?{field.name}`", PAGE), field.name
