"""docs/five-minutes.md: its walk-through works and its snippets run."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedloom.client import load_file
from support import walk

PAGE = (Path(__file__).parents[2] / "docs" / "five-minutes.md").read_text("utf-8")


@pytest.mark.long
@pytest.mark.e2e
def test_the_walk_through_ends_with_a_model(tmp_path):
    """Runs every file and command with real processes on free ports, and compares the output."""
    with walk.Walk(tmp_path, walk.free_ports(["7443", "7444"])) as walking:
        for step in walk.steps(PAGE):
            walking.take(step)
    model = load_file(tmp_path / "model.safetensors")
    np.testing.assert_allclose(model["weight"], [[2.0, -1.0]], atol=0.1)
    np.testing.assert_allclose(model["bias"], [0.5], atol=0.1)


def test_a_walk_through_is_compared_line_by_line():
    """Numbers, digests and times may differ; other text may not."""
    printed = "took 21 ms\nmodel 7edabd1d1bd0\nloss 0.009634  done\n"
    assert (
        walk.missing(["took 2 min 05 s", "model 06990cfec82f", "loss 0.1   done"], printed) is None
    )
    framed = "──── finished · 5.3 s ────"
    assert walk.missing([framed], "─── finished · 13.2 s ───") is None
    assert walk.missing(["…", "loss 1 done"], printed) is None
    assert walk.missing(["took …", "…"], printed) is None
    assert walk.missing(["took 1 s", "loss 1 done"], printed) == "loss 1 done"
    assert walk.missing(["…", "loss 1 failed"], printed) == "loss 1 failed"
    assert walk.missing(["took 1 s"], printed) == "(the end)"
    assert walk.missing(["took 1 s"], printed, ended=False) is None


def _snippet(containing):
    (found,) = [
        body for body in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if containing in body
    ]
    return found


def test_the_partial_update_covers_what_its_comments_state(updates_of):
    """A tensor, ten rows, and the positions of the mask."""
    names = {}
    exec(_snippet("SliceOf("), names)
    params = {
        "head": np.zeros(3, np.float32),
        "embedding": np.zeros((30, 4), np.float32),
        "hidden": np.array([[-1.0, 0.0], [1.0, 2.0]], np.float32),
        "unsent": np.zeros(2, np.float32),
    }
    header = updates_of(names["Reader"](), params, weighting="client")
    assert header.weight == 60.0
    assert header.training.num_examples == 120
    kinds = {part.tensor: part.WhichOneof("coverage") for part in header.parts}
    assert kinds == {"head": "full", "embedding": "slice", "hidden": "mask"}


def test_the_pytorch_client_trains_the_same_model(updates_of):
    """It can replace a device of the walk-through."""
    pytest.importorskip("torch")
    names = {}
    exec(_snippet("TorchClient("), names)
    params = {"weight": np.zeros((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
    header = updates_of(names["client"], params, weighting="examples")
    assert header.training.num_examples == 200
    assert header.evaluation.num_examples == 200
    assert header.training.values["loss"] < header.evaluation.values["loss"]
