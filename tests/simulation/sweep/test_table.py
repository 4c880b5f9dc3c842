"""A sweep's result: ranking, table, CSV, TOML and plots."""

import csv
import json
import math
import statistics
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedloom.simulation.sweep import report, settings, table
from fedloom.simulation.sweep.outcome import SweepResult, TrialRow
from fedloom.simulation.sweep.pictures.history import history_figure
from fedloom.simulation.sweep.pictures.importance import importances

TABLE = {
    "experiment": {},
    "parameters": {"train.batch_size": [8, 32], "rounds": [3], "model.widths": [[2, 3], [4]]},
    "variables": {"scaled": [False, True]},
    "derived": {"train.learning_rate": "0.1 * train.batch_size ** scaled"},
}


def row(trial, value, state="finished", **more):
    batch = 8 if trial % 2 else 32
    parameters = {
        "train.batch_size": batch, "rounds": 3, "model.widths": [4], "scaled": trial > 2,
    }  # fmt: skip
    derived = {"train.learning_rate": 0.1 * batch ** (trial > 2)}
    chosen = {n: v for n, v in parameters.items() if n != "scaled"} | derived
    return TrialRow(
        **{
            "trial": trial, "point": trial, "state": state, "value": value, "rounds": 3,
            "parameters": parameters, "derived": derived, "seconds": 1.5,
            "settings": {**chosen, "engine.workers": 1}, **more,
        }
    )  # fmt: skip


def outcome(*rows, folder=Path(), **more):
    return SweepResult(
        sweep=settings.parse({**TABLE, **more}), folder=folder, rows=rows, num_trials=8
    )


def text(found):
    console = Console(width=200, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(table.trials_table(found))
    console.file.close()
    return console.export_text()


def test_the_best_comes_first_and_failures_last():
    rows = row(1, 0.5), row(2, None, "failed"), row(3, 0.9), row(4, 0.95, "pruned"), row(5, 0.9)
    assert [each.trial for each in outcome(*rows).ranking] == [3, 5, 1, 4, 2]
    assert outcome(*rows).best.trial == 3
    falling = outcome(*rows, objective="minimize")
    assert [each.trial for each in falling.ranking] == [1, 3, 5, 4, 2]
    assert outcome(row(1, None, "failed")).best is None
    assert outcome().best is None


REPEATED = (
    row(1, 0.5, point=1), row(2, 0.7, point=1, seconds=2.5), row(4, 0.55, point=2),
    row(3, None, "failed", point=1, reason="x"), row(5, 0.25, point=2), row(6, 0.4, point=2),
)  # fmt: skip


def test_repeats_are_one_row_with_their_mean_and_deviation():
    found = outcome(*REPEATED, repeats=3)
    best = found.best
    assert (best.value, best.seconds) == (pytest.approx(0.6), 2.0)
    assert best.deviation == pytest.approx(statistics.stdev([0.5, 0.7]))
    shown = text(found)
    assert "60.00% ±14.14%" in shown
    assert "2.0 s ±707 ms" in shown
    assert "finished 2 of 3, x" in shown


@given(st.lists(st.fractions(-1, 1, max_denominator=10**6), min_size=2, max_size=6))
def test_the_deviation_is_that_of_a_sample(exact):
    """The oracle is rational arithmetic: the sum of squares over n - 1."""
    mean = sum(exact) / len(exact)
    square = sum((value - mean) ** 2 for value in exact) / (len(exact) - 1)
    rows = [row(i, float(value), point=1) for i, value in enumerate(exact, 1)]
    best = outcome(*rows, repeats=len(exact)).best
    assert best.value == pytest.approx(float(mean), abs=1e-15)
    assert best.deviation**2 == pytest.approx(float(square), abs=1e-15)


def test_a_seed_without_a_value_is_named():
    """A mean over fewer seeds, or one that an infinite value makes infinite, does not hide it."""
    rows = [row(1, 0.5, point=1), row(2, -math.inf, point=1), row(3, 0.5, point=1)]
    found = outcome(*rows, repeats=3)
    assert "diverged in 1 of 3" in text(found)
    assert found.best.deviation is None
    assert "finished 3 of 5" in text(outcome(*rows, repeats=5))


def test_the_means_are_a_table_for_other_programs(tmp_path):
    table.write_means(outcome(*REPEATED, repeats=3), tmp_path / "settings.csv")
    with (tmp_path / "settings.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["seeds"], first["of"], second["seeds"]) == ("2", "3", "3")
    assert float(second["accuracy mean"]) == statistics.fmean([0.55, 0.25, 0.4])
    assert float(second["accuracy deviation"]) == statistics.stdev([0.55, 0.25, 0.4])
    assert float(first["seconds deviation"]) == statistics.stdev([1.5, 2.5])
    assert first["virtual_s mean"] == ""


def test_the_table_shows_the_differing_settings():
    shown = text(outcome(row(1, 0.5), row(2, -math.inf), row(3, None, "failed", reason="boom\nx")))
    heading, *lines = shown.strip().splitlines()
    names = ["trial", "accuracy", "batch_size", "widths", "scaled", "learning_rate", "trained"]
    assert heading.split()[:7] == names
    assert lines[0].split()[:7] == ["1", "1", "50.00%", "8", "4", "false", "0.1"]
    assert "diverged" in lines[1]
    assert "failed: boom" in lines[2]


def test_the_csv_has_all_columns_at_full_precision(tmp_path):
    found = outcome(row(1, 1 / 3), row(2, None, "failed", reason='a "b", c'))
    table.write_csv(found, tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["accuracy"]) == 1 / 3
    assert (first["rounds"], first["scaled"], first["model.widths"]) == ("3", "false", "[4]")
    assert (second["accuracy"], second["reason"]) == ("", 'a "b", c')


def test_the_best_settings_are_valid_toml():
    assert tomllib.loads(table.best_toml(outcome(row(1, 0.5)))) == {
        "rounds": 3,
        "train": {"batch_size": 8, "learning_rate": 0.1},
        "model": {"widths": [4]},
    }
    assert table.best_toml(outcome(row(1, None, "failed"))) == ""


def test_the_document_is_json():
    document = table.document(outcome(row(1, 0.5), row(2, -math.inf)))
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["best"]["trial"] == 1
    assert again["trials"][1]["value"] is None
    assert again["complete"] is False


def write_curves(folder, trials):
    (folder / "trials").mkdir()
    for trial in trials:
        lines = [json.dumps({"trained": i, "test": {"accuracy": i / 10}}) for i in range(1, 4)]
        (folder / "trials" / f"{trial:04d}.jsonl").write_text("\n".join(lines))


def test_all_files_are_written(tmp_path):
    rows = [row(i, 0.1 * i) for i in range(1, 5)] + [row(5, 0.2, "pruned"), row(6, None, "failed")]
    write_curves(tmp_path, range(1, 6))
    files = report.write(outcome(*rows, folder=tmp_path))
    assert [path.name for path in files] == [
        "trials.csv", "best.toml", "curves.png", "settings.png", "parallel.png", "history.png",
    ]  # fmt: skip
    assert all(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    "rows",
    [[], [row(1, None, "failed")], [row(1, 0.5)], [row(1, math.inf), row(2, -math.inf)],
     [row(1, 0.5, "pruned"), row(2, 0.5, "pruned")]],
)  # fmt: skip
def test_plots_without_data_are_omitted(tmp_path, rows):
    report.write(outcome(*rows, folder=tmp_path))


def test_tick_labels_are_exact(tmp_path):
    """Steps of 2.5 % do not read 88 %, 85 %, 82 %."""
    write_curves(tmp_path, [])
    rows = [row(i, 0.78 + 0.02 * i) for i in range(1, 6)]
    figure = history_figure(outcome(*rows, folder=tmp_path))
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [float(each.rstrip("%")) / 100 for each in labels] == pytest.approx(axes.get_yticks())


def test_importances_come_with_enough_trials(tmp_path):
    rows = [row(i, 0.5 + 0.1 * (i % 2) + 0.001 * i) for i in range(1, 61)]
    assert importances(outcome(*rows[:49], folder=tmp_path)) == {}
    shares = importances(outcome(*rows, folder=tmp_path))
    assert shares["train.batch_size"] > shares["scaled"]
