"""docs/strategies/adapters.md: its table is accepted, its settings and values are complete."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fedloom.server.planning.spec import parse
from fedloom.strategies.adapters.settings import AGGREGATES, RESTS, Adapters

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "adapters.md").read_text("utf-8")


def test_a_run_accepts_the_table():
    """As it stands on the page."""
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    values = {"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}}
    spec = parse({**values, **tomllib.loads(table)})
    assert spec.build_adapters() == Adapters(aggregate="product", scale=2.0)


def test_it_names_every_setting_and_value():
    """With their defaults."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.MULTILINE))
    known = {field.name for field in fields(Adapters)}
    assert known <= rows.keys()
    assert rows["aggregate"] == f'`"{AGGREGATES[0]}"`'
    assert rows["rest"] == f'`"{RESTS[0]}"`'
    for name in AGGREGATES:
        assert f'`"{name}"`' in PAGE
