"""docs/strategies/robust.md: its example prints the shown output, its tables are complete."""

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fedloom.server.planning.spec import parse
from fedloom.simulation.training.attacks import ATTACKS
from fedloom.strategies import AGGREGATIONS
from fedloom.strategies.masking.over_sessions import RULES
from fedloom.strategies.masking.sessions import session_sizes

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "robust.md").read_text("utf-8")


def blocks(language):
    """The page's blocks in this language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_prints_the_shown_output(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/strategies/robust.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[0]


def test_a_run_accepts_the_first_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(blocks("toml")[0])
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, **table})
    assert spec.build_strategy().aggregation.num_byzantine == 3
    assert tomllib.loads(blocks("toml")[2])["attack"]["name"] in ATTACKS


def test_a_run_accepts_the_table_of_sessions():
    """Its round has as many sessions, and bears as many, as the page says."""
    table = tomllib.loads(blocks("toml")[1])
    run = {"train": {"epochs": 1, "learning_rate": 0.1}, "max_abs": 0.5, "weighting": "uniform"}
    spec = parse({**run, **table})
    sizes = session_sizes(200, table["masking"]["group"])
    assert (len(sizes), set(sizes)) == (7, {28, 29})
    assert spec.build_strategy().aggregation.tolerated(7) == 3
    assert spec.needs == "sessions"
    for name in RULES:
        assert re.search(rf"^\| `{name}` \| .*3 \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_rule_and_setting_is_explained(name):
    """With its default, if that is a number."""
    assert PAGE.count(f"| `{name}` |") >= (1 if name in ("mean", "median") else 2)
    for field in fields(AGGREGATIONS[name]):
        (row,) = [
            row
            for rule, row in setting_rows()
            if rule == name and row.startswith(f" `{field.name}` |")
        ]
        if field.default is not MISSING and field.default is not None:
            assert f"| {field.default} |" in row


def setting_rows():
    """(rule, rest of the row) of the table of settings."""
    rows = re.search(r"## Settings\n(.*?)\n\n`geo", PAGE, re.DOTALL).group(1).splitlines()
    name = ""
    for row in rows:
        if row.startswith("|"):
            first, rest = row[1:].split("|", 1)
            name = first.strip().strip("`") or name
            yield name, rest


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_explained(name):
    """In the table of attacks."""
    assert f"| `{name}` |" in PAGE
