"""Clients of scikit-learn: local training in rounds, metrics and refusals."""

import asyncio
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.strategies import client_rule
from support.agents import Agents, result, submit
from support.patience import PATIENCE_S
from support.tasks import task

sklearn = pytest.importorskip("sklearn")

from sklearn.datasets import load_digits  # noqa: E402
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge, SGDClassifier, SGDRegressor  # noqa: E402
from sklearn.metrics import hinge_loss, log_loss  # noqa: E402

from fedloom.client.data import Arrays  # noqa: E402
from fedloom.client.sklearn import initial, load, sklearn_client  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5))
THREE = np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5])
TWO = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
VALUES = X @ np.arange(5.0) + 1

CLASSIFIERS = [
    (SGDClassifier(loss="log_loss"), THREE),
    (SGDClassifier(loss="log_loss", learning_rate="invscaling", eta0=7.0), TWO),
    (SGDClassifier(penalty="elasticnet"), THREE),
    (Perceptron(), THREE),
    (Perceptron(), TWO),
]


def _passive(name):
    """A class that scikit-learn 1.8 and 1.9 deprecate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return getattr(sklearn.linear_model, name)(C=0.1)


def _rounds(client, params, *, rounds=3, **settings):
    for number in range(1, rounds + 1):
        params, _, _ = client.train(params, task(seed=number, round_=number, **settings))
    return params


def _centralised(estimator, shard, *, rounds=3, epochs=2, batch_size=8, classes=None):
    """`partial_fit` of one estimator over the same batches, without rounds."""
    known = {} if classes is None else {"classes": classes}
    for seed in range(1, rounds + 1):
        estimator.set_params(random_state=seed)
        for x, y in shard.training(seed, batch_size, epochs=epochs):
            estimator.partial_fit(x, y, **known)
    return estimator


@pytest.mark.long
@pytest.mark.parametrize(("estimator", "y"), CLASSIFIERS)
def test_one_client_equals_partial_fit(estimator, y):
    """Three rounds of two epochs give the bits of one uninterrupted estimator."""
    shard = Arrays(X, y, dtype=None)
    classes = np.unique(y)
    client = sklearn_client(estimator, (X, y), classes=classes)
    got = _rounds(client, client.initial(), epochs=2)
    settings = {"learning_rate": "constant", "eta0": 0.1}
    alone = sklearn.base.clone(estimator)
    known = alone.get_params()
    alone.set_params(**{n: v for n, v in settings.items() if n in known})
    _centralised(alone, shard, classes=classes)
    assert got["coef"].tobytes() == alone.coef_.tobytes()
    assert got["intercept"].tobytes() == alone.intercept_.tobytes()
    assert np.abs(got["coef"]).max() > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (SGDRegressor(learning_rate="constant", eta0=0.01), VALUES),
        (_passive("PassiveAggressiveRegressor"), VALUES),
        (_passive("PassiveAggressiveClassifier"), THREE),
        (SGDClassifier(learning_rate="pa1", eta0=0.3, loss="hinge", penalty=None), THREE),
    ],
)
def test_regressors_and_passive_aggressive_models_equal_partial_fit(estimator, y):
    """Passive-aggressive models ignore the round's learning rate."""
    classes = np.unique(y) if y is THREE else None
    client = sklearn_client(estimator, (X, y), classes=classes)
    got = _rounds(client, client.initial(), epochs=2, learning_rate=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        alone = sklearn.base.clone(estimator)
    _centralised(alone, Arrays(X, y, dtype=None), classes=classes)
    assert got["coef"].tobytes() == alone.coef_.tobytes()
    assert got["intercept"].tobytes() == alone.intercept_.tobytes()


@pytest.mark.parametrize("y", [TWO, THREE])
def test_logistic_regression_continues_from_the_received_model(y):
    """Rounds of a few iterations equal one estimator with warm_start."""
    client = sklearn_client(LogisticRegression(), (X, y), classes=np.unique(y))
    got = _rounds(client, client.initial(), rounds=4, epochs=3)
    alone = LogisticRegression(warm_start=True, max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
        for _ in range(4):
            alone.fit(X, y)
    np.testing.assert_allclose(got["coef"], alone.coef_, rtol=1e-6)
    once = _rounds(client, client.initial(), rounds=1, epochs=3)
    assert np.abs(once["coef"] - got["coef"]).max() > 1e-3


def test_float32_models_stay_float32():
    """The data is converted to the model's dtype."""
    client = sklearn_client(SGDClassifier(), (X, THREE), classes=[0, 1, 2])
    start = {name: array.astype(np.float32) for name, array in client.initial().items()}
    got = _rounds(client, start)
    assert {array.dtype for array in got.values()} == {np.dtype(np.float32)}


def test_a_repeated_task_gives_the_same_bits():
    """Nothing is kept between tasks; the arguments and the estimator are not changed."""
    estimator = SGDClassifier()
    client = sklearn_client(estimator, (X, THREE), classes=[0, 1, 2])
    start = client.initial()
    first, again = (client.train(start, task(epochs=2))[0] for _ in range(2))
    assert first["coef"].tobytes() == again["coef"].tobytes()
    other, _, _ = client.train(start, task(epochs=2, seed=2))
    assert other["coef"].tobytes() != first["coef"].tobytes()
    assert not start["coef"].any()
    assert not hasattr(estimator, "coef_")


def test_the_round_determines_the_length_of_the_training():
    """Epochs, steps and stop requests; each example is a step of scikit-learn."""
    client = sklearn_client(SGDClassifier(), (X, THREE), classes=[0, 1, 2])
    for settings, steps in (
        ({"epochs": 2}, 120),
        ({"steps": 3}, 24),
        ({"steps": 3, "batch_size": 0}, 180),
    ):
        asked = task(**settings)
        client.train(client.initial(), asked)
        assert asked.local.steps == steps
    stopped = task(epochs=5)
    stopped.stop()
    params, _, _ = client.train(client.initial(), stopped)
    assert not params["coef"].any()
    patient = task(epochs=200, patience=2, learning_rate=50.0)
    client.train(client.initial(), patient)
    assert patient.local.steps < 200 * 60


@pytest.mark.parametrize(
    ("estimator", "y", "reference"),
    [
        (SGDClassifier(loss="log_loss"), THREE, "log"),
        (LogisticRegression(), TWO, "log"),
        (SGDClassifier(), THREE, "hinge"),
        (Perceptron(), TWO, "hinge"),
    ],
)
def test_loss_and_accuracy_equal_scikit_learns(estimator, y, reference):
    """Log loss with probabilities, hinge loss without."""
    classes = np.unique(y)
    client = sklearn_client(estimator, (X, y), classes=classes, held_out=(X[:20], y[:20]))
    params, num_examples, metrics = client.train(client.initial(), task(epochs=2))
    model = load(estimator, params, classes=classes)
    if reference == "log":
        loss = log_loss(y, model.predict_proba(X), labels=classes)
    else:
        loss = hinge_loss(y, model.decision_function(X), labels=classes)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-9)
    assert metrics["accuracy"] == pytest.approx(model.score(X, y))
    assert num_examples == 60
    held, metrics = client.evaluate(params, task())
    assert held == 20
    assert metrics["accuracy"] == pytest.approx(model.score(X[:20], y[:20]))


def test_a_score_of_zero_predicts_the_first_class():
    """As in scikit-learn; the initial model has only such scores."""
    client = sklearn_client(Perceptron(), (X, TWO), classes=["no", "yes"], held_out=(X, TWO))
    _, metrics = client.evaluate(client.initial(), task())
    model = load(Perceptron(), client.initial(), classes=["no", "yes"])
    assert metrics["accuracy"] == pytest.approx(model.score(X, TWO)) == np.mean(TWO == "no")


def test_a_regressors_loss_is_the_mean_squared_error():
    """It has no accuracy."""
    client = sklearn_client(SGDRegressor(), (X, VALUES), held_out=(X, VALUES))
    params, _, _ = client.train(client.initial(), task(learning_rate=0.01))
    _, metrics = client.evaluate(params, task())
    model = load(SGDRegressor(), params)
    assert metrics == {"loss": pytest.approx(np.mean((model.predict(X) - VALUES) ** 2))}


@pytest.mark.parametrize(
    ("estimator", "classes", "sentence"),
    [
        (Ridge(), None, "linear model that can continue its training"),
        (SGDClassifier(), None, "needs classes="),
        (SGDClassifier(average=True), [0, 1], "average=False"),
        (SGDClassifier(early_stopping=True), [0, 1], "early_stopping=False"),
        (SGDClassifier(class_weight="balanced"), [0, 1], "class_weight"),
        (LogisticRegression(solver="liblinear"), [0, 1], "solver of lbfgs"),
    ],
)
def test_unsupported_estimators_are_refused(estimator, classes, sentence):
    """When the client is created."""
    with pytest.raises(UsageError, match=sentence):
        sklearn_client(estimator, (X, THREE), classes=classes)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"rule": client_rule("fedprox", {"mu": 0.1})}, "got fedprox"),
        ({"rule": client_rule("scaffold", {})}, "got scaffold"),
        ({"clip_norm": 1.0}, "does not support train.clip_norm"),
        ({"only": ("coef",)}, "all tensors of a linear model"),
        ({"widths": (0.5,)}, "train.widths"),
    ],
)
def test_unsupported_settings_are_refused(asked, sentence):
    """The error names an alternative."""
    client = sklearn_client(SGDClassifier(), (X, THREE), classes=[0, 1, 2])
    with pytest.raises(UsageError, match=sentence):
        client.train(client.initial(), task(**asked))


def test_rules_without_gradients_are_supported():
    """q-FedAvg gets the loss before training; the steps are reported."""
    estimator = SGDClassifier(loss="log_loss", penalty=None)
    client = sklearn_client(estimator, (X, THREE), classes=[0, 1, 2])
    asked = task(rule=client_rule("qfedavg", {"q": 1.0}))
    client.train(client.initial(), asked)
    assert asked.local.initial_loss == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("estimator", "rule", "got"),
    [
        (SGDClassifier(), ("qfedavg", {"q": 1.0}), "got SGDClassifier(penalty='l2')"),
        (SGDClassifier(penalty="l1"), ("fednova", {}), "got SGDClassifier(penalty='l1')"),
        (SGDClassifier(learning_rate="pa1", eta0=1.0), ("fednova", {}), "got SGDClassifier"),
        (LogisticRegression(), ("fednova", {}), "got LogisticRegression"),
    ],
    ids=str,
)
def test_rules_whose_formulas_do_not_hold_are_refused(estimator, rule, got):
    """For steps that are not those of gradient descent."""
    client = sklearn_client(estimator, (X, THREE), classes=[0, 1, 2])
    with pytest.raises(UsageError, match=f"rule {rule[0]}.*{re.escape(got)}"):
        client.train(client.initial(), task(rule=client_rule(*rule)))


def test_wrong_models_targets_and_rows_are_refused():
    """The error describes the estimator's model."""
    client = sklearn_client(SGDClassifier(), (X, THREE), classes=[0, 1, 2])
    with pytest.raises(UsageError, match=r"coef \(3, F\), intercept \(3,\)"):
        client.train({"coef": np.zeros((2, 5)), "intercept": np.zeros(2)}, task())
    with pytest.raises(UsageError, match="rows of 4 features"):
        client.train(initial(SGDClassifier(), 4, classes=[0, 1, 2]), task())
    strange = sklearn_client(SGDClassifier(), (X, THREE), classes=[0, 1])
    with pytest.raises(UsageError, match="Expected targets of 2 classes"):
        strange.train(strange.initial(), task())
    lacking = sklearn_client(LogisticRegression(), (X, THREE), classes=[0, 1, 2, 3])
    with pytest.raises(UsageError, match="got none of 3"):
        lacking.train(lacking.initial(), task())


@pytest.mark.long
def test_the_base_package_imports_no_scikit_learn():
    """Devices need not install it."""
    code = (
        "import sys, fedloom.client, fedloom.client.numpy, fedloom.client.data;"
        "assert 'sklearn' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_five_clients_beat_each_alone_over_the_wire(federation, tmp_path, runner):
    """On digits, of which each client lacks classes."""
    x, y = load_digits(return_X_y=True)
    x, held = x / 16.0, np.arange(len(x)) % 5 == 0
    test = x[held], y[held]
    shards = [(x[~held][mine], y[~held][mine]) for mine in _dealt(y[~held])]
    make = lambda data: sklearn_client(  # noqa: E731
        SGDClassifier(loss="log_loss"), data, classes=range(10), held_out=test
    )
    clients = [make(data) for data in shards]
    start = clients[0].initial()

    async def main():
        agents = Agents(federation, tmp_path)
        for number, client in enumerate(clients):
            await agents.start(f"sk-{number}", client)
        run = await submit(
            federation,
            start,
            rounds=4,
            cohort={"goal": 5, "quorum": 5},
            train={"epochs": 1, "batch_size": 32, "learning_rate": 0.05},
        )
        await federation.ended(run)
        await agents.stop()
        return result(federation, run)

    together = runner.run(asyncio.wait_for(main(), PATIENCE_S))
    asked = task()
    ours = clients[0].evaluate(together, asked)[1]["accuracy"]
    alone = [
        client.evaluate(_rounds(client, start, rounds=4, batch_size=32, learning_rate=0.05), asked)
        for client in clients
    ]
    assert ours > max(metrics["accuracy"] for _, metrics in alone)
    assert ours > 0.85


def _dealt(y):
    """Each of five clients has half the examples of four classes."""
    return [
        np.flatnonzero(
            np.isin((y - 2 * client) % 10, range(4)) & (np.arange(len(y)) % 2 == client % 2)
        )
        for client in range(5)
    ]
