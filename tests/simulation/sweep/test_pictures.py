"""What a sweep's pictures draw: mean curves with bands, bytes, time beside the objective, lines."""

import json
import statistics
from dataclasses import replace

import pytest

from fedloom.simulation.sweep import settings, space
from fedloom.simulation.sweep.outcome import SweepResult, TrialRow
from fedloom.simulation.sweep.pictures import frame
from fedloom.simulation.sweep.pictures.curves import curves_figure
from fedloom.simulation.sweep.pictures.history import history_figure
from fedloom.simulation.sweep.pictures.parallel import parallel_figure
from fedloom.simulation.sweep.pictures.settings import settings_figure
from fedloom.simulation.sweep.rounds import MeanPoint, Measured, mean_curve, measured

STRATEGIES = [{"name": "fedavg"}, {"name": "scaffold", "clients": 20}, {"name": "feddyn"}]


def make(folder, parameters, *, num_rounds=4, **more):
    """A sweep that has ended: accuracy and bytes follow from the trial's number."""
    sweep = settings.parse({"experiment": {}, "parameters": parameters, **more})
    (folder / "trials").mkdir()
    rows = []
    for number in range(1, len(sweep.points) * sweep.repeats + 1):
        point, repeat = divmod(number - 1, sweep.repeats)
        drawn = sweep.points[point]
        chosen = sweep.settings(drawn, repeat)
        lines = [
            {"trained": n, "test": {"accuracy": n * number / 100}, "virtual_s": 2.0 * n,
             "bytes_down": 100 * (point + 1), "bytes_up": 50}
            for n in range(1, num_rounds + 1)
        ]  # fmt: skip
        path = folder / "trials" / f"{number:04d}.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)))
        rows.append(
            TrialRow(
                trial=number, point=point + 1, state="finished", settings=chosen,
                value=num_rounds * number / 100, wall_s=10.0 * number, rounds=num_rounds,
                parameters=space.decode(sweep.parameters, drawn),
                derived={name: chosen[name] for name in sweep.derived},
            )
        )  # fmt: skip
    return SweepResult(sweep=sweep, folder=folder, rows=tuple(rows), num_trials=len(rows))


def texts(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def curves(axes):
    return {line.get_label(): line for line in axes.lines if len(line.get_xdata())}


def test_a_mean_curve_has_the_rounds_that_every_seed_measured():
    def seed(*values):
        return [Measured(i, 10 * i, None, v) for i, v in enumerate(values, 1)]

    found = mean_curve([seed(0.1, 0.2, 0.9), seed(0.3, 0.2)], "trained")
    assert found == [
        MeanPoint(1, pytest.approx(0.2), statistics.stdev([0.1, 0.3])), MeanPoint(2, 0.2, 0.0),
    ]  # fmt: skip
    assert mean_curve([seed(0.5)], "bytes") == [MeanPoint(10, 0.5, None)]
    assert mean_curve([seed(0.5)], "virtual_s") == []
    assert mean_curve([], "trained") == []


def test_whiskers_of_an_accuracy_keep_its_axis_in_percent(tmp_path):
    """0.9 and 1.0 have mean 0.95 and deviation 0.07: more than all examples cannot be right."""
    found = make(tmp_path, {"a": [1, 2]}, repeats=2)
    rows = [replace(row, value=0.9 + 0.1 * (row.trial % 2)) for row in found.rows]
    found = replace(found, rows=tuple(rows))
    for figure in (settings_figure(found), history_figure(found)):
        labels = [each.get_text() for each in figure.axes[0].get_yticklabels()]
        assert labels[-1] == "100.0%"
        assert "sample standard deviation (n - 1) over 2 seeds" in everything(figure)


def everything(figure):
    """All text of a figure."""
    titles = [legend.get_title().get_text() for legend in figure.legends]
    return " ".join([*titles, figure.get_supxlabel()])


def test_one_setting_of_a_random_search_is_joined_and_its_best_explained(tmp_path):
    found = make(tmp_path, {"a": [1, 2, 3]}, algorithm="random")
    figure = settings_figure(found)
    assert "orange: best accuracy" in everything(figure)
    assert [0.0, 1.0, 2.0] in [list(line.get_xdata()) for line in figure.axes[0].lines]


def test_bytes_add_up_over_rounds_without_the_metric(tmp_path):
    path = tmp_path / "0001.jsonl"
    lines = [
        {"trained": n, "test": {"loss": 1.0} if n % 2 == 0 else {}, "bytes_down": 7, "bytes_up": 2}
        for n in range(1, 5)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    objective = settings.parse(
        {"experiment": {}, "metric": "loss", "parameters": {"a": [1]}}
    ).objective  # fmt: skip
    assert [each.bytes for each in measured(path, objective)] == [18, 36]


def test_accuracy_by_bytes_has_a_labelled_curve_for_each_strategy(tmp_path):
    found = make(tmp_path, {"strategy": STRATEGIES}, repeats=3)
    figure = curves_figure(found, "bytes")
    assert texts(figure) == ["strategy fedavg", "strategy scaffold", "strategy feddyn"]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "bytes down and up (bytes)"
    ends = sorted(line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata()) == 4)
    assert ends == [4 * 150, 4 * 250, 4 * 350], "scaffold's curve is longer"
    assert len(axes.collections) == 3, "a band for each"
    assert (
        "sample standard deviation (n - 1) over 3 seeds" in figure.legends[0].get_title().get_text()
    )
    assert all(label.get_text().endswith("%") for label in axes.get_yticklabels())


def test_curves_are_grouped_by_colour_and_dashes(tmp_path):
    found = make(tmp_path, {"train.batch_size": [8, 32, 128, 512], "train.epochs": [1, 2]})
    figure = curves_figure(found, "trained")
    sizes = [f"batch_size {n}" for n in (8, 32, 128, 512)]
    assert texts(figure) == [*sizes, "epochs 1", "epochs 2"]
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    assert len(drawn) == 8
    assert len({line.get_color() for line in drawn}) == 4
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == 8


def test_of_too_many_settings_the_best_have_colours(tmp_path):
    found = make(tmp_path, {"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2]})
    assert texts(curves_figure(found, "trained"))[-1] == "12 other settings"


def test_time_is_beside_the_accuracy(tmp_path):
    sizes = [8, 16, 32, 64, 128, 256, 512]
    figure = settings_figure(make(tmp_path, {"train.batch_size": sizes}, repeats=2))
    accuracy, time = figure.axes
    assert (accuracy.get_ylabel(), time.get_ylabel()) == ("accuracy", "training time (minutes)")
    for axes in (accuracy, time):
        assert [t.get_text() for t in axes.get_xticklabels()] == list(map(str, sizes))
    line = time.lines[0].get_ydata()
    assert list(line) == pytest.approx([10 * (4 * i + 3) / 2 / 60 for i in range(7)])
    assert accuracy.get_position().y0 == pytest.approx(time.get_position().y0)


def test_a_repeated_combination_of_a_grid_lies_on_both_lines(tmp_path):
    more = {"variables": {"b": [0, 1]}, "derived": {"c": "a ** b"}}
    found = make(tmp_path, {"a": [1, 2, 4]}, **more)
    assert len(found.rows) == 5
    lines = curves(settings_figure(found).axes[0])
    assert lines["b 0"].get_ydata()[0] == lines["b 1"].get_ydata()[0]
    assert len(lines["b 0"].get_ydata()) == len(lines["b 1"].get_ydata()) == 3


def test_parallel_coordinates_have_a_line_for_each_setting_and_mark_the_best(tmp_path):
    found = make(tmp_path, {"a": [1, 2, 3], "b": ["x", "y"]})
    figure = parallel_figure(found)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "accuracy"]
    lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert len(lines) == 6
    assert list(lines[-1].get_ydata()[:2]) == [1.0, 1.0], "the best is a = 3 and b = y"
    assert "a 3  b y" in texts(figure)[0]
    assert parallel_figure(make_one(tmp_path)) is None


def make_one(folder):
    (folder / "one").mkdir()
    return make(folder / "one", {"a": [1, 2, 3]})


def test_names_of_tables_are_labels_where_they_tell_them_apart(tmp_path):
    rows = make(tmp_path, {"s": STRATEGIES}).rows
    assert list(frame.labels(rows, "s").values()) == ["fedavg", "scaffold", "feddyn"]
    same = [{"name": "fedavg", "rate": 1}, {"name": "fedavg", "rate": 2}]
    (tmp_path / "same").mkdir()
    rows = make(tmp_path / "same", {"s": same}).rows
    assert list(frame.labels(rows, "s").values()) == ["fedavg, rate 1", "fedavg, rate 2"]
