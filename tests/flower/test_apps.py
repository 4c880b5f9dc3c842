"""Apps with the structure of Flower's quickstarts, on a real server with agents as processes.

The same unchanged app also runs in Flower's own rounds, `Strategy.start`, on a grid in this
process; the models agree.
"""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg

from support.flower import APPS, Here, deployed, import_app

pytestmark = pytest.mark.e2e

ROUNDS = 3
NODES = 2
RUN = """
name = "quick"
rounds = 3
[cohort]
goal = 2
quorum = 2
[train]
{train}
[config]
{config}
"""


def play(tmp_path, folder, begin, train, config=""):
    """Run on a real server; returns the status, first model, last model and logs."""
    with deployed(tmp_path, APPS / folder) as here:
        first = tmp_path / "init.safetensors"
        here.call("model", "init", "--flower", begin, "--out", first)
        here.serve()
        for number in range(NODES):
            here.attend(f"{folder}.client_app:app", number, NODES)
        status = here.run(RUN.format(train=train, config=config), first)
        assert status["state"] == "finished", here.logs()
        return status, here.model(), here.logs()


def by_flower(folder, arrays, run_config, train_config):
    """The same rounds by Flower."""
    app = import_app(folder, "client_app").app
    grid = Here(app, NODES, run_config)
    return FedAvg().start(grid, arrays, num_rounds=ROUNDS, train_config=ConfigRecord(train_config))


def test_a_pytorch_app_trains_like_under_flower(tmp_path):
    """The model after three rounds is Flower's to 1e-6, with buffers of other dtypes."""
    pytest.importorskip("torch", reason="needs torch")
    status, ours, logs = play(
        tmp_path, "torchquick", "torchquick.task:initial", "epochs = 1\nlearning_rate = 0.1"
    )
    net = import_app("torchquick", "task").initial()
    config = {"local-epochs": 1, "batch-size": 32}
    theirs = by_flower("torchquick", ArrayRecord(net.state_dict()), config, {"lr": 0.1})
    assert set(ours) == set(theirs.arrays)
    moved = 0.0
    for name, array in theirs.arrays.items():
        there = array.numpy()
        if there.dtype.kind == "f" and ours[name].dtype.kind == "f":
            np.testing.assert_allclose(ours[name], there, atol=1e-6, rtol=0)
        begun = net.state_dict()[name].numpy()
        moved = max(moved, float(np.abs(ours[name] - begun).max()))
    assert moved > 0.01
    last = status["rounds"][-1]["evaluation"]
    flowers = theirs.evaluate_metrics_clientapp[ROUNDS]
    assert last["values"]["eval_acc"] == pytest.approx(flowers["eval_acc"], abs=1e-6)
    assert "Traceback" not in logs


def test_a_scikit_learn_app_trains_like_under_flower(tmp_path):
    """Lists without names, float64, and the nested config of the app's project."""
    _, ours, _ = play(
        tmp_path, "sklearnquick", "sklearnquick.client_app:initial",
        "epochs = 2\nlearning_rate = 1.0",
    )  # fmt: skip
    begin = import_app("sklearnquick", "client_app").initial()
    theirs = by_flower("sklearnquick", ArrayRecord(begin), {"local-epochs": 2, "fit.c": 1.0}, {})
    for name, array in theirs.arrays.items():
        np.testing.assert_allclose(ours[name], array.numpy(), atol=1e-6, rtol=0)
    assert np.abs(ours["0"]).max() > 0.1


def test_a_numpy_app_keeps_its_context_and_its_order(tmp_path):
    """Twelve arrays, with 10 after 9; a counter of rounds in the context; flattened lists."""
    status, ours, _ = play(
        tmp_path, "numpyquick", "numpyquick.client_app:initial", "epochs = 1\nlearning_rate = 1.0"
    )
    for place in range(12):
        np.testing.assert_allclose(ours[str(place)], (place == 0) + 3 * 1.5 * (place + 1))
    rounds = [r for r in status["rounds"] if r["training"]]
    assert [r["training"]["values"]["rounds"] for r in rounds] == [1, 2, 3]
    assert status["rounds"][-1]["evaluation"]["values"]["listed.2"] == 4.0


def test_a_run_can_call_an_apps_query(tmp_path):
    """Its metrics are averaged."""
    status, _, _ = play(
        tmp_path, "numpyquick", "numpyquick.client_app:initial", "epochs = 1\nlearning_rate = 1.0",
        'flower-evaluate = "query"',
    )  # fmt: skip
    assert status["rounds"][-1]["evaluation"]["values"] == {"examples-here": 7.5}


def test_a_numpy_client_equals_gradient_descent(tmp_path):
    """`client_fn` and `NumPyClient`, compared with the same steps here."""
    status, ours, _ = play(
        tmp_path, "oldquick", "oldquick.client_app:initial", "epochs = 2\nlearning_rate = 0.5"
    )
    old = import_app("oldquick", "client_app")
    model = old.initial()
    for number in range(1, ROUNDS + 1):
        asked = {"lr": 0.5, "server_round": number}
        found = [old.Client(n, NODES, 2).fit(model, asked) for n in range(NODES)]
        total = sum(count for _, count, _ in found)
        model = [
            sum(weights[place] * (count / total) for weights, count, _ in found)
            for place in range(2)
        ]
    for place, value in enumerate(model):
        np.testing.assert_allclose(ours[str(place)], value, atol=1e-6, rtol=0)
    assert status["rounds"][-1]["evaluation"]["values"]["accuracy"] > 0.5
    first = next(r for r in status["rounds"] if r["training"])
    assert first["training"]["values"] == {"round": 1.0}


def test_an_app_is_checked_without_a_server(tmp_path):
    """With the node_config that it needs it has no fault; without it the fault is named."""
    pytest.importorskip("torch", reason="needs torch")
    first, app = tmp_path / "init.safetensors", "torchquick.client_app:app"
    with deployed(tmp_path, APPS / "torchquick") as here:
        here.call("model", "init", "--flower", "torchquick.task:initial", "--out", first)
        words = ("client", "test", "--flower", app, "--model", first)
        found = here.call(*words, "--node", "partition-id=0", "--node", "num-partitions=2")
        assert not [each for each in found["findings"] if each["weight"] == "fault"]
        assert [each["number"] for each in found["rounds"]] == [1, 2, 3]
        found = here.call(*words, check=False)
        assert "KeyError: 'partition-id'" in found["findings"][0]["sentence"]
