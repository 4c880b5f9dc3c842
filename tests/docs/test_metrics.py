"""docs/strategies/metrics.md: its example prints the shown output, its tables are complete."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from fedloom.server.planning.spec import parse
from fedloom.strategies import MetricsSettings

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "metrics.md").read_text("utf-8")


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_example_prints_the_shown_output(capsys):
    exec(compile(block("python"), "docs/strategies/metrics.md", "exec"), {})
    assert capsys.readouterr().out == block("text")


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}, **table})
    assert spec.metrics_settings().bins == 5


def test_it_names_every_setting_and_its_default():
    for field in fields(MetricsSettings):
        value = getattr(MetricsSettings(), field.name)
        default = str(None if value == {} else value).lower().replace("(", "[").replace(")", "]")
        assert f"| `{field.name}` | {default} |" in PAGE, field.name
