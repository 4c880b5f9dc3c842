"""docs/strategies/trees.md: its run starts from its model and adds its client's trees."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedloom.client import Kind, Task, Weighting, load_file
from fedloom.client.trees import TREES, booster
from fedloom.server.planning.spec import parse

pytest.importorskip("xgboost")
PAGE = (Path(__file__).parents[2] / "docs" / "strategies" / "trees.md").read_text("utf-8")


def _block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_the_client_of_the_page_takes_part_in_its_run(tmp_path, monkeypatch):
    """The model has a place for the client, which sends a booster there."""
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(_block("python"), "trees.md", "exec"), names)
    spec = parse(tomllib.loads(_block("toml")))
    model = {name: np.array(value) for name, value in load_file("trees.safetensors").items()}
    task = Task(
        run="trees",
        round=1,
        kind=Kind.TRAIN,
        settings=spec.local_training().at(1, 5),
        rule=spec.build_strategy().rule,
        config=spec.config,
        seed=1,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        client="site-3",
    )
    update = names["client"].train(model, task)
    part = update.params[TREES]
    assert part.ranges[:2] == ((0, 1), (3, 4))
    model[TREES][tuple(slice(a, b) for a, b in part.ranges)] = part.values
    grown = booster(model, {"objective": "binary:logistic", "max_depth": 3})
    assert grown.num_boosted_rounds() == 1
    assert update.metrics["accuracy"] > 0.9
