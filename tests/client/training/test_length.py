"""A local training stops without improvement, at its time budget, or when asked."""

import time

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.client.torch import TorchClient, parameters
from fedloom.client.torch.stopping import TorchStopRule
from fedloom.client.training import length
from fedloom.strategies import RoundSettings, client_rule
from support.modules import like
from support.tasks import task


def _settings(**values):
    defaults = {"epochs": 50, "steps": None, "batch_size": 4, "learning_rate": 0.1}
    return RoundSettings(**{**defaults, **values})


def _steps_until_stop(watched, losses):
    """The step at which a training of these losses stops; epochs are of 4, 4 and 2 examples."""
    for step, loss in enumerate(losses):
        if watched.should_stop():
            return step
        watched.watch(torch.tensor(loss), (4, 4, 2)[step % 3])
    return len(losses)


@pytest.mark.parametrize(
    ("patience", "epochs", "steps"),
    [
        (1, [3, 2, 2, 1], 9),  # no lower loss in the third
        (2, [3, 2, 2, 2, 1], 12),
        (2, [3, 2, 2, 1, 1], 15),  # the fourth is lower: the count restarts
        (None, [3, 3, 3, 3], 12),
    ],
)
def test_patience_counts_epochs_without_a_lower_loss(patience, epochs, steps):
    """The loss is the mean over an epoch's examples."""
    losses = [loss for loss in epochs for _ in range(3)]
    assert _steps_until_stop(TorchStopRule(_settings(patience=patience), 3), losses) == steps


def test_batches_are_weighted_by_their_examples():
    """Two epochs with mean 2.0 over examples; the means over batches are 1.67 and 2.33."""
    watched = TorchStopRule(_settings(patience=1), 3)
    losses = [2.0, 2.0, 2.0, 1.0, 2.0, 4.0, 0.0]  # (4·1 + 4·2 + 2·4) / 10 = 2
    assert _steps_until_stop(watched, losses) == 6


def test_a_training_stops_at_its_time_budget(monkeypatch):
    """By the device's monotonic clock."""
    now = [100.0]
    monkeypatch.setattr(length, "time", like(time, monotonic=lambda: now[0]))
    watched = TorchStopRule(_settings(time_budget_s=2.5), 3)
    now[0] = 102.4
    assert not watched.should_stop()
    now[0] = 102.5
    assert watched.should_stop()


def test_fednova_gets_the_number_of_steps_taken():
    """A training without improvement stops after a few whole epochs of fifty."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    data = torch.randn(10, 3), torch.randint(0, 2, (10,))
    rule = client_rule("fednova")
    asked = task(rule=rule, epochs=50, batch_size=4, patience=1, learning_rate=30.0)
    TorchClient(model, data, cross_entropy).train(dict(parameters(model)), asked)
    assert 3 < asked.local.steps < 150
    assert asked.local.steps % 3 == 0


def test_only_the_selected_tensors_are_trained_and_sent():
    """The others are frozen."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    start = {name: value.copy() for name, value in parameters(model).items()}
    data = torch.randn(10, 3), torch.randint(0, 2, (10,))
    asked = task(epochs=50, batch_size=4, only=["1.*"])
    sent, _, _ = TorchClient(model, data, cross_entropy).train(start, asked)
    assert sent.keys() == {"1.weight", "1.bias"}
    assert (sent["1.weight"] != start["1.weight"]).any()
    assert (parameters(model)["0.weight"] == start["0.weight"]).all()
    assert all(param.requires_grad for param in model.parameters())
