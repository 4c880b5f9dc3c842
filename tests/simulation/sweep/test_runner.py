"""Sweeps in real processes, with a learner of negligible duration."""

import csv
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sweep import Sweep, SweepResult, TrialRow, runner, settings
from support import learner
from support.patience import PATIENCE_S

GRID = {"train.learning_rate": [0.01, 0.1], "train.batch_size": [32, 128]}


def make(parameters=None, **more):
    return settings.parse({"experiment": {}, "parameters": parameters or GRID, **more})


def run(sweep, folder, **more):
    return runner.run(sweep, folder, simulate=learner.LEARN, **more)


@pytest.mark.long
def test_a_grid_runs_each_combination_once_and_finds_the_best(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    outcome = run(make(), tmp_path, jobs=3)
    assert [tuple(row.parameters.values()) for row in outcome.rows] == [
        (0.01, 32), (0.01, 128), (0.1, 32), (0.1, 128),
    ]  # fmt: skip
    assert outcome.best.trial == 3
    assert outcome.best.value == pytest.approx(learner.accuracy(0.1, 32, 5))
    assert {(row.state, row.rounds) for row in outcome.rows} == {("finished", 5)}
    lines = (tmp_path / "trials/0003.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["test"]["accuracy"] == pytest.approx(outcome.best.value)
    assert (tmp_path / "trials/0003.log").read_text() == "the learner prints 1\n"
    again = run(make(), tmp_path)
    assert again.rows == outcome.rows


@pytest.mark.long
def test_failed_trials_are_rows_and_the_sweep_continues(tmp_path):
    troubles = ["usage", "crash", "exit", "kill", "blind", "diverge", ""]
    outcome = run(make({"config.trouble": troubles}), tmp_path, jobs=4)
    found = {row.parameters["config.trouble"]: row for row in outcome.rows}
    assert {name: row.state for name, row in found.items()} == {
        **dict.fromkeys(troubles[:5], "failed"), "diverge": "finished", "": "finished",
    }  # fmt: skip
    assert found["usage"].reason == "Expected something else."
    assert found["crash"].reason == "ZeroDivisionError: by zero"
    assert "code 3" in found["exit"].reason
    assert "SIGKILL" in found["kill"].reason
    assert "never measured" in found["blind"].reason
    assert found["diverge"].reason == "diverged"
    assert [row.trial for row in outcome.ranking[:2]] == [7, 6]
    assert "Traceback" in (tmp_path / "trials/0002.log").read_text()


@pytest.mark.long
def test_a_sweep_stops_if_its_first_trials_fail(tmp_path):
    sweep = make({"config.trouble": ["usage"], "rounds": list(range(1, 50))})
    with pytest.raises(UsageError, match=r"first 5 trials failed .*something else"):
        run(sweep, tmp_path, jobs=4)


@pytest.mark.long
def test_a_formula_without_a_value_fails_its_trial(tmp_path):
    sweep = make({"rounds": [0, 1]}, derived={"train.learning_rate": "0.1 / rounds"})
    outcome = run(sweep, tmp_path)
    assert [row.state for row in outcome.rows] == ["failed", "finished"]
    assert "division by zero" in outcome.rows[0].reason


@pytest.mark.long
def test_a_trial_ends_when_it_reaches_its_target(tmp_path):
    sweep = settings.parse(
        {"experiment": {}, "rounds_to_accuracy": 0.8, "parameters": {"rounds": [2, 50]}}
    )
    short, long = run(sweep, tmp_path, jobs=2).rows
    assert short.value == float("inf")
    assert long.rounds == 3
    assert 2 < long.value < 3


@pytest.mark.long
def test_hopeless_trials_are_pruned(tmp_path):
    sweep = make(
        {"train.learning_rate": [0.1, 0.09, 0.0001], "rounds": [8]},
        pruner={"name": "median", "startup_trials": 2, "warmup_rounds": 3},
    )
    outcome = run(sweep, tmp_path)
    assert [row.state for row in outcome.rows] == ["finished", "finished", "pruned"]
    assert outcome.rows[2].rounds == 3


@pytest.mark.long
def test_an_interrupted_sweep_leaves_no_process_and_resumes(tmp_path):
    pids = tmp_path / "pid"
    sweep = make({"config.trouble": ["", "hang"], "config.file": [str(pids)]})

    class Interrupt(runner.NoWatcher):
        def started(self, number, parameters):
            if number == 2:
                threading.Thread(target=self.interrupt).start()

        def interrupt(self):
            while not (pids.exists() and pids.read_text()):
                time.sleep(0.01)
            os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        run(sweep, tmp_path / "out", watcher=Interrupt())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)
    begun = runner.read(sweep, tmp_path / "out")
    assert [row.trial for row in begun.rows] == [1]
    before = (tmp_path / "out/trials/0001.jsonl").stat().st_mtime_ns
    script = tmp_path / "calm.py"  # the same trials, without faults
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(learner.__file__).parent)!r})\n"
        "import learner\n"
        "def learn(experiment, settings, *more):\n"
        "    return learner.learn(experiment, {**settings, 'config.trouble': ''}, *more)\n"
    )
    outcome = runner.run(sweep, tmp_path / "out", simulate=f"{script}:learn")
    assert [row.state for row in outcome.rows] == ["finished", "finished"]
    assert (tmp_path / "out/trials/0001.jsonl").stat().st_mtime_ns == before


def rows_of(path):
    """The table of a sweep without its times."""
    times = {"seconds", "wall_s", "seconds mean", "seconds deviation"}
    with path.open(newline="") as file:
        return [{n: v for n, v in row.items() if n not in times} for row in csv.DictReader(file)]


@pytest.mark.long
def test_a_killed_sweep_runs_no_settings_twice_and_ends_with_the_same_table(tmp_path):
    """SIGKILL again and again; every finished simulation was run to its end once."""
    table = {
        "experiment": {}, "repeats": 2,
        "parameters": {"train.learning_rate": [0.01, 0.1], "train.batch_size": [32, 64, 128]},
        "derived": {"config.pause_s": "0.02"},
    }  # fmt: skip
    notes = tmp_path / "notes"
    script = tmp_path / "killed.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from fedloom.simulation.sweep import report, runner, settings\n"
        "out, learner, notes = sys.argv[1:]\n"
        f"sweep = settings.parse({table!r})\n"
        "report.write(runner.run(sweep, Path(out), jobs=2, simulate=learner))\n"
    )
    noting = tmp_path / "noting.py"  # the learner, which notes what it ran to the end
    noting.write_text(
        f"import sys, json; sys.path.insert(0, {str(Path(learner.__file__).parent)!r})\n"
        "import learner\n"
        "def learn(experiment, settings, *more):\n"
        "    result = learner.learn(experiment, settings, *more)\n"
        f"    with open({str(notes)!r}, 'a') as file:\n"
        "        file.write(json.dumps(settings, sort_keys=True) + '\\n')\n"
        "    return result\n"
    )

    def start(name):
        words = [sys.executable, script, tmp_path / name, f"{noting}:learn", notes]
        return subprocess.Popen(list(map(str, words)))

    assert start("whole").wait(PATIENCE_S) == 0
    ended = notes.read_text().splitlines()
    assert len(set(ended)) == len(ended) == 12
    notes.unlink()
    for num in (3, 6, 9):
        process, journal = start("killed"), tmp_path / "killed/study.journal"
        until = time.monotonic() + PATIENCE_S
        while not journal.exists() or journal.read_text().count('"row"') < num:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        recorded = journal.read_text().count('"row"')
    assert recorded < 12
    assert start("killed").wait(PATIENCE_S) == 0
    for name in ("trials.csv", "settings.csv"):
        assert rows_of(tmp_path / "killed" / name) == rows_of(tmp_path / "whole" / name)
    journal = (tmp_path / "killed/study.journal").read_text()
    assert journal.count('"row"') == 12, "no recorded simulation was run again"
    again = Counter(notes.read_text().splitlines())
    assert set(again) == set(ended)
    assert again.total() <= 12 + 3 * 2, "at most the two that ran at each kill"


def test_a_folder_in_use_is_refused(tmp_path):
    with runner._locked(tmp_path), pytest.raises(UsageError, match="Another sweep uses"):
        run(make(), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("trouble", ["", "hang"])
def test_a_trial_ends_with_its_parent(tmp_path, trouble):
    """Also in the middle of a round, so that it does not share a folder with its next run."""
    begun = tmp_path / "pid"
    chosen = {"rounds": 10**6, "config.trouble": trouble, "config.file": str(begun)}
    order = {"run": learner.LEARN, "experiment": {}, "settings": chosen, "out": None}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedloom.simulation.sweep.trial"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        if trouble:
            while not begun.exists():
                time.sleep(0.01)
        else:
            assert b"round" in process.stdout.readline()
        process.stdin.close()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 1


def test_the_package_exports_its_names():
    from fedloom.simulation import sweep

    assert (sweep.run, sweep.Sweep) == (runner.run, Sweep)
    assert TrialRow.__name__ == "TrialRow"
    assert SweepResult.__name__ == "SweepResult"
    with pytest.raises(AttributeError, match="nothing"):
        _ = sweep.nothing


@pytest.mark.parametrize("jobs", [0, -1])
def test_numbers_of_jobs_below_one_are_refused(tmp_path, jobs):
    with pytest.raises(UsageError, match="at least one job"):
        run(make(), tmp_path, jobs=jobs)


def test_a_missing_experiment_is_an_error_at_the_start(tmp_path):
    sweep = settings.parse({"experiment": "none.toml", "parameters": GRID}, folder=tmp_path)
    with pytest.raises(UsageError, match=r"none\.toml"):
        run(sweep, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_real_simulations_are_trials(tmp_path):
    """The digits for a round or two, with one worker each; a wrong setting fails only its trial."""
    examples = Path(__file__).parents[3] / "simulations" / "examples"
    table = {
        "experiment": "digits.toml",
        "metric": "loss",
        "parameters": {"train.epochs": [1, -1], "rounds": [2], "cohort.goal": [2]},
    }
    sweep = settings.parse(table, folder=examples)
    good, bad = runner.run(sweep, tmp_path, jobs=2).rows
    assert (good.state, good.rounds) == ("finished", 2)
    assert good.value > 0
    assert (bad.state, bad.rounds) == ("failed", 0)
    assert "epochs" in bad.reason
