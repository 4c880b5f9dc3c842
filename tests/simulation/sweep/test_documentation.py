"""docs/sweeps.md and the examples are correct."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from fedloom.simulation.sweep import comet, reading, runner, settings
from fedloom.simulation.sweep.expression import FUNCTIONS
from fedloom.simulation.sweep.settings import ALGORITHMS, PRUNERS, Pruner
from support import learner

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text("utf-8")
EXAMPLES = ROOT / "simulations" / "examples"


def block(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_search_on_the_page_is_the_example():
    example = (EXAMPLES / "sweep-batch-size.toml").read_text("utf-8")
    assert tomllib.loads(block("toml")[0]) == tomllib.loads(example)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("sweep-*.toml")), ids=lambda p: p.name)
def test_every_example_is_a_sweep_of_an_existing_experiment(path):
    sweep = reading.read(path)
    assert sweep.file[1]["data"]["source"] == "digits"
    assert sweep.num_points > 1


def test_the_comet_example_is_the_same_search():
    theirs = reading.read(EXAMPLES / "comet-batch-size.json")
    ours = reading.read(EXAMPLES / "sweep-batch-size.toml")
    for batch in (8, 32, 128, 512):
        for scaled in (0, 1):
            chosen = ours.settings({"train.batch_size": batch, "rounds": 20, "scaled": scaled})
            del chosen["rounds"]
            assert theirs.settings({"batch_size": batch, "scaled": scaled}) == chosen
    assert set(json.loads((EXAMPLES / "comet-batch-size.json").read_text())) <= set(comet._KEYS)


@pytest.mark.long
def test_the_python_on_the_page_runs(tmp_path, monkeypatch, capsys):
    real = runner.run
    monkeypatch.setattr(
        runner, "run", lambda *args, **more: real(*args, simulate=learner.LEARN, **more)
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text('experiment = {}\n[parameters]\n"train.epochs" = [1, 2]\n')
    exec(block("python")[0], {})
    assert "1 finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    "spec", [line.split("`")[1] for line in PAGE.splitlines() if re.match(r"\| `[\[{\d]", line)]
)
def test_every_parameter_on_the_page_is_valid(spec):
    table = tomllib.loads(f"parameters.x = {spec}\nexperiment = {{}}\nalgorithm = 'random'")
    assert settings.parse(table).parameters[0].distribution


@pytest.mark.parametrize(
    "line", re.findall(r"`((?:metric|rounds_to_\w+|virtual_s_to_\w+) = [^`]+)`", PAGE)
)
def test_every_objective_on_the_page_is_valid(line):
    table = tomllib.loads(f"{line}\nparameters.x = [1]\nexperiment = {{}}")
    assert settings.parse(table).objective


def test_deviations_over_seeds_have_one_wording():
    """Of a sample, over so many seeds; see `words.over_seeds`."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "simulations").rglob("*.md")]
    assert len(pages) > 50
    loose = re.compile(r"(?<!sample )standard deviations?[^.|]{0,30}seeds")
    assert [p.name for p in pages if loose.search(p.read_text("utf-8"))] == []


def test_every_setting_of_a_sweep_is_on_the_page():
    words = [*ALGORITHMS, *PRUNERS[1:], *FUNCTIONS, *Pruner.__dataclass_fields__, *settings._KNOWN]
    missing = [word for word in words if word != "name" and word not in PAGE]
    assert missing == []
