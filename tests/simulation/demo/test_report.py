"""The report shows the results as text and as a picture."""

import io
import math

import pytest
from rich.console import Console

from fedloom.simulation.demo import picture, report
from fedloom.simulation.demo.baselines import Baselines
from fedloom.simulation.demo.settings import DIGITS


def _outcome(**changes):
    values = {
        "settings": DIGITS,
        "counts": {"site-1": (5, 0, 2), "site-2": (0, 30, 1)},
        "num_held_out": 40,
        "federated": (0.1, 0.6, 0.95),
        "baselines": Baselines(centralised=(0.8, 0.975), alone={"site-1": 0.4, "site-2": 0.7}),
        "federated_s": 12.0,
    }
    return report.DemoResult(**{**values, **changes})


def _text(renderable):
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_the_summary_compares_federated_with_the_baselines():
    text = _text(report.summary(_outcome()))
    for part in ("95.00%", "97.50%", "2.50 points above", "site-2 alone", "70.00%", "40 held-out"):
        assert part in text


def test_the_summary_states_when_federated_is_better():
    assert "2.00 points below" in _text(report.summary(_outcome(federated=(0.1, 0.995))))


def test_holdings_show_every_label_of_every_client_and_the_sums():
    lines = _text(report.holdings(_outcome().counts)).splitlines()
    assert [line.split() for line in lines if line.startswith("site")] == [
        ["site-1", "5", "·", "2", "7"],
        ["site-2", "·", "30", "1", "31"],
    ]
    assert lines[-1].split() == ["all", "5", "30", "3", "38"]


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"federated": (math.nan, 0.2, 0.999)},
        {"federated": (0.1, 0.05)},
        {"baselines": Baselines(centralised=(0.95,), alone={"site-1": 0.94, "site-2": 0.95})},
        {
            "counts": {f"site-{n}": tuple(range(15)) for n in range(1, 13)},
            "baselines": Baselines(
                centralised=(1.0,), alone={f"site-{n}": 1.0 for n in range(1, 13)}
            ),
        },
    ],
)
def test_a_picture_is_drawn_of_any_outcome(changes, tmp_path):
    """Extremes included: unknown, useless and perfect accuracies, many clients and labels."""
    picture.draw(_outcome(**changes), tmp_path / "curve.png")
    png = (tmp_path / "curve.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000
