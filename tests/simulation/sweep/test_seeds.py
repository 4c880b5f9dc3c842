"""`fedloom simulate --seeds`: every metric's mean and deviation over simulations of its own."""

import csv
import json
import re
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.simulation import config
from fedloom.simulation.api import simulate

DIGITS = Path(__file__).parents[3] / "simulations" / "examples" / "digits.toml"
FEW = ["--set", "rounds=2", "--set", "cohort.goal=2", "--set", "train.epochs=1"]


def run(*words):
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


@pytest.mark.long
def test_each_seed_is_the_simulation_with_that_seed(tmp_path):
    out = tmp_path / "out"
    result = run(DIGITS, *FEW, "--set", "seed=7", "--seeds", 2, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    changes = {"rounds": 2, "cohort.goal": 2, "train.epochs": 1, "engine.workers": 1}
    alone = [simulate(config.load(DIGITS, {**changes, "seed": n}), show=False) for n in (7, 8)]
    values = [result.records[-1].test["accuracy"] for result in alone]
    measured = found["measures"]["test.accuracy"]
    assert measured["values"] == dict(zip(("7", "8"), values, strict=True))
    assert measured["mean"] == statistics.fmean(values)
    assert measured["deviation"] == statistics.stdev(values)
    sent = [sum(record.bytes_up for record in result.records) for result in alone]
    assert list(found["measures"]["bytes_up"]["values"].values()) == sent
    with (out / "seeds.csv").open(newline="") as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["7", "8"]
    assert (out / "curves.png").exists()
    assert (out / "trials/0002/report.html").exists()
    again = run(DIGITS, *FEW, "--set", "seed=7", "--seeds", 2, "--out", out)
    assert "± sample standard deviation (n - 1) over 2 seeds" in again.stdout
    assert "trial 1" not in again.stderr, "nothing was run again"
    more = run(DIGITS, *FEW, "--set", "seed=7", "--seeds", 3, "--out", out, "--json")
    assert re.findall(r"trial (\d)  ", more.stderr) == ["3"], "only the new seed was run"
    longer = json.loads(more.stdout)["measures"]["test.accuracy"]["values"]
    assert list(longer) == ["7", "8", "9"]
    assert {n: longer[n] for n in ("7", "8")} == measured["values"]
    fewer = json.loads(
        run(DIGITS, *FEW, "--set", "seed=7", "--seeds", 2, "--out", out, "--json").stdout
    )
    assert fewer["measures"]["test.accuracy"] == measured


@pytest.mark.parametrize("other", ["--over-the-wire", "--describe"])
def test_seeds_with_a_single_run_are_refused(other):
    result = run(DIGITS, "--seeds", 2, other)
    assert result.exit_code == 2
    assert "--seeds takes neither" in result.output


def test_an_invalid_setting_is_refused_before_the_first_seed(tmp_path):
    result = run(DIGITS, "--seeds", 2, "--set", "train.epoch=1", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "epoch" in result.output
    assert not (tmp_path / "out").exists()
