"""Curves have columns of equal length, whatever the rounds measured."""

import json
import math

from fedloom.server.insight.curves import curves, latest, metrics
from fedloom.server.ledger.rows import CurveRow


def _row(number, training=None, evaluation=None, privacy=None):
    return CurveRow(
        number=number, kind="train", closed_at=10.0 * number,
        training=training, evaluation=evaluation, privacy=privacy,
    )  # fmt: skip


def test_rounds_without_a_metric_leave_a_gap():
    rows = [
        _row(1, {"values": {"loss": 2.0}}),
        _row(2),
        _row(4, {"values": {"loss": 1.0, "f1": 0.5}}),
    ]
    found = curves(rows)
    assert found["number"] == [1, 2, 4]
    assert found["training"]["loss"]["mean"] == [2.0, None, 1.0]
    assert found["training"]["f1"]["mean"] == [None, None, 0.5]
    assert (latest(found, "training", "loss"), latest(found, "evaluation", "loss")) == (1.0, None)


def test_spread_is_between_the_outermost_quantiles():
    """One quantile alone gives no spread."""
    wide = {"values": {"loss": 2.0}, "quantiles": {"loss": {"0.1": 1.0, "0.5": 2.0, "0.9": 3.0}}}
    loss = curves([_row(1, wide)])["training"]["loss"]
    assert (loss["low"], loss["high"]) == ([1.0], [3.0])
    single = {"values": {"loss": 2.0}, "quantiles": {"loss": {"0.5": 2.0}}}
    assert "low" not in curves([_row(1, single)])["training"]["loss"]


def test_values_that_are_not_finite_become_gaps():
    """JSON has no such numbers."""
    found = curves([_row(1, {"values": {"loss": math.nan}}, None, {"epsilon": math.inf})])
    assert found["training"]["loss"]["mean"] == [None]
    assert found["epsilon"] == []
    json.dumps(found, allow_nan=False)


def test_loss_and_accuracy_come_first():
    values = {"values": {"auc": 0.1, "accuracy": 0.2, "loss": 0.3}}
    assert metrics(curves([_row(1, values)])) == ["loss", "accuracy", "auc"]
