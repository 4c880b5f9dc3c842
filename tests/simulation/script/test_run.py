"""`fedloom.simulation.run`: what it takes, what it refuses, and what it leaves as it was."""

import gc
import random
import weakref
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from fedloom.client import Client, Update
from fedloom.protocol.errors import UsageError
from fedloom.simulation import (
    Experiment,
    Population,
    caller_state,
    config,
    run,
    simulate,
    sources,
)  # fmt: skip
from fedloom.simulation.metrics import accuracy, by_group, f1
from fedloom.simulation.partition.registry import PARTITIONERS
from fedloom.strategies import STRATEGIES, Block, FedAvg, ServerOptimizer

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(120, 6)).astype(np.float32)
Y = (X @ RANDOM.normal(size=(6, 3))).argmax(axis=1)
QUICK = {"show": False, "rounds": 2, "settings": {"engine": {"workers": 1}}}


def net(outputs=3, inputs=6):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


class Pairs(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return torch.from_numpy(X[index]), int(Y[index])


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Pairs(),
        sources.from_arrays(X, Y, clients=10, test=0.2),
        {"source": (X, Y)},
    ],
    ids=["arrays", "tensors", "lists", "TensorDataset", "Dataset", "Population", "table"],
)
def test_the_same_data_in_any_form_give_the_same_bits(data):
    assert run(net(), data, **QUICK).digest == run(net(), (X, Y), **QUICK).digest


def test_it_is_the_experiment_of_a_file():
    """The same settings by `config.load`, with arrays loaded apart, end with the same model."""
    table = {
        "rounds": 2,
        "data": {"source": sources.from_arrays(X, Y, clients=10, test=0.2)},
        "model": {"name": "mlp", "hidden": [4]},
        "strategy": {"name": "fedadam", "server_learning_rate": 0.1},
        "cohort": {"goal": 5},
        "train": {"epochs": 1, "batch_size": 32, "learning_rate": 0.1},
    }
    by_file = simulate(config.load(table), show=False)
    by_call = run(
        {"name": "mlp", "hidden": [4]},
        (X, Y),
        strategy={"name": "FedAdam", "server_learning_rate": 0.1},
        clients_per_round=5,
        **QUICK,
    )
    assert by_call.digest == by_file.digest


def test_the_best_value_is_the_least_of_losses_and_the_highest_of_accuracies():
    result = run(net(), (X, Y), evaluate=lambda number, _: {"score": -number}, **QUICK)
    for name, best in (("loss", min), ("accuracy", max), ("score", max)):
        values = [record.test[name] for record in result.records]
        assert result.best(name) == best(values)
        assert len({*values}) > 1
    assert result.best("other") is None


def test_groups_of_test_examples_are_of_no_client_that_holds_out_as_many():
    """Else its examples would be measured by the groups of others."""
    groups = np.arange(12) % 2
    result = run(
        net(),
        {"a": (X[:48], Y[:48]), "b": (X[48:96], Y[48:96])},
        test=(X[96:108], Y[96:108]),
        held_out=0.25,
        metrics={"fair": by_group(accuracy, groups), "f1": f1},
        **QUICK,
    )
    evaluated = next(record.evaluation for record in result.records if record.evaluation)
    assert {"f1"} == {name for name in evaluated if name.startswith(("f", "fair"))}
    tested = next(record.test for record in result.records if record.test)
    assert {"fair/0", "fair/1", "fair/gap"} <= {*tested}


def test_a_dictionary_of_clients_keeps_their_names_and_examples():
    data = {"b": (X[:50], Y[:50]), "a": (X[50:], Y[50:]), 7: (X[:1], Y[:1])}
    population = sources.load(source=data, seed=0)
    assert population.names == ["7", "a", "b"]
    assert population.sizes.tolist() == [1, 56, 40]  # a fifth of each is for the test
    assert len(population.test) == 24
    held = population.examples.x[population.shards[2]]
    assert all((row == X[:50]).all(axis=1).any() for row in held)
    assert len(run(net(), data, **QUICK).records) == 2


def test_test_examples_may_be_given():
    population = sources.load(source=(X, Y), test=(X[:7], Y[:7]), clients=4, seed=0)
    assert len(population.test) == 7
    assert population.sizes.sum() == 120


def test_the_model_is_a_module_a_function_a_class_or_a_name():
    class Own(nn.Module):
        def __init__(self, input_shape, num_classes):
            super().__init__()
            self.scores = nn.Linear(input_shape[0], num_classes)

        def forward(self, x):
            return self.scores(x)

    module = net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = run(module, (X, Y), **QUICK)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert first.digest == run(net, (X, Y), **QUICK).digest  # `net` seeds itself
    assert run(Own, (X, Y), **QUICK).digest == run(Own, (X, Y), **QUICK).digest
    assert run("logistic", (X, Y), **QUICK).params["0.weight"].shape == (3, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs(ServerOptimizer):
    def change(self, block: Block):
        return 0.01 * np.sign(block.delta)


def test_callables_may_stand_for_names():
    """Strategy, partition, loss and optimizer: each changes the result as it says."""
    start = {name: value.numpy() for name, value in net().state_dict().items()}
    signs = run(net(), (X, Y), strategy=Signs, **{**QUICK, "rounds": 1})
    steps = np.concatenate([(signs.params[name] - start[name]).ravel() for name in start])
    assert set(np.round(steps / 0.01).astype(int)) <= {-1, 0, 1}
    assert np.allclose(np.abs(steps[steps != 0]), 0.01, atol=1e-6)

    halves = run(
        net(), (X, Y), partition=lambda pool: np.array_split(np.arange(len(pool)), 2), **QUICK
    )
    assert halves.records[0].cohort == 2

    def averaging(rule, aggregation):
        return FedAvg(rule=rule, aggregation=aggregation)

    plain = run(net(), (X, Y), **QUICK)
    named = run(net(), (X, Y), strategy=averaging, **QUICK)
    assert named.digest == plain.digest
    loss = run(net(), (X, Y), loss=nn.CrossEntropyLoss(), **QUICK)
    assert loss.digest == plain.digest
    tripled = run(net(), (X, Y), loss=lambda o, y: 3 * nn.functional.cross_entropy(o, y), **QUICK)
    assert tripled.digest != plain.digest
    adam = [run(net(), (X, Y), optimizer=o, **QUICK).digest for o in ("Adam", torch.optim.Adam)]
    assert adam[0] == adam[1] != plain.digest
    assert len([name for name in STRATEGIES if "Signs" in name]) == 1


def test_two_strategies_of_one_name_stay_two():
    """As of a notebook's cell that is run again: an experiment keeps the one it was made with."""

    def made(rate):
        class Mine(ServerOptimizer):
            def change(self, block: Block):
                return rate * block.delta

        settings = {
            "data": {"source": (X, Y), "clients": 4},
            "model": {"name": net},
            "strategy": {"name": Mine},
            "cohort": {"goal": 4},
            "rounds": 1,
            "train": {"epochs": 1, "learning_rate": 0.1},
            "engine": {"workers": 1},
        }
        return config.load(settings)

    still, moving = made(0.0), made(1.0)
    start = net().state_dict()
    kept = simulate(still, show=False).params
    assert all(np.array_equal(kept[name], value) for name, value in start.items())
    changed = simulate(moving, show=False).params
    assert not np.array_equal(changed["0.weight"], start["0.weight"])


class OwnClient(Client):
    def __init__(self, data):
        self.x, self.y = data

    def train(self, params, task):
        return Update({n: v + 1 for n, v in params.items()}, num_examples=len(self.y))


def test_clients_evaluate_on_the_examples_that_they_hold_out():
    """Each weighs as many as it holds; so does a `Population` with held-out examples."""
    clients = []
    found = run(net(), (X, Y), held_out=0.2, on_client=clients.append, **QUICK)
    measured = [c for c in clients if c.round == found.records[-1].round]
    held = sum(c.evaluated for c in measured)
    assert held
    for name in ("loss", "accuracy"):
        mean = sum(c.evaluated * c.evaluation[name] for c in measured) / held
        assert found.records[-1].evaluation[name] == pytest.approx(mean)
    population = sources.from_arrays(X, Y, clients=10, test=0.2, held_out=0.2)
    assert run(net(), population, **QUICK).records[-1].evaluation == found.records[-1].evaluation


def test_steps_replace_the_default_of_epochs():
    settings = {"engine.workers": 1, "train.steps": 3}
    stepped = run(net(), (X, Y), **{**QUICK, "settings": settings})  # a batch holds all examples
    assert stepped.digest == run(net(), (X, Y), epochs=3, **QUICK).digest


def test_a_loss_of_ones_own_may_take_the_last_axis_itself():
    """Such as `output[:, 0]`; a batch of one value cannot broadcast wrongly."""
    y = X[:, 0]
    own = run(net(1), (X, y), loss=lambda o, y: ((o[:, 0] - y) ** 2).mean(), **QUICK)
    assert own.digest == run(net(1), (X, y), loss="mse", **QUICK).digest


def test_a_client_function_gets_the_names_of_the_dictionary():
    data = {"north": (X[:60], Y[:60]), "south": (X[60:], Y[60:])}
    start = {name: value.numpy() for name, value in net().state_dict().items()}
    found = run(net(), data, client=lambda name: OwnClient(data[name]), **QUICK)
    assert all(np.allclose(found.params[name], start[name] + 2, atol=1e-5) for name in start)


def test_values_are_learnt_with_squared_error():
    y = X.sum(axis=1)
    found = run(net(1), (X, y), **{**QUICK, "rounds": 8})
    losses = [record.test["loss"] for record in found.records if record.test]
    mean = float(np.mean((y - y.mean()) ** 2))
    assert losses[-1] < mean / 2  # better than the best constant


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": (X, Y[:-1])}, r"one target for each input in data, got .*\(120, 6\).*\(119,\)"),
        ({"data": (X[:0], Y[:0])}, r"one target for each of one or more inputs"),
        ({"data": (X, Y.astype(float))}, r"float32, but whole numbers from 0 to 2.*astype\(int\)"),
        ({"data": (X, X[:, :2])}, r"values of shape \[2\]. Set the loss"),
        ({"data": (X, Y - 1)}, "class numbers from 0 to 1, got -1 to 1"),
        ({"model": net(2)}, r"classes 0 to 2\): IndexError: Target 2 is out of bounds"),
        ({"model": net(3, 5)}, r"inputs float32 \[6\].*Choose another model"),
        ({"model": 3}, "model.name"),
        ({"model": lambda: "net"}, "to return a module, got str"),
        ({"model": "resnet"}, "Expected a model's name"),
        ({"data": {"a": (X, Y), "b": (X[:0], Y[:0])}}, r"data\['b'\] has no examples"),
        ({"data": {"a": (X, Y), "b": (X[:3], Y[:2])}}, r"each input in data\['b'\]"),
        ({"data": {"a": (X, Y), "b": (X[:, :4], Y)}}, r"inputs of data\['b'\] as of data\['a'\]"),
        ({"data": {"a": (X, Y), "b": (X, Y + 0.5)}}, r"targets of data\['b'\] as of data\['a'\]"),
        ({"data": {}}, "at least one client, got an empty dictionary"),
        ({"data": {"a": (X, Y)}, "clients": 3}, "neither clients nor partition"),
        ({"data": {1: (X, Y), "1": (X, Y)}}, "differ as text"),
        ({"data": X}, r"Expected data as \(inputs, targets\).*got ndarray"),
        ({"data": None}, "Missing setting data.source"),
        ({"data": ([[1.0], [1.0, 2.0]], [0, 1])}, "inputs of data as examples of one shape"),
        ({"data": (np.array(["a", "b"]), [0, 1])}, "inputs of data as numbers, got <U1"),
        ({"data": (X, Y), "test": (X[:, :3], Y)}, "test inputs of shape"),
        ({"data": (X, Y), "test": 2.0}, "Expected 0 <= test < 1"),
        ({"strategy": "fedsgd"}, "Did you mean"),
        ({"strategy": FedAvg()}, "Expected strategy as a name, or a class or function"),
        ({"partition": "diriclet"}, "Did you mean 'dirichlet'"),
        ({"partition": lambda pool: [[True, False]]}, "Expected partition to return"),
        ({"partition": lambda pool: [[0, 500]]}, "Expected indices from 0 to 95"),
        ({"partition": lambda pool: [[0, 1]], "clients": 2}, "examples of 2 clients, got 1"),
        ({"partition": lambda pool: [[0, 1], [2], [4, 1]]}, "example 1 for client 0 and client 2,"),
        ({"partition": lambda pool: [[0, 1, 1]]}, "example 1 for client 0 twice"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "the mean over a batch.*'sum'"),
        (
            {"model": net(1), "data": (X, X[:, 0]), "loss": lambda o, y: ((o - y) ** 2).mean()},
            r"\[2, 1\] broadcast against targets of shape \[2\]",
        ),
        ({"loss": "hinge"}, "Expected a loss's name"),
        ({"loss": 3}, "Expected the loss as a name or a function"),
        ({"optimizer": "adamm"}, "optimizer.*Did you mean 'adam'"),
        (
            {"optimizer": torch.optim.Adam(net().parameters(), lr=0.01, betas=(0.8, 0.9))},
            r"of Adam\. Write .* = \{'name': 'Adam', 'betas': \(0.8, 0.9\)\}, and .*rate = 0.01",
        ),
        ({"optimizer": torch.optim.SGD(net().parameters())}, "instance of SGD. Write .*'SGD'"),
        ({"clients_per_round": 11}, "cohort.goal = 11"),
        ({"clients_per_round": 0}, "goal"),
        ({"settings": {"train": 3}}, "train"),
        ({"epochs": 2, "settings": {"train.steps": 2}}, "either epochs or steps"),
        ({"rounds": 0}, "rounds from 1"),
        ({"client": 3}, "client.code as text"),
        ({"settings": {"tran": {}}}, "Did you mean 'train'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,  # no address, no data
)  # fmt: skip
def test_what_cannot_work_is_refused(change, message):
    """Each with the name of the argument, before a client trains."""
    with pytest.raises(UsageError, match=message):
        run(**{"model": net(), "data": (X, Y), **QUICK, **change})


@pytest.mark.parametrize("fails", [False, True])
def test_it_leaves_the_callers_torch_as_it_was(fails):
    """Threads, dtype and the states of random, numpy and torch, also when a client raises."""

    class Careless(OwnClient):
        def train(self, params, task):
            torch.manual_seed(1)
            np.random.seed(1)  # noqa: NPY002
            random.seed(1)
            if fails:
                raise RuntimeError("broken")
            return super().train(params, task)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
        data = {"a": (X, Y)}
        if fails:
            with pytest.raises(UsageError, match="broken"):
                run(net, data, client=lambda name: Careless(data[name]), **QUICK)
        else:
            run(net, data, client=lambda name: Careless(data[name]), **QUICK)
        assert torch.get_num_threads() == 2
        assert random.getstate() == states[0]
        assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), states[2])
    finally:
        torch.set_num_threads(before)


class _Loop:
    """Garbage that only a collection finds."""

    def __init__(self):
        self.me = self


@pytest.mark.parametrize("own", [False, True])
def test_the_heap_is_frozen_while_it_runs_and_the_callers_garbage_is_not_kept(own, monkeypatch):
    """What the caller has frozen itself stays so."""
    monkeypatch.setattr(caller_state, "FREEZE_AFTER_S", 0.0)
    many, during = 10_000, []
    gc.unfreeze()
    gc.disable()  # only what a simulation itself collects
    try:
        if own:
            gc.freeze()
        lost = weakref.ref(_Loop())
        run(net(), (X, Y), on_round=lambda *_: during.append(gc.get_freeze_count()), **QUICK)
        assert during[0] > many
        assert (gc.get_freeze_count() > many) == own
        assert (lost() is None) != own
    finally:
        gc.enable()
        gc.freeze()  # as the tests began


def test_the_heap_is_walked_through_once_not_after_each_round(monkeypatch):
    """`gc.get_freeze_count` and `gc.collect` take milliseconds."""
    monkeypatch.setattr(caller_state, "FREEZE_AFTER_S", 0.0)
    walks = Counter()

    def noted(name):
        walk = getattr(gc, name)
        return lambda: (walks.update([name]), walk())[1]

    gc.unfreeze()
    try:
        for name in ("get_freeze_count", "collect"):
            monkeypatch.setattr(gc, name, noted(name))
        run(net(), (X, Y), **{**QUICK, "rounds": 5})
    finally:
        gc.freeze()  # as the tests began
    assert walks == {"get_freeze_count": 1, "collect": 1}


def test_nothing_of_the_data_is_shown(capsys):
    """The digits of an example are neither in the output nor in what objects show of themselves."""
    x = np.full((40, 6), 0.31415927, np.float32)
    y = np.arange(40) % 2
    population = sources.from_arrays(x, y, clients=2, test=0.2)
    found = run(net(2), population, **{**QUICK, "show": True})
    experiment = Experiment(population=population, model=net, spec=config.load({
        "data": {"source": population}, "model": {"name": net}, "cohort": {"goal": 1},
        "train": {"epochs": 1, "learning_rate": 0.1},
    }).spec)  # fmt: skip
    shown = [capsys.readouterr().out, repr(found), found._repr_html_(), repr(experiment)]
    assert all("0.3141" not in text for text in shown)
    assert isinstance(population, Population)


def test_own_data_and_models_are_recorded_by_name_and_digest(tmp_path):
    import tomllib

    partition = PARTITIONERS["dirichlet"](alpha=0.3)
    given = {"partition": partition, "test": (X, Y)}
    run(net, (X, Y), out=tmp_path / "a", **given, **QUICK)
    settings = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert settings["model"]["name"].endswith(":net")
    assert settings["data"]["source"].startswith("float32 [120, 6] and int64 [120] in memory, ")
    assert settings["data"]["partition"] == repr(partition)
    assert settings["data"]["test"] == "given"
    with pytest.raises(UsageError, match=r"data\.source = .* not .*Restore the setting"):
        run(net, (X + 1, Y), out=tmp_path / "a", resume=True, **given, **{**QUICK, "rounds": 3})


def test_hooks_get_each_round_with_its_model_and_each_client():
    rounds, clients = [], []
    found = run(
        net(),
        (X, Y),
        clients=4,
        on_round=lambda record, params: rounds.append((record.round, dict(params))),
        on_client=clients.append,
        metrics={"mean": lambda outputs, targets: float(outputs.mean())},
        **QUICK,
    )
    assert [number for number, _ in rounds] == [1, 2]
    assert all(np.array_equal(rounds[-1][1][name], value) for name, value in found.params.items())
    assert len(clients) == 8
    assert "mean" in found.records[-1].test


def test_a_simulation_that_fails_warns_where_nothing_is_shown():
    """With its reason; one that the caller ends does not."""
    with pytest.warns(UserWarning, match="ended after 0 of 2 rounds: 3 rounds in a row were aban"):
        result = run(net(), (X, Y), learning_rate=1e30, **QUICK)
    assert [record.state for record in result.records] == ["abandoned"] * 3
    assert run(net(), (X, Y), on_round=lambda *_: True, **QUICK).stopped
