"""`fedloom sweep` from a file to a folder."""

import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.simulation.sweep import runner
from support import learner

SWEEP = """
experiment = "experiment.toml"
[parameters]
"train.batch_size" = [32, 128]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A sweep beside its experiment, run by the learner."""
    real = runner.run
    monkeypatch.setattr(
        runner, "run", lambda *args, **more: real(*args, simulate=learner.LEARN, **more)
    )
    (tmp_path / "experiment.toml").write_text("rounds = 2")
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def sweep(*words):
    return CliRunner().invoke(main, ["sweep", *map(str, words)])


@pytest.mark.long
def test_a_sweep_ends_with_a_table_and_the_best_settings(folder):
    result = sweep(folder / "sweep.toml", "-j", 2, "--out", folder / "out")
    assert result.exit_code == 0, result.output
    assert "trial 2  finished" in result.stderr
    assert "[train]\nbatch_size = 32\n" in result.stdout
    assert (folder / "out/best.toml").read_text() == "[train]\nbatch_size = 32\n"
    again = sweep(folder / "sweep.toml", "--out", folder / "out", "--json")
    assert json.loads(again.stdout)["best"]["trial"] == 1
    assert "trial 1" not in again.stderr


@pytest.mark.long
def test_seeds_give_means_and_deviations(folder):
    words = [folder / "sweep.toml", "-j", 3, "--out", folder / "out", "--seeds", 3]
    shown = sweep(*words).stdout
    assert "± sample standard deviation (n - 1) over 3 seeds" in shown
    assert " ±0.00%" in shown, "the learner has no seed"
    found = json.loads(sweep(*words, "--json").stdout)
    assert [(each["seeds"], each["deviation"]) for each in found["ranking"]] == [(3, 0), (3, 0)]
    assert [each["settings"]["seed"] for each in found["trials"]] == [0, 1, 2, 0, 1, 2]
    assert (folder / "out/settings.csv").exists()
    one = sweep(folder / "sweep.toml", "--out", folder / "out", "--json")
    assert "finished" not in one.stderr, "nothing was run"
    assert [each["trial"] for each in json.loads(one.stdout)["trials"]] == [1, 4]
    assert not (folder / "out/settings.csv").exists(), "it has means of three seeds"


@pytest.mark.long
def test_a_comet_config_is_accepted_unchanged(folder):
    config = {
        "algorithm": "random",
        "spec": {"metric": "val_loss", "objective": "minimize"},
        "parameters": {"b": {"type": "discrete", "values": [32, 64, 128]}},
    }
    (folder / "comet.json").write_text(json.dumps(config))
    words = [folder / "comet.json", "--out", folder / "out", "--trials", 2]
    refused = sweep(*words, "--experiment", folder / "experiment.toml")
    assert refused.exit_code == 2
    assert "--map b=" in refused.output
    words += ["--experiment", folder / "experiment.toml", "--map", "b=train.batch_size", "--json"]
    found = json.loads(sweep(*words).stdout)
    assert found["objective"] == "loss"
    assert len(found["trials"]) == 2


@pytest.mark.long
def test_a_sweep_without_a_finished_trial_fails(folder):
    text = SWEEP + '"config.trouble" = ["usage"]\n'
    (folder / "sweep.toml").write_text(text)
    result = sweep(folder / "sweep.toml", "--out", folder / "out")
    assert result.exit_code == 2
    assert "Expected something else." in result.stderr
    result = sweep(folder / "sweep.toml", "--out", folder / "out", "--retry-failed", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["best"] is None


def test_an_interrupt_shows_the_finished_trials(folder, monkeypatch):
    def interrupted(found, out, **_):
        out.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    result = sweep(folder / "sweep.toml", "--out", folder / "out")
    assert result.exit_code == 130
    assert "interrupted, 2 trials left" in result.stderr


@pytest.mark.parametrize("pair", ["x", "=y", "x="])
def test_a_wrong_map_is_refused(folder, pair):
    result = sweep(folder / "sweep.toml", "--map", pair)
    assert result.exit_code == 2
    assert "NAME=SETTING" in result.output
