"""The run.toml template: every setting with its default."""

import json
import re
import tomllib
from dataclasses import MISSING, fields
from importlib import resources

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server.engine import BufferConfig, RoundConfig
from fedloom.server.planning.messages import MessageSettings
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.strategies import LocalTraining, MetricsSettings, Personal, registry
from fedloom.strategies.masking.settings import Masking
from fedloom.strategies.privacy import Privacy

TEXT = resources.files("fedloom.cli").joinpath("run.toml").read_text()
VALUES = tomllib.loads(TEXT)
CHOSEN = {"goal", "learning_rate", "epochs", "batch_size"}
"""Settings without a default, or with another value than the default."""


def test_template_is_printed():
    """As text, or inside JSON."""
    assert CliRunner().invoke(main, ["run", "template"]).stdout == TEXT
    result = CliRunner().invoke(main, ["run", "template", "--json"])
    assert json.loads(result.stdout) == {"template": TEXT}


def test_template_is_a_valid_run():
    """It can be submitted unchanged."""
    assert parse(VALUES).local_training().epochs == 1


def _section(name):
    """The template's text of a table, or before the first table."""
    parts = re.split(r"^(?:# )?\[(\w+)\]$", TEXT, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[0::2], strict=True))[name]


def _names(kind):
    return [f.name for f in fields(kind) if f.name not in ("rule", "aggregation")]


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        ("cohort", [RoundConfig, BufferConfig]),
        ("train", [LocalTraining]),
        ("strategy", list(registry.STRATEGIES.values())),
        ("aggregation", list(registry.AGGREGATIONS.values())),
        ("selection", list(registry.SELECTIONS.values())),
        ("metrics", [MetricsSettings]),
        ("rule", list(registry.CLIENT_RULES.values())),
        ("personal", [Personal]),
        ("privacy", [Privacy]),
        ("masking", [Masking]),
        ("flower", [MessageSettings]),
    ],
)
def test_template_names_every_setting_of_a_table(table, kinds):
    """Set or commented out, and no unknown setting."""
    shown = set(re.findall(r"^(?:# )?(\w+) = ", _section(table), flags=re.MULTILINE))
    named = {name for kind in kinds for name in _names(kind)}
    beside = {"name", "mode", "over"}  # not of the parts themselves
    assert shown - beside == named - beside


def test_template_names_every_setting_of_a_run():
    """Tables and top-level settings."""
    shown = set(re.findall(r"^(?:# )?(\w+) = ", _section(""), flags=re.MULTILINE))
    tables = set(re.findall(r"^(?:# )?\[(\w+)\]$", TEXT, flags=re.MULTILINE))
    assert shown | tables == {field.name for field in fields(RunSpec)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (RunSpec, VALUES),
        (RoundConfig, VALUES["cohort"]),
        (LocalTraining, VALUES["train"]),
        (Personal, VALUES["personal"] | {"keep": tuple(VALUES["personal"]["keep"])}),
        (MetricsSettings, VALUES["metrics"] | {"quantiles": tuple(VALUES["metrics"]["quantiles"])}),
    ],
)
def test_template_values_are_the_defaults(kind, values):
    """Removing a line changes nothing."""
    for field in fields(kind):
        if field.default is not MISSING and field.name in values and field.name not in CHOSEN:
            assert values[field.name] == field.default, field.name


def test_template_names_every_strategy_rule_and_selection():
    """Every name in the registry appears."""
    for name in (*registry.STRATEGIES, *registry.CLIENT_RULES, *registry.SELECTIONS):
        assert re.search(rf"\b{name}\b", TEXT), name


def test_numbers_in_comments_are_the_defaults():
    """Settings of strategies other than the template's."""
    commented = dict(re.findall(r"^# (\w+) = (\S+)", _section("strategy"), flags=re.MULTILINE))
    adam = registry.strategy("fedadam")
    for name in ("beta_1", "beta_2", "tau", "server_learning_rate"):
        expected = float(commented.get(name, "0.1"))
        assert getattr(adam, name) == expected, name
    assert registry.strategy("fedavgm").momentum == float(commented["momentum"])
