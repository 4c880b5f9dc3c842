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
from fedloom.strategies.state import state_from_arrays, state_to_arrays
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


def made(make, **config):
    """A strategy of the class that `register` makes, for a given Flower strategy."""
    kind = type("Made", (hosted.Hosted,), {"__slots__": (), "load": staticmethod(make)})
    return kind(config=config)


def ours(strategy, rounds=ROUNDS, asked=None):
    """Rounds like on the server; the state is converted to arrays and back.

    `asked` collects what clients get in each round.
    """
    model, state = dict(MODEL), strategy.init(MODEL)
    for number in range(1, rounds + 1):
        state = state_from_arrays(state_to_arrays(state))
        if asked is not None:
            asked.append(dict(strategy.asks(state)))
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


class Halving(newer.FedAvg):
    """Halves the learning rate in every third round, in the config that it is given."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 3 == 0:
            config["lr"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)


class Counting(newer.FedAvg):
    """Sends the norm of its last model, which is in its memory."""

    def __init__(self):
        super().__init__()
        self.norm = 0.0

    def configure_train(self, server_round, arrays, config, grid):
        return super().configure_train(
            server_round, arrays, ConfigRecord({**config, "norm": self.norm}), grid
        )

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.norm = float(sum(np.abs(array.numpy()).sum() for array in arrays.values()))
        return arrays, metrics


def late(number):
    return {"lr": 0.1} if number < 3 else {"lr": 0.01, "epochs": number}


TELLING = {
    "a changed config": Halving,
    "a value from its memory": Counting,
    "FedProx": lambda: newer.FedProx(proximal_mu=0.1),
}


def told_by_flower(strategy, rounds, config):
    """What Flower's loop sends to clients in each round, of the newer API."""
    model, record, found = dict(MODEL), ConfigRecord(config), []
    for number in range(1, rounds + 1):
        arrays = ArrayRecord({n: Array(v) for n, v in model.items()})
        messages = list(strategy.configure_train(number, arrays, record, Here(None, 5, {})))
        found.append(dict(messages[0].content["config"]))
        replies = [
            talk._message(place, number, _reply(client, new), "num-examples", ())
            for place, (client, new) in enumerate(trained(model, number), 2)
        ]
        arrays, _ = strategy.aggregate_train(number, replies)
        model = {n: arrays[n].numpy() for n in model}
    return found


@pytest.mark.parametrize("kind", TELLING)
def test_clients_get_what_flower_would_send_them_in_each_round(kind):
    """In addition to the run's config, and with memory that is converted to arrays and back."""
    config, asked = {"lr": 0.8, "batch": 16}, []
    ours(made(TELLING[kind], **config), rounds=8, asked=asked)
    theirs = told_by_flower(TELLING[kind](), 8, config)
    for number, (here, there) in enumerate(zip(asked, theirs, strict=True), 1):
        assert {**config, **here, "server-round": number} == pytest.approx(there, rel=1e-12)


def test_values_of_later_rounds_of_the_older_api_reach_clients():
    """They were dropped."""
    asked = []
    ours(made(lambda: older.FedAvg(on_fit_config_fn=late), lr=0.1), rounds=4, asked=asked)
    assert asked == [{}, {}, {"lr": 0.01, "epochs": 3}, {"lr": 0.01, "epochs": 4}]


def test_values_for_evaluation_reach_clients_too():
    asked = []
    make = lambda: older.FedAvg(on_evaluate_config_fn=lambda _: {"batches": 4})  # noqa: E731
    ours(made(make), rounds=1, asked=asked)
    assert asked == [{"batches": 4}]


class Favouring(newer.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for place, message in enumerate(
            super().configure_train(server_round, arrays, config, grid)
        ):
            message.content["config"] = ConfigRecord({"place": place})
            yield message


class Rescaling(newer.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        halved = ArrayRecord({n: Array(a.numpy() / 2) for n, a in arrays.items()})
        return super().configure_train(server_round, halved, config, grid)


class Late(newer.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 5:
            config["momentum"] *= 0.5
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Favouring, "different values in round 1"),
        (Rescaling, "other arrays than the model in round 1"),
        (Late, r"failed to configure round 5: KeyError: 'momentum'.*\[config\], and lr"),
        (lambda: older.FedAvg(on_fit_config_fn=lambda _: {"lr": [0.1, 0.2]}), "lr.*a list"),
        (lambda: older.FedAvg(on_fit_config_fn=lambda n: {"x": b"1"} if n > 60 else {}),
         "x in round 61, a bytes"),
        (lambda: older.FedAvg(on_fit_config_fn=lambda _: {"n": 1},
                              on_evaluate_config_fn=lambda _: {"n": 2}), "two values of n"),
    ],
)  # fmt: skip
def test_what_clients_cannot_get_is_refused_at_submission(make, message):
    with pytest.raises(UsageError, match=message):
        made(make, lr=0.1).init(MODEL)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (newer.FedXgbBagging, "trees"),
        (lambda: newer.DifferentialPrivacyServerSideFixedClipping(newer.FedAvg(), 1.0, 1.0, 2),
         r"\[privacy\]"),
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
