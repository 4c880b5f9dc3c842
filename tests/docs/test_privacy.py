"""docs/strategies/privacy.md: its example prints the shown output, its tables are complete."""

import math
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fedloom.server.planning.spec import parse
from fedloom.strategies.masking.sessions import honest
from fedloom.strategies.privacy import (
    Privacy,
    Releases,
    Spending,
    calibrate,
    composed_epsilon,
    epsilon,
)

pytest.importorskip("dp_accounting")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "strategies" / "privacy.md").read_text("utf-8")


def block(language):
    """The page's only block in this language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.mark.long
def test_the_example_prints_the_shown_output(capsys):
    exec(compile(block("python"), "docs/strategies/privacy.md", "exec"), {})
    assert capsys.readouterr().out == block("text")


@pytest.mark.long
def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    table = tomllib.loads(block("toml"))
    spec = parse({"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 20}, **table})
    assert 7.9 < spec.privacy_plan().epsilon(spec.rounds) <= 8.0


def test_it_names_every_setting_and_its_default():
    rows = PAGE.partition("## Settings")[2]
    for field in fields(Privacy):
        (row,) = re.findall(rf"^\| `{field.name}` \|(.*?)\|", rows, re.MULTILINE)
        if field.default not in (MISSING, None):
            said = f'"{field.default}"' if isinstance(field.default, str) else str(field.default)
            assert said in row, field.name


@pytest.mark.long
def test_the_example_experiment_is_private():
    """The claim of simulations/examples/private.toml matches its comments."""
    text = (ROOT / "simulations" / "examples" / "private.toml").read_text("utf-8")
    run = {n: v for n, v in tomllib.loads(text).items() if n not in ("data", "model")}
    plan = parse(run).privacy_plan()
    assert 7.9 < plan.epsilon(60) <= 8.0


@pytest.mark.long
def test_the_table_of_several_runs_is_computed():
    """Epsilon of each run, their sum and the composition, to the digits shown."""

    def poisson(noise, cohort, rounds):
        releases = Releases(
            noise_multiplier=noise, sampling="poisson", cohort=cohort, population=1000
        )
        return Spending(releases=releases, rounds=rounds)

    plain = Spending(releases=Releases(noise_multiplier=10.0), rounds=20)
    cases = [
        [poisson(1.0, 10, 500)] * 2,
        [poisson(1.0, 10, 1000), plain],
        [poisson(1.0, 10, 1000), plain, poisson(0.8, 1, 1000)],
    ]
    table = PAGE.partition("| runs | epsilon of each |")[2].splitlines()[2:5]
    for runs, row in zip(cases, table, strict=True):
        _, each, total, together = (cell.strip() for cell in row.strip("|").split("|"))
        own = [epsilon(run.releases, run.rounds, 1e-6) for run in runs]
        assert each == ", ".join(f"{one:.3f}" for one in own)
        assert total == f"{sum(own):.3f}"
        assert together == f"{composed_epsilon(runs, 1e-6):.3f}"


def test_the_table_of_masking_sessions_is_computed():
    """Noise multipliers for epsilon 8 of 50 rounds, and the deviation of a mean of 100 clients."""
    rows = re.findall(r"^\| `(\w+)` \| (\d\.\d+) \| (\d\.\d+) \|", PAGE, re.MULTILINE)
    kinds = {"dp_fedavg": {}, "distributed": {"summed": True}, "local": {"local": True}}
    assert [name for name, *_ in rows] == list(kinds)
    for name, noise, on_mean in rows:
        found = calibrate(Releases(noise_multiplier=1.0, **kinds[name]), 50, 1e-5, 8.0)
        assert f"{found:.4f}" == noise
        shares = {"dp_fedavg": found, "local": found * 10,
                  "distributed": found * math.sqrt(2 * 50 / honest(50))}  # fmt: skip
        assert f"{shares[name] / 100:.4f}" == on_mean
