"""docs/strategies/asynchronous.md: its tables match the code, its settings and example work."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedloom.server.engine import IGNORE, REFUSE, Buffer, BufferConfig
from fedloom.server.planning.spec import parse
from fedloom.simulation import config
from fedloom.strategies import STALENESS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies" / "asynchronous.md").read_text("utf-8")


def blocks(language):
    """The page's blocks in this language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_prints_the_shown_output(capsys):
    exec(compile(blocks("python")[0], "docs/strategies/asynchronous.md", "exec"), {})
    assert [capsys.readouterr().out] == blocks("text")


@pytest.mark.parametrize(("text", "goal"), list(zip(blocks("toml"), (10, 1), strict=True)))
def test_a_run_accepts_the_settings(text, goal):
    """Unchanged, as the page shows them."""
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, **tomllib.loads(text)})
    buffer = spec.buffer_config()
    assert (buffer.goal, buffer.concurrency, buffer.max_staleness) == (goal, 20, 20)


def test_it_names_every_setting_and_weighting():
    """The settings of each weighting too."""
    for field in fields(BufferConfig):
        assert f"`{field.name}`" in PAGE, field.name
    for name, weighting in STALENESS.items():
        assert f'| `"{name}"` |' in PAGE
        for field in fields(weighting):
            assert f"`{field.name}` {field.default:g}" in PAGE, (name, field.name)


def test_the_state_table_matches_the_code():
    """For each state and event: ignored, refused, or handled."""
    verdicts = {IGNORE: "–", REFUSE: "refused"}
    lines = PAGE.split("<!-- buffer table -->\n")[1].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert head[1:] == list(Buffer.TABLE)
    for column, row in enumerate(Buffer.TABLE.values(), 1):
        assert [cells[0].strip("`") for cells in rows] == [event.__name__ for event in row]
        for cells, entry in zip(rows, row.values(), strict=True):
            text = cells[column]
            assert text
            assert text == verdicts[entry] if entry in verdicts else text not in verdicts.values()


def test_the_example_experiment_is_buffered():
    """The page's figures come from this experiment."""
    experiment = config.load(ROOT / "simulations" / "examples" / "asynchronous.toml")
    assert experiment.spec.buffer_config().concurrency == 20
    assert experiment.devices is not None
