"""A Flower strategy in the server, with a Flower app on the devices."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam

from support.flower import APPS, Here, deployed, import_app

pytestmark = pytest.mark.e2e

RUN = """
name = "adam"
rounds = {rounds}
[strategy]
name = "flower:adam"
[cohort]
goal = 2
quorum = 2
[train]
epochs = 1
learning_rate = 1.0
"""


def test_fedadam_of_flower_continues_after_a_kill_of_the_server(tmp_path):
    """Six rounds with a SIGKILL give Flower's model, because its momenta are kept."""
    with deployed(tmp_path, APPS / "numpyquick") as here:
        first = tmp_path / "init.safetensors"
        here.call("model", "init", "--flower", "numpyquick.client_app:initial", "--out", first)
        here.serve('[flower]\nadam = "strategies.py:make"\n', steady=True)
        (here.server / "strategies.py").write_text(
            "from flwr.serverapp.strategy import FedAdam\n\n"
            "def make():\n    return FedAdam(eta=0.1, fraction_evaluate=0.0)\n"
        )
        for number in range(2):
            here.attend("numpyquick.client_app:app", number, 2)
        run = here.submit(RUN.format(rounds=6), first)
        here.waited(lambda: len(here.status(run)["rounds"]) >= 3)
        here.kill_server()
        here.serve_again()
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
        assert [row["kind"] for row in status["rounds"]] == ["train", "evaluate"] * 6
        ours, logs = here.model(), here.logs()
    quick = import_app("numpyquick", "client_app")
    grid = Here(quick.app, 2, {})
    begin = ArrayRecord(quick.initial())
    theirs = FedAdam(eta=0.1, fraction_evaluate=0.0).start(grid, begin, num_rounds=6)
    for name, array in theirs.arrays.items():
        np.testing.assert_allclose(ours[name], array.numpy(), atol=1e-6, rtol=0)
    assert "a Flower strategy holds 2 updates in memory" in logs


APP = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

initial = {"w": np.zeros(3, np.float32)}
app = ClientApp()


@app.train()
def train(message, context):
    config = message.content["config"]
    told = {"lr": float(config["lr"]), "late": float(config.get("late", -1.0)), "num-examples": 1}
    arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + 1)})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(told)})
    return Message(content, reply_to=message)
"""
STRATEGY = """
from flwr.serverapp.strategy import FedAvg


class Halving(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 3 == 0:
            config["lr"] *= 0.5
            config["late"] = server_round
        return super().configure_train(server_round, arrays, config, grid)


def make():
    return Halving(fraction_evaluate=0.0)
"""


def test_clients_get_a_strategys_values_in_each_round_also_after_a_kill_of_the_server(tmp_path):
    """A learning rate that the strategy halves in every third round, as in Flower's loop."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "telling_app.py").write_text(APP)
    with deployed(tmp_path, app) as here:
        first = tmp_path / "init.safetensors"
        here.call("model", "init", "--flower", "telling_app:initial", "--out", first)
        here.serve('[flower]\nadam = "strategies.py:make"\n', steady=True)
        (here.server / "strategies.py").write_text(STRATEGY)
        for number in range(2):
            here.attend("telling_app:app", number, 2)
        run = here.submit(RUN.format(rounds=7), first)
        here.waited(lambda: len(here.status(run)["rounds"]) >= 4)
        here.kill_server()
        here.serve_again()
        status = here.ended(run)
        assert status["state"] == "finished", here.logs()
    told = [row["training"]["values"] for row in status["rounds"] if row["training"]]
    assert [(row["lr"], row["late"]) for row in told] == [
        (1.0, -1), (1.0, -1), (0.5, 3), (0.5, 3), (0.5, 3), (0.25, 6), (0.25, 6)
    ]  # fmt: skip
