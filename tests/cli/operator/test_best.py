"""`--best` of models, and the lines of a run's best model."""

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server.planning import best as best_models
from fedloom.server.planning.spec import parse
from support.door import SPEC, Door

LOSSES = (3.0, 1.0, 2.0, 2.0)
"""Of the models 0 to 3: the model of round 1 is the best."""


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A server with a run of four committed rounds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DIR", str(tmp_path / "state"))
    with Door(tmp_path / "state") as door:
        door.run = door.submit(tmp_path)
        yield door


def fill(door, tmp_path, losses, metric="loss"):
    ledger, models, run = door.contexts.ledger, door.contexts.models, door.run
    for number, loss in enumerate(losses, 1):
        write_file(tmp_path / "made.safetensors", {"w": np.full(4, number, np.float32)})
        digest = models.add(tmp_path / "made.safetensors")
        evaluation = {"num_examples": 1, "values": {metric: loss}}
        # As a round's commit does, from the rows before it and its own.
        rows = [*ledger.curve_rows(run), Round(number, evaluation)]
        spec = parse({**SPEC, "best": {"patience": 9}})
        best = best_models.mark(spec, best_models.look_back(spec, rows))
        door.commit(run, number, digest, evaluation=evaluation, best=best)


class Round:
    kind = "train"

    def __init__(self, number, evaluation):
        self.number, self.evaluation = number, evaluation


def said(*args, code=0):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, args)
    assert result.exit_code == code, result.output
    return result.output


def test_the_best_model_is_exported_and_promoted(door, tmp_path):
    """It is that of round 1, whose clients' loss round 2 measured."""
    fill(door, tmp_path, LOSSES)
    said("model", "export", door.run, "--best", "--out", "out.safetensors")
    assert read_params(tmp_path / "out.safetensors")["w"].tolist() == [1.0] * 4
    said("model", "export", "--best", "--out", "newest.safetensors")  # of the newest run
    assert (tmp_path / "newest.safetensors").read_bytes() == (
        tmp_path / "out.safetensors"
    ).read_bytes()
    said("model", "promote", door.run, "--best", "--yes")
    assert door.contexts.ledger.promoted().round == 1


def test_lists_and_status_show_the_best_model(door, tmp_path):
    """Its metric, its round, and how many evaluations did not improve on it."""
    fill(door, tmp_path, LOSSES)
    digest = door.contexts.ledger.run(door.run).best["model"][:12]
    status = said("run", "status", door.run)
    line = f"best model: loss 1, {digest} of round 1 · 2 of 9 evaluations without an improvement"
    assert line in status
    assert "loss 1 (round 1)" in said("run", "list")
    rows = [line.split() for line in said("model", "list").splitlines()]
    assert [row[2] for row in rows if row[-1] == "best"] == ["1"]
    view = door.ask("GET", f"/runs/{door.run}")[1]["best"]
    assert view == door.contexts.ledger.run(door.run).best
    assert view["model"].startswith(digest)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("RUN", "--best"), "loss was missing or not finite in every evaluation"),
        (("RUN", "--best", "--round", "1"), "Expected either --round or --best, got both"),
        (("nothing", "--best"), "No run begins with 'nothing'"),
    ],
)
def test_a_run_without_a_best_model_says_why(door, tmp_path, options, reason):
    """Exit 2, and no file is written."""
    fill(door, tmp_path, LOSSES, metric="other")
    named = [door.run if word == "RUN" else word for word in options]
    assert reason in said("model", "export", *named, "--out", "out.safetensors", code=2)
    assert not (tmp_path / "out.safetensors").exists()
    assert "best model: none, loss was missing or not finite" in said("run", "status", door.run)


def test_a_run_without_evaluations_has_no_best_model(door, tmp_path):
    """The message names the setting."""
    output = said("model", "export", door.run, "--best", "--out", "out.safetensors", code=2)
    assert "no round has evaluated one. Set evaluate = true in its run.toml" in output
    assert "best model" not in said("run", "status", door.run)
