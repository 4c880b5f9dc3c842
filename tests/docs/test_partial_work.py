"""docs/strategies/partial-work.md: examples print the shown output, byte counts are correct."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.client.agent.task_run import TaskRun, task_from_message
from fedloom.client.state.store import ClientStore
from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning.spec import parse
from fedloom.strategies import PartialWork

PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "partial-work.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_prints_the_shown_output(capsys):
    exec(compile(BLOCKS[0], "partial-work.md", "exec"), {})
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == shown


def test_a_run_accepts_the_table():
    """Unchanged, as the page shows it."""
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    spec = parse({"cohort": {"goal": 2}, **tomllib.loads(table)})
    assert spec.local_training().special == ("clip_norm", "widths", "patience")


def test_it_names_every_setting():
    for field in fields(PartialWork):
        assert f"| `{field.name}` |" in PAGE, field.name


def _update_bytes(folder, model, **train):
    """Bytes of an agent's update of this model on the wire, without its header."""
    data = torch.randn(20, 64), torch.randint(0, 10, (20,))
    store = ClientStore(folder / "state")
    digest = write_file(folder / "model", parameters(model))
    (folder / "model").replace(store.model_path(digest))
    message = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="walk-000000", round=1),
        kind=fleet_pb2.TASK_KIND_TRAIN,
        model=fleet_pb2.ModelRef(digest=digest),
        train=fleet_pb2.TrainSettings(epochs=1, batch_size=10, learning_rate=0.1, **train),
        rule=fleet_pb2.ClientRule(name="plain"),
        weighting=fleet_pb2.WEIGHTING_EXAMPLES,
        seed=1,
    )
    task = task_from_message(message, "site-a")
    client = TorchClient(model, data, cross_entropy)
    return TaskRun(client, task, message, "site-a", store).run().size_bytes


@pytest.mark.parametrize(
    ("row", "train"),
    [
        ("all tensors", {}),
        ('`only = ["*lora*"]`', {"only": ["*lora*"]}),
        ('`only = ["*lora*"]`, `tensor_share = 0.5`', {"only": ["*lora*"], "tensor_share": 0.5}),
    ],
)
def test_adapters_have_the_stated_size(row, train, tmp_path):
    """Measured on the file that an agent uploads."""
    names = {}
    torch.manual_seed(0)
    exec(compile(BLOCKS[1], "partial-work.md", "exec"), names)
    taken = _update_bytes(tmp_path, names["model"], **train)
    assert f"| {row} | {taken:,} |" in PAGE, taken
