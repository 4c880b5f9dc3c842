"""docs/strategies/client-rules.md: its examples run, its tables are complete."""

import contextlib
import io
import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fedloom.server.planning.spec import parse
from fedloom.strategies.algorithms.scaffold import Scaffold
from fedloom.strategies.registry import CLIENT_RULES, STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "client-rules.md").read_text("utf-8")


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_the_shown_output():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "client-rules.md", "exec"), {"__name__": "page"})
    assert printed.getvalue() == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.build_strategy() == Scaffold(clients=100)
    assert spec.weighting == "uniform"


def test_it_names_every_rule_and_setting():
    """Rules selected by [rule], and strategies with their own rule."""
    for name, rule in CLIENT_RULES.items():
        assert f"| `{name}` |" in PAGE
        assert all(f"`{field.name}`" in PAGE for field in fields(rule))
    for name in ("feddyn", "fednova", "mimelite", "qfedavg", "scaffold"):
        assert f"| `{name}` | `[strategy]` |" in PAGE
        parts = {"rule", "aggregation"}
        assert all(f"`{f.name}`" in PAGE for f in fields(STRATEGIES[name]) if f.name not in parts)
