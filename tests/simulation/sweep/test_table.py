"""A sweep's result: ranking, table, CSV, TOML and plots."""

import csv
import json
import math
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from fedloom.simulation.sweep import plots, report, settings, table
from fedloom.simulation.sweep.outcome import SweepResult, TrialRow

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


def test_repeats_are_one_row_with_their_mean():
    rows = (
        row(1, 0.5, point=1), row(2, 0.7, point=1), row(3, None, "failed", point=1, reason="x"),
        row(4, 0.55, point=2),
    )  # fmt: skip
    best = outcome(*rows, repeats=2).best
    assert best.value == pytest.approx(0.6)
    assert best.spread == pytest.approx(0.2)
    assert best.seconds == 4.5
    assert "60.00% ±10.00%" in text(outcome(*rows))


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
        "trials.csv", "best.toml", "curves.png", "settings.png", "history.png",
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
    figure = plots.history_figure(outcome(*rows, folder=tmp_path))
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [float(each.rstrip("%")) / 100 for each in labels] == pytest.approx(axes.get_yticks())


def test_importances_come_with_enough_trials(tmp_path):
    rows = [row(i, 0.5 + 0.1 * (i % 2) + 0.001 * i) for i in range(1, 13)]
    assert plots._importances(outcome(*rows[:5], folder=tmp_path)) == {}
    shares = plots._importances(outcome(*rows, folder=tmp_path))
    assert shares["train.batch_size"] > shares["scaled"]
