"""Pictures are drawn of any records, without warnings."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedloom.simulation.output import plots
from support.histories import history


def _pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.long
def test_every_metric_is_drawn_by_round_bytes_and_virtual_time(tmp_path):
    files = plots.draw_all(history(12, abandoned={5}), tmp_path / "plots", name="a $ name_^")
    metrics, axes = ("accuracy", "loss"), ("", "-by-bytes", "-by-virtual-time")
    names = {f"{metric}{axis}" for metric in metrics for axis in axes}
    assert {file.stem for file in files} == names | {"clients", "workers"}
    for file in files:
        assert _pixels(file).std() > 5
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {f.name for f in files}


@pytest.mark.long
def test_the_spread_over_clients_is_drawn_if_recorded(tmp_path):
    for records in (history(12, abandoned={5}, spread=True), history(1, spread=True)):
        stems = {file.stem for file in plots.draw_all(records, tmp_path)}
        assert {"accuracy-over-clients", "loss-over-clients"} <= stems
    image = _pixels(tmp_path / "accuracy-over-clients.png")
    assert image.std() > 5
    diverged = history(4, diverged_from=1, spread=True)
    assert plots.spread_figure(diverged, "loss") is None
    assert plots.spread_figure(diverged, "accuracy") is not None


@pytest.mark.long
@pytest.mark.parametrize(
    "records",
    [
        history(1, virtual=False),
        history(3, diverged_from=1, virtual=False),
        history(4000, virtual=False, test_every=7),
        history(2, abandoned={1, 2}, virtual=False),
        history(3, workers=40, virtual=False),
    ],
    ids=["one round", "nothing finite", "thousands", "all abandoned", "many workers"],
)
def test_unusual_simulations_are_drawn(tmp_path, records):
    assert plots.draw_all(records, tmp_path)


@pytest.mark.long
def test_the_state_of_pyplot_does_not_change(tmp_path):
    plots.draw_all(history(2), tmp_path)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_names_of_metrics_cannot_leave_the_folder():
    assert "/" not in plots.file_stem("../../etc/passwd")
    assert plots.file_stem("..") == "__"
