"""docs/simulation.md: its Python runs, its tables are complete."""

import re
from pathlib import Path

import pytest

from fedloom.simulation import config, models

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text("utf-8")


@pytest.mark.long
def test_its_python_runs(capsys):
    """`run` prints its result; settings train to an accuracy and a digest; parts make the same."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    in_ten_lines, from_settings, from_parts, with_hooks = blocks
    names = {}
    exec(compile(from_parts, "docs/simulation.md", "exec"), names)
    assert len(names["result"].records) == 3
    exec(compile(with_hooks, "docs/simulation.md", "exec"), names)
    assert {"f1", "auc"} <= names["result"].records[-1].test.keys()
    capsys.readouterr()
    exec(compile(in_ten_lines, "docs/simulation.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Result(rounds: 5, accuracy: ")
    exec(compile(from_settings, "docs/simulation.md", "exec"), {})
    accuracy, digest = capsys.readouterr().out.split()
    assert 0.1 < float(accuracy) <= 1
    assert len(digest) == 64


def test_it_names_every_example_table_and_model():
    """In its tables."""
    examples = {path.name for path in (ROOT / "simulations" / "examples").glob("*.toml")}
    assert {name for name in examples if not name.startswith("sweep")} <= set(
        re.findall(r"examples/([a-z]+\.toml)", PAGE)
    )
    for name in (*config.TABLES, *models.MODELS):
        assert f"`[{name}]`" in PAGE or f"`{name}`" in PAGE
