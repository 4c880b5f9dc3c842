"""The conformance check: broken clients get exactly one finding, correct clients none."""

import copy
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from fedloom.client import Client, MaskOf, SliceOf, Update
from fedloom.client.data import ExampleStore
from fedloom.client.numpy import fit_client, gradient_client
from fedloom.client.testing import CHECKS, check, checks
from fedloom.protocol.errors import UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X @ np.array([1.0, -1.0, 2.0])
MODEL = {"w": np.zeros(3), "b": np.zeros((1, 2), np.float32)}


def _gradient(params, x, y):
    error = x @ params["w"] + params["b"].sum() - y
    return np.mean(error**2), {
        "w": 2 * x.T @ error / len(y),
        "b": np.full((1, 2), 2 * np.mean(error)),
    }


class Good(Client):
    """A correct client; each broken client below changes one thing."""

    def train(self, params, task):
        steps = task.settings.steps or task.settings.epochs
        draws = np.random.default_rng(task.seed)
        for _ in range(min(steps, 1_000_000)):
            if task.should_stop():
                break
            self.step(params, task, draws)
        return self.give(params, task)

    def step(self, params, task, draws):
        params["w"] += task.settings.learning_rate * draws.normal(size=3)
        params["b"] += np.float32(1)

    def give(self, params, task):
        return params, 40, {"loss": 0.5}

    def evaluate(self, params, task):
        return 10, {"loss": 1.0}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Request the stop earlier than by default."""
    monkeypatch.setattr(checks, "STOP_AFTER_S", 0.05)


def _giving(**methods):
    """A client with some methods replaced."""
    return type("Broken", (Good,), methods)()


def _given(change):
    """A client that changes its result."""

    def give(self, params, task):
        return change(params)

    return _giving(give=give)


class Remembers(Good):
    """Continues from its own model."""

    def __init__(self):
        self.mine = None

    def train(self, params, task):
        params = copy.deepcopy(self.mine or params)
        given = super().train(params, task)
        self.mine = copy.deepcopy(params)
        return given


class Threaded(Good):
    """Uses five threads, in the first task for a while."""

    def __init__(self):
        self.for_s = 0.5

    def step(self, params, task, draws):
        done = threading.Event()
        threads = [threading.Thread(target=done.wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(self.for_s)
        self.for_s = 0.0
        done.set()
        for thread in threads:
            thread.join()
        super().step(params, task, draws)


class Locked(Good):
    """Holds a lock, which cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()


def _deaf(self, params, task):
    steps = min(task.settings.epochs, 1000)
    for _ in range(steps):
        time.sleep(0.001)
        self.step(params, task, np.random.default_rng(task.seed))
    return self.give(params, task)


def _unseeded(self, params, task, draws):
    params["w"] += task.settings.learning_rate * np.random.default_rng().normal(size=3)


def _once(self, params, task):
    self.step(params, task, np.random.default_rng(task.seed))
    return self.give(params, task)


def _rateless(self, params, task, draws):
    params["w"] += draws.normal(size=3)


def _raises(*_):
    raise ZeroDivisionError("of nothing")


def _trains(self, params, task):
    params["w"] += 1
    return 10, {}


def _only_first(self, params, task):
    self.done = getattr(self, "done", 0) + 1
    if self.done > 1:
        raise FileExistsError("out.pt")
    return Good.train(self, params, task)


def _nan(params):
    params["w"][1] = np.nan
    return params, 40, {}


BROKEN = {
    "an error": (_giving(train=_raises), "raises", "train to end, got ZeroDivisionError: of"),
    "an error later": (_giving(train=_only_first), "raises", "called again, .*FileExistsError"),
    "an error in evaluate": (_giving(evaluate=_raises), "raises", "evaluate to end, got Zero"),
    "an error before evaluate": (_giving(can_evaluate=_raises), "raises", "can_evaluate to end"),
    "no tuple": (_given(lambda p: p), "returns", "got dict"),
    "a list of arrays": (_given(lambda p: (list(p.values()), 4, {})), "returns", "got list"),
    "another name": (_given(lambda p: ({"v": p["w"]}, 4, {})), "names", "got 'v' from train"),
    "another shape": (
        _given(lambda p: ({"w": p["w"][:2]}, 4, {})),
        "shapes",
        r"shape \(3,\) for 'w' from train, got \(2,\)",
    ),
    "a flat tensor": (_given(lambda p: ({"b": p["b"].ravel()}, 4, {})), "shapes", r"\(1, 2\)"),
    "a box outside": (
        _given(lambda p: ({"w": SliceOf(p["w"], ((1, 4),))}, 4, {})),
        "shapes",
        "for 'w' from train",
    ),
    "a mask of another shape": (
        _given(lambda p: ({"w": MaskOf(p["w"], np.ones(2, bool))}, 4, {})),
        "shapes",
        "for mask of 'w' from train",
    ),
    "objects": (
        _given(lambda p: ({"w": p["w"].astype(object)}, 4, {})),
        "dtypes",
        "array of object",
    ),
    "truths": (_given(lambda p: ({"w": p["w"] > 0}, 4, {})), "dtypes", "array of bool"),
    "NaN": (_given(_nan), "finite", "finite values in 'w' from train, got nan"),
    "huge values": (
        _given(lambda p: ({"w": p["w"] + 1e6}, 4, {})),
        "limits",
        r"'w' to change by at most 1024, got 1e\+06",
    ),
    "nothing learned": (_given(lambda p: (MODEL, 4, {})), "learns", "values that it received"),
    "no tensors": (_given(lambda p: ({}, 4, {})), "learns", "no tensor at all"),
    "no examples": (_given(lambda p: (p, 0, {})), "weight", "from train above 0, got 0"),
    "half an example": (_given(lambda p: (p, 0.5, {})), "weight", "got 0.5"),
    "too many examples": (_given(lambda p: (p, 1 << 19, {})), "weight", "at most 262144"),
    "metrics as text": (
        _given(lambda p: (p, 4, {"loss": "low"})),
        "metrics",
        "metric 'loss' from train as one number, got 'low'",
    ),
    "metrics in an array": (
        _given(lambda p: (p, 4, {"loss": np.zeros(3)})),
        "metrics",
        "got array",
    ),
    "infinite metrics": (_given(lambda p: (p, 4, {"loss": np.inf})), "metrics", "got inf"),
    "no dict of metrics": (
        _given(lambda p: (p, 4, 0.5)),
        "metrics",
        "metrics from train as a mapping",
    ),
    "numbers as names": (_given(lambda p: (p, 4, {1: 0.5})), "metrics", "got 1. Use text"),
    "metrics of evaluate": (
        _giving(evaluate=lambda s, p, t: (4, {"loss": None})),
        "metrics",
        "from evaluate as one number, got None",
    ),
    "evaluate's return": (
        _giving(evaluate=lambda s, p, t: {"loss": 1.0}),
        "evaluate",
        "evaluate to return .* got dict",
    ),
    "evaluate's examples": (
        _giving(evaluate=lambda s, p, t: (-1, {})),
        "evaluate",
        "num_examples from evaluate as a whole number .* got -1",
    ),
    "evaluate that trains": (_giving(evaluate=_trains), "evaluate", "got 'w' changed"),
    "no evaluate": (
        _giving(evaluate=Client.evaluate, can_evaluate=lambda s: False),
        "evaluate",
        "got none: rounds will show nothing",
    ),
    "draws without the seed": (_giving(step=_unseeded), "same", "from task.seed"),
    "memory between tasks": (Remembers(), "state", "Keep nothing between tasks"),
    "one epoch always": (_giving(train=_once), "epochs", "task.settings.epochs"),
    "a rate of its own": (_giving(step=_rateless), "learning_rate", "task.settings.learning_rate"),
    "deaf": (_giving(train=_deaf), "stop", "Ask task.should_stop"),
    "threads": (Threaded(), "threads", "at most 1 threads in train, got 5"),
    "a lock": (Locked(), "copies", "cannot pickle '_thread.lock'"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_client_has_one_kind_of_finding(name):
    """One fault does not cause findings of other checks."""
    client, kind, sentence = BROKEN[name]
    found = check(client, MODEL, patience_s=0.3, ignore={"copies", "stop"} - {kind})
    assert {finding.check for finding in found} == {kind}, found
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError("\n".join(map(str, found)))


def test_every_check_has_a_broken_client():
    """The check `server` has its own test."""
    assert {kind for _, kind, _ in BROKEN.values()} | {"server"} == CHECKS.keys()


def test_correct_clients_have_no_findings():
    """Own training, gradients, parts of tensors, and a client's weight."""
    assert check(Good(), MODEL, ignore=["copies"]) == check(Good(), MODEL) == []
    by_gradient = gradient_client(_gradient, (X, Y), held_out=(X[:5], Y[:5]), initial=MODEL)
    assert check(by_gradient) == []

    def parts(params):
        box = SliceOf(params["w"][1:], ((1, 3),))
        return Update({"w": box, "b": MaskOf(params["b"], params["b"] > 0)}, 40, weight=2.5)

    run = {"weighting": "client", "max_norm": 100.0, "cohort": {"goal": 3}}
    assert check(_given(parts), MODEL, run=run, ignore=["copies"]) == []


def test_torch_and_scikit_learn_clients_have_no_findings():
    """They pass all checks, including that of threads."""
    torch = pytest.importorskip("torch")
    linear = pytest.importorskip("sklearn.linear_model")
    from fedloom.client.sklearn import sklearn_client
    from fedloom.client.torch import TorchClient

    labels = (Y > 0).astype(np.int64)
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(labels)
    module = torch.nn.Linear(3, 2)
    client = TorchClient(module, (x, y), torch.nn.functional.cross_entropy, evaluate=(x, y))
    assert check(client, ignore=["copies"]) == []
    linear_client = sklearn_client(
        linear.SGDClassifier(), (X, labels), classes=[0, 1], held_out=(X, labels)
    )
    assert check(linear_client) == []


def test_a_client_of_a_store_can_be_copied(tmp_path):
    """A store is pickled as its path and limits, and opened again."""
    store = ExampleStore(tmp_path / "e.db", x=((3,), "float64"), y=((), "float64"))
    store.extend(list(zip(X, Y, strict=True)))
    client = gradient_client(_gradient, store.train, held_out=store.train, initial=MODEL)
    assert check(client) == []


def test_weights_and_norms_of_the_run_are_checked():
    """Only the limits that apply to the run."""
    (found,) = check(Good(), MODEL, run={"weighting": "client"})
    assert (found.check, found.weight) == ("weight", "fault")
    (found,) = check(Good(), MODEL, run={"max_norm": 0.5})
    assert "norm of at most 0.5" in found.sentence
    assert check(Good(), MODEL, run={"weighting": "uniform"}) == []


def test_refusals_of_a_server_are_found():
    """An unsupported rule, and too many metrics."""
    many = _given(lambda p: (p, 4, {f"m{n}": 0.5 for n in range(1000)}))
    (found,) = check(many, MODEL, ignore=["copies"])
    assert found.check == "server"
    assert "metrics" in found.sentence
    lone = fit_client(lambda p, s, t: p, (X, Y), initial=MODEL)
    found = check(lone, run={"rule": {"name": "fedprox", "mu": 0.1}}, ignore=["evaluate", "copies"])
    assert [f.check for f in found] == ["raises"]
    assert "Use gradient_client" in found[0].sentence


def test_checks_can_be_ignored_and_must_exist():
    """By name; faults are listed before doubts."""
    rateless, _, _ = BROKEN["a rate of its own"]
    assert check(rateless, MODEL, ignore=["learning_rate", "copies"]) == []
    with pytest.raises(UsageError, match="got 'speed'"):
        check(Good(), MODEL, ignore=["speed"])
    with pytest.raises(UsageError, match="no initial model"):
        check(Good())
    found = check(_giving(step=_rateless, evaluate=lambda s, p, t: (1, {"a": "b"})), MODEL)
    assert [finding.weight for finding in found] == ["fault", "doubt", "doubt"]


def test_every_tensor_has_its_finding():
    """One fault does not hide another."""
    wrong = {"w": np.zeros(1), "v": np.zeros(1), "b": np.full((1, 2), np.inf)}
    found = check(_given(lambda p: (wrong, 0, {})), MODEL)
    assert {finding.check for finding in found} >= {"shapes", "names", "finite", "weight"}


def test_findings_are_values():
    """They compare by value, and print their sentence."""
    (found,) = check(Good(), MODEL, run={"max_norm": 0.5})
    assert str(found) == found.sentence
    assert replace(found) == found
