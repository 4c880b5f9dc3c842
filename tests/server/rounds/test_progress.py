"""What a server keeps of a client's words about its progress."""

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds import progress


def _said(**fields):
    key = fleet_pb2.TaskKey(run="r", round=2)
    return fleet_pb2.Progress(task=key, **fields)


def test_a_private_run_keeps_no_loss_even_of_a_client_that_says_it():
    """The server does not rely on its devices for that."""
    said = _said(fraction=0.5, loss=0.25)
    assert progress.read(said, private=False) == progress.ReportedProgress(("r", 2), 0.5, 0.25)
    assert progress.read(said, private=True) == progress.ReportedProgress(("r", 2), 0.5, None)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_nonsense_is_nothing(fraction):
    """No fraction, no note."""
    assert progress.read(_said(fraction=fraction), private=False) is None


def test_the_mean_is_of_those_that_say_something():
    """None of nobody."""
    told = [progress.ReportedProgress(("r", 2), fraction, None) for fraction in (0.25, 0.75)]
    assert progress.mean(told) == 0.5
    assert progress.mean([]) is None
