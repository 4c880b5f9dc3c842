"""Progress reports: at most one a second, always valid, and without effect on the training."""

import math
import time

import numpy as np
import pytest

from fedloom.client.numpy import gradient_client
from fedloom.client.training import progress
from fedloom.client.training.progress import TrainingProgress, note
from support.modules import like
from support.tasks import task


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((0.25,), TrainingProgress(0.25)),
        (((3, 4), np.float32(0.5)), TrainingProgress(0.75, 0.5)),
        (((0, 0),), TrainingProgress(1.0)),
        ((7,), TrainingProgress(1.0)),
        ((-1, math.nan), TrainingProgress(0.0)),
        ((math.nan, math.inf), TrainingProgress(0.0)),
        (((1, 2), "much"), TrainingProgress(0.5)),
        (((1, 2), [1, 2]), TrainingProgress(0.5)),
        (("much",), TrainingProgress(0.0)),
        (((1, 2, 3),), TrainingProgress(0.0)),
        ((None, 0.5), TrainingProgress(0.0, 0.5)),
    ],
)
def test_any_report_becomes_a_fraction_and_maybe_a_loss(said, expected):
    """An invalid report does not fail a round."""
    assert note(*said) == expected


def test_at_most_one_report_a_second_is_passed_on(monkeypatch):
    """The others are not evaluated."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", like(time, monotonic=lambda: now[0]))
    heard, looked = [], []

    class Loss:
        def __float__(self):
            looked.append(now[0])
            return 1.0

    asked = task()
    asked.progress(0.1, Loss())
    with asked.reporting(heard.append):
        for step in range(1, 301):
            now[0] = step / 100
            asked.progress((step, 300), Loss())
    asked.progress(1.0, Loss())
    assert [round(n.fraction, 3) for n in heard] == [0.003, 0.337, 0.67]
    assert len(looked) == 3


def _gradient(params, x, y):
    return 2.5, {"w": np.zeros(3)}


def test_clients_of_the_sdk_report_progress(monkeypatch):
    """Steps done of all steps, and the loss."""
    now = iter(range(1000))
    monkeypatch.setattr(progress, "time", like(time, monotonic=lambda: next(now)))
    data = np.ones((20, 3)), np.tile([0, 1], 10)
    numpy_heard, torch_heard, sklearn_heard = [], [], []
    asked = task(epochs=2, batch_size=10)
    with asked.reporting(numpy_heard.append):
        gradient_client(_gradient, data).train({"w": np.zeros(3)}, asked)
    assert numpy_heard == [TrainingProgress(f, 2.5) for f in (0.25, 0.5, 0.75, 1.0)]
    torch = pytest.importorskip("torch")
    from fedloom.client.torch import TorchClient

    asked = task(steps=4, batch_size=10)
    client = TorchClient(
        torch.nn.Linear(3, 2),
        (torch.ones(20, 3), torch.zeros(20, dtype=torch.int64)),
        torch.nn.functional.cross_entropy,
    )
    with asked.reporting(torch_heard.append):
        client.train(client.initial(), asked)
    assert [n.fraction for n in torch_heard] == [0.25, 0.5, 0.75, 1.0]
    assert torch_heard[0].loss > torch_heard[-1].loss > 0
    linear = pytest.importorskip("sklearn.linear_model")
    from fedloom.client.sklearn import sklearn_client

    asked = task(epochs=2, batch_size=10)
    client = sklearn_client(linear.SGDClassifier(), data, classes=[0, 1])
    with asked.reporting(sklearn_heard.append):
        client.train(client.initial(), asked)
    assert [n.fraction for n in sklearn_heard] == [0.25, 0.5, 0.75, 1.0]
