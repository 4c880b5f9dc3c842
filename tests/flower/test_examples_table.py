"""The command that runs Flower's examples, over a repository of two small ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")
pytest.importorskip("sqlalchemy", reason="needs the server's extra")

RUN = Path(__file__).parents[2] / "benchmarks" / "flower_examples" / "run.py"
PROJECT = """
[tool.flwr.app.config]
num-server-rounds = 3

[tool.flwr.app.components]
serverapp = "drawing.server_app:app"
clientapp = "drawing.client_app:app"
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    initial = ArrayRecord([np.zeros(5)])
    FedAvg().start(grid, initial, num_rounds=context.run_config["num-server-rounds"])
"""
CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
@app.evaluate()
def train(message, context):
    arrays = [a + np.random.rand(5) for a in message.content["arrays"].to_numpy_ndarrays()]
    count = context.state.metric_records.setdefault("seen", MetricRecord({"n": 0}))
    count["n"] += 1
    metrics = MetricRecord({"num-examples": 1 + context.node_config["partition-id"], **count})
    content = RecordDict({"metrics": metrics})
    if message.metadata.message_type == "train":
        content["arrays"] = ArrayRecord(arrays)
    return Message(content, reply_to=message)
"""


@pytest.fixture
def repository(tmp_path):
    """A folder like Flower's repository: an app that draws numbers, and one without an app."""
    root = tmp_path / "flower"
    package = root / "examples" / "drawing" / "drawing"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    (package / "server_app.py").write_text(SERVER)
    (package / "client_app.py").write_text(CLIENT)
    phone = root / "examples" / "phone"
    phone.mkdir()
    (phone / "pyproject.toml").write_text('[project]\nname = "phone"\n')
    (root / "framework").mkdir()
    (root / "framework" / "pyproject.toml").write_text('[project]\nversion = "1.28.0"\n')
    return root


def run(repository, *words):
    """Run the command; returns the outcomes by name."""
    done = subprocess.run(
        [sys.executable, RUN, repository, "--out", repository.parent / "out", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.e2e
def test_apps_run_under_both_and_the_others_are_refused(repository):
    """The same numbers under Flower's loop and on a server; what is no app has a reason."""
    found = run(repository)
    drawing = found["drawing"]
    assert drawing["runs"], drawing
    assert drawing["difference"] == 0
    assert drawing["numbers"] >= 3 * 3 * 7  # replies of 3 nodes in 3 rounds
    assert not found["phone"]["runs"]
    assert "[tool.flwr.app]" in found["phone"]["note"]


@pytest.mark.e2e
def test_two_runs_of_flowers_loop_are_the_same(repository):
    """Seeds do not depend on the process."""
    assert run(repository, "--only", "drawing", "--flower-only")["drawing"]["difference"] == 0
