"""The progress of members that a server stores."""

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds import progress


def _said(**fields):
    key = fleet_pb2.TaskKey(run="r", round=2)
    return fleet_pb2.Progress(task=key, **fields)


def test_a_private_run_drops_a_reported_loss():
    said = _said(fraction=0.5, loss=0.25)
    assert progress.read(said, private=False) == progress.ReportedProgress(("r", 2), 0.5, 0.25)
    assert progress.read(said, private=True) == progress.ReportedProgress(("r", 2), 0.5, None)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_invalid_reports_are_dropped(fraction):
    assert progress.read(_said(fraction=fraction), private=False) is None


def test_the_mean_is_over_clients_with_a_report():
    """None without any."""
    told = [progress.ReportedProgress(("r", 2), fraction, None) for fraction in (0.25, 0.75)]
    assert progress.mean(told) == 0.5
    assert progress.mean([]) is None
