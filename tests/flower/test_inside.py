"""This project's strategies in Flower's rounds, `Strategy.start`."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as Theirs

from fedloom.protocol.errors import UsageError
from fedloom.protocol.flower_messages import number_of
from fedloom.server.flower import FlowerStrategy
from fedloom.strategies import FedAdam, FedAvg
from fedloom.strategies.algorithms.scaffold import Scaffold
from fedloom.strategies.robust import Krum
from support.flower import Here

BEGIN = [np.linspace(-1, 1, 12).reshape(3, 4), np.zeros(5, np.float32)]
app = ClientApp()


@app.train()
def train(msg, context):
    node = context.node_config["partition-id"]
    pull = np.random.default_rng(node)
    arrays = msg.content["arrays"].to_numpy_ndarrays()
    new = [a + 0.3 * (pull.normal(size=a.shape).astype(a.dtype) - a) for a in arrays]
    if node == 4 and context.run_config.get("liar"):
        new = [a + 1e3 for a in new]
    if node == 3 and context.run_config.get("broken"):
        new[0][0, 0] = np.nan
    metrics = MetricRecord({"num-examples": 10 + node, "loss": float(node)})
    return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=msg)


class Backwards(Here):
    """Replies in reverse order."""

    def send_and_receive(self, messages, *, timeout=None):
        return super().send_and_receive(list(messages), timeout=timeout)[::-1]


def play(strategy, grid=Here, **config):
    found = strategy.start(grid(app, 5, config), ArrayRecord(BEGIN), num_rounds=4)
    return found.arrays.to_numpy_ndarrays(), found


def test_fedavg_equals_flowers_up_to_rounding():
    """The model, with a float32 tensor, and the metrics."""
    settings = {"fraction_evaluate": 0.0}
    here, found = play(FlowerStrategy(FedAvg(), **settings))
    there, flowers = play(Theirs(**settings))
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)
    assert found.train_metrics_clientapp[4]["loss"] == pytest.approx(
        flowers.train_metrics_clientapp[4]["loss"]
    )
    assert here[1].dtype == np.float32


def test_the_order_of_replies_does_not_change_bits():
    """Sums are integers; Flower's are floats."""
    settings = {"fraction_evaluate": 0.0}
    strategies = [FedAdam(server_learning_rate=0.1), FedAdam(server_learning_rate=0.1)]
    first, _ = play(FlowerStrategy(strategies[0], **settings))
    other, _ = play(FlowerStrategy(strategies[1], **settings), Backwards)
    for one, two in zip(first, other, strict=True):
        assert one.tobytes() == two.tobytes()


def test_a_robust_rule_resists_a_bad_reply():
    """Krum selects an honest reply; the mean does not."""
    settings = {"fraction_evaluate": 0.0, "max_abs": 1e6}
    robust = FedAvg(aggregation=Krum(num_byzantine=1))
    safe, _ = play(FlowerStrategy(robust, **settings), liar=True)
    swept, _ = play(FlowerStrategy(FedAvg(), **settings), liar=True)
    assert np.abs(safe[0]).max() < 5
    assert np.abs(swept[0]).max() > 100


def test_replies_that_are_not_finite_are_left_out(caplog):
    """The round continues."""
    found, _ = play(FlowerStrategy(FedAvg(), fraction_evaluate=0.0), broken=True)
    assert np.isfinite(found[0]).all()
    assert f"left out node {number_of('c3')}: its 0 is not finite" in caplog.text


def test_strategies_with_a_client_rule_are_refused():
    """Flower apps do not support them."""
    with pytest.raises(UsageError, match="scaffold"):
        FlowerStrategy(Scaffold(clients=5))
