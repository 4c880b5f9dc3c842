"""Flower's strategies on this server: results, memory and refusals."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import strategy as older
from flwr.serverapp import strategy as newer

from fedloom.protocol.errors import UsageError
from fedloom.server.flower import hosted, memory, register, talk
from fedloom.server.flower.whole import Reply
from fedloom.server.planning import spec
from fedloom.strategies import STRATEGIES, reduced
from fedloom.strategies.robust.updates import ArrayUpdates
from support.flower import Here

SHAPES = {"w": (6, 5), "b": (7,)}
EXAMPLES = {"a": 10.0, "b": 40.0, "c": 25.0, "d": 5.0, "e": 30.0}
ROUNDS = 4
MODEL = {n: np.random.default_rng(5).normal(size=s) for n, s in SHAPES.items()}

NEWER = {
    "fedavg": newer.FedAvg,
    "fedavgm": lambda: newer.FedAvgM(server_learning_rate=0.7, server_momentum=0.8),
    "fedadam": lambda: newer.FedAdam(eta=0.1),
    "fedadagrad": lambda: newer.FedAdagrad(eta=0.1),
    "fedyogi": lambda: newer.FedYogi(eta=0.1),
    "fedmedian": newer.FedMedian,
    "fedtrimmedavg": lambda: newer.FedTrimmedAvg(beta=0.2),
    "krum": lambda: newer.Krum(num_malicious_nodes=1),
    "multikrum": lambda: newer.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "bulyan": lambda: newer.Bulyan(num_malicious_nodes=0),
}


def start():
    return ndarrays_to_parameters(list(MODEL.values()))


OLDER = {
    "fedavg": older.FedAvg,
    "fedavgm": lambda: older.FedAvgM(
        initial_parameters=start(), server_learning_rate=0.7, server_momentum=0.8
    ),
    "fedadam": lambda: older.FedAdam(initial_parameters=start(), eta=0.1),
    "fedyogi": lambda: older.FedYogi(initial_parameters=start(), eta=0.1),
    "krum": lambda: older.Krum(num_malicious_clients=1),
    "fedmedian": older.FedMedian,
}


def trained(model, number):
    """The clients' models after a round."""
    for place, client in enumerate(EXAMPLES):
        targets = np.random.default_rng([4, place])
        yield (
            client,
            {
                name: value + 0.3 * (targets.normal(size=value.shape) - value) + 0.01 * number
                for name, value in model.items()
            },
        )


def made(make):
    """A strategy of the class that `register` makes, for a given Flower strategy."""
    return type("Made", (hosted.Hosted,), {"__slots__": (), "load": staticmethod(make)})()


def ours(strategy, rounds=ROUNDS):
    """Rounds like on the server; the state is converted to arrays and back."""
    model, state = dict(MODEL), strategy.init(MODEL)
    for number in range(1, rounds + 1):
        deltas = {
            client: {n: new[n] - model[n] for n in model} for client, new in trained(model, number)
        }
        updates = ArrayUpdates.of(deltas)
        updates._weights = np.array(list(EXAMPLES.values()))
        means = reduced(strategy, state, updates)
        model, state = strategy.finish(state, model, means)
    return model, state


def by_newer(strategy):
    """The same rounds by Flower."""
    model = dict(MODEL)
    for number in range(1, ROUNDS + 1):
        record = ArrayRecord({n: Array(v) for n, v in model.items()})
        strategy.configure_train(number, record, ConfigRecord(), Here(None, 5, {}))
        replies = [
            talk._message(place, number, _reply(client, new), "num-examples", ())
            for place, (client, new) in enumerate(trained(model, number), 2)
        ]
        arrays, _ = strategy.aggregate_train(number, replies)
        model = {n: arrays[n].numpy() for n in model}
    return model


def _reply(client, new):
    return Reply(client=client, weight=EXAMPLES[client], metrics={}, arrays=new)


@pytest.mark.parametrize("name", NEWER)
def test_rounds_equal_flowers(name):
    """With the message API; memory is converted to arrays between rounds."""
    loaded = NEWER[name]()
    here, _ = ours(made(lambda: loaded))
    there = by_newer(NEWER[name]())
    for tensor, value in here.items():
        np.testing.assert_allclose(value, there[tensor], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", OLDER)
def test_rounds_of_the_older_api_equal_flowers(name):
    """`aggregate_fit` with lists."""
    loaded = OLDER[name]()
    here, _ = ours(made(lambda: loaded))
    flwr, model = OLDER[name](), dict(MODEL)
    for number in range(1, ROUNDS + 1):
        results = [
            (
                None,
                FitRes(
                    status=Status(Code.OK, ""),
                    parameters=ndarrays_to_parameters(list(new.values())),
                    num_examples=int(EXAMPLES[client]),
                    metrics={},
                ),
            )
            for client, new in trained(model, number)
        ]
        parameters, _ = flwr.aggregate_fit(number, results, [])
        model = dict(zip(model, parameters_to_ndarrays(parameters), strict=True))
    for tensor, value in here.items():
        np.testing.assert_allclose(value, model[tensor], rtol=1e-9, atol=1e-11)


def test_a_repeated_round_gives_the_same_bits():
    """The loaded strategy is never changed."""
    loaded = newer.FedAdam()
    first, _ = ours(made(lambda: loaded))
    again, _ = ours(made(lambda: loaded))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert loaded.v_t is None


def test_lost_attributes_are_logged(caplog):
    """By name; arrays and numbers are kept."""

    class Odd(newer.FedAvg):
        def aggregate_train(self, server_round, replies):
            self.seen = getattr(self, "seen", 0) + 1
            self.names = [*getattr(self, "names", []), "x"]
            return super().aggregate_train(server_round, replies)

    loaded = Odd()
    _, state = ours(made(lambda: loaded), rounds=3)
    assert state.slots["number:seen"]["value"] == 3
    assert "Odd loses names after the round" in caplog.text


def test_memory_is_restored():
    """For a strategy and one that it wraps."""

    class Wrapping(newer.FedAvg):
        def __init__(self):
            super().__init__()
            self.strategy = newer.FedAvg()
            self.ratio = 0.5

    changed, fresh, other = Wrapping(), Wrapping(), Wrapping()
    changed.strategy.momentum = [np.arange(3.0), np.float64(2.0)]
    changed.noise = {"a/b": np.arange(2)}
    changed.ratio = 0.25
    slots, lost = memory.capture(changed, fresh)
    assert not lost
    memory.restore(other, slots)
    assert other.ratio == 0.25
    assert np.array_equal(other.strategy.momentum[0], np.arange(3.0))
    assert np.array_equal(other.noise["a/b"], np.arange(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: newer.FedProx(proximal_mu=0.1), "proximal-mu"),
        (newer.FedXgbBagging, "trees"),
        (lambda: newer.DifferentialPrivacyServerSideFixedClipping(newer.FedAvg(), 1.0, 1.0, 2),
         r"\[privacy\]"),
        (lambda: older.FedAvg(on_fit_config_fn=lambda _: {"lr": 0.1}), "lr"),
        (lambda: 5, "got a int"),
    ],
)  # fmt: skip
def test_unsupported_strategies_are_refused(make, message):
    """The error names the reason."""
    with pytest.raises(UsageError, match=message):
        talk.checked(make, "our:strategy")


def test_a_run_selects_a_strategy_by_name(tmp_path):
    """Unsupported combinations and missing code are refused."""
    (tmp_path / "ours_flower.py").write_text(
        "from flwr.serverapp.strategy import Krum\nkrum = Krum(num_malicious_nodes=1)\n"
    )
    register({"krum": "ours_flower.py:krum", "gone": "nowhere.py:x"}, tmp_path)
    values = {
        "strategy": {"name": "flower:krum"},
        "cohort": {"goal": 5},
        "train": {"epochs": 1, "learning_rate": 0.1},
    }
    try:
        assert spec.parse(values).build_strategy().needs == "each"
        for more, message in (
            ({"strategy": {"name": "flower:gone"}}, "nowhere.py"),
            ({"strategy": {"name": "flower:os"}}, "flower:krum"),
            ({"aggregation": {"name": "median"}}, "aggregation"),
            ({"rule": {"name": "scaffold"}}, "rule"),
            ({"train": {**values["train"], "tensor_share": 0.5}}, "tensor_share"),
            ({"cohort": {"goal": 5, "mode": "buffered", "concurrency": 5}}, "buffered"),
            ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "privacy"),
            ({"compression": {"up": {"name": "top_k", "fraction": 0.1}}}, "top_k"),
        ):
            with pytest.raises(UsageError, match=message):
                spec.parse(values | more)
    finally:
        del STRATEGIES["flower:krum"], STRATEGIES["flower:gone"]
