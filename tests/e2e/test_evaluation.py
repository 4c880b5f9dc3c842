"""Federated evaluation without training: runs and clients that only evaluate."""

import asyncio
from io import StringIO

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.round_view import detail
from fedloom.cli.operator.run_view import render
from fedloom.client import Client
from fedloom.client.testing import check
from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from fedloom.simulation.config import build
from support.agents import Adder, played, result, submit, until
from support.door import _Connection
from support.site_cases import cross_entropy, data, linear, made

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((4, 3), np.float32)}


class Judge(Client):
    """Only evaluates: reports the distance of the model from its own target."""

    def __init__(self, idea, num_examples):
        self.idea, self.num_examples = idea, num_examples

    def evaluate(self, params, task):
        return self.num_examples, {"loss": abs(self.idea - float(params["w"].mean()))}


def only(**settings):
    return {"evaluate_only": True, "train": {}, "cohort": {"goal": 3, "quorum": 3}, **settings}


@pytest.mark.long
def test_an_evaluation_run_does_not_change_the_model(tmp_path):
    """Means weighted by examples, and the spread over clients, for one or two rounds."""

    async def scenario(federation, agents):
        for name, idea, count in (("a", 1.0, 1), ("b", 2.0, 1), ("c", 4.0, 2)):
            await agents.start(name, Judge(idea, count))
        values = only(rounds=2, metrics={"quantiles": [0.0, 0.5, 1.0], "per_client": True})
        run = await submit(federation, ZEROS, **values)
        await federation.ended(run)
        row, rounds = federation.ledger.run(run), federation.ledger.list_rounds(run)
        assert (row.state, row.committed) == ("finished", 2)
        assert [r.kind for r in rounds] == ["evaluate", "evaluate"]
        assert not result(federation, run)["w"].any()
        assert {r.model_out for r in rounds} == {rounds[0].model_in}
        assert len(federation.ledger.list_models(run)) == 1
        for found in rounds:
            told = found.evaluation
            assert told["num_examples"] == 4
            assert told["values"]["loss"] == pytest.approx((1 + 2 + 2 * 4) / 4)
            assert told["quantiles"]["loss"] == {
                "0": 1.0, "0.25": 1.5, "0.5": 2.0, "0.75": 3.0, "1": 4.0
            }  # fmt: skip
            assert set(told["clients"]) == {"a", "b", "c"}
            assert not found.training
        await shown(federation, run)
        get = Control(federation.directory).get
        detail = await asyncio.to_thread(get, "runs", run, "rounds", "1")
        assert [(m["client"], m["num_examples"], m["norm"]) for m in detail["members"]] == [
            ("a", 1, None), ("b", 1, None), ("c", 2, None)
        ]  # fmt: skip
        parts = await asyncio.to_thread(get, "clients", "c", "parts")
        assert [(p["num_examples"], p["norm"]) for p in parts["parts"]] == [(2, None)] * 2

    played(tmp_path, scenario)


async def shown(federation, run):
    """Check that the status has the spread, and each client's metrics if requested."""
    control = Control(federation.directory)
    found = await asyncio.to_thread(control.get, "runs", run)
    console = Console(width=100, record=True, file=StringIO())
    console.print(render(found, rows=None))
    text = console.export_text()
    assert "2 of 2 rounds" in text
    for words in ("MINIMUM", "MEDIAN", "MAXIMUM", "2.75"):
        assert words in text


LOUD = ("loud", 0.001, 1 << 42)
"""A client that claims more examples than the fleet."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("table", "mean"), [({}, 0.00106), ({"metrics": {"max_weight": 2.0}}, 2.0)]
)
def test_one_client_decides_no_shown_metric(tmp_path, table, mean):
    """Weights are limited, and everything that shows a mean outside the quartiles marks it."""

    async def scenario(federation, agents):
        for name, idea, count in (("a", 2.9, 2), ("b", 2.6, 2), ("c", 2.5, 2), LOUD):
            await agents.start(name, Judge(idea, count))
        cohort = {"goal": 4, "quorum": 4}
        run = await submit(federation, ZEROS, **only(rounds=1, cohort=cohort, **table))
        await federation.ended(run)
        marked = not table
        (found,) = federation.ledger.list_rounds(run)
        assert found.evaluation["values"]["loss"] == pytest.approx(mean, rel=1e-2)
        assert found.evaluation.get("disagree") == (["loss"] if marked else None)
        control, digest = Control(federation.directory), found.model_in
        seen = await asyncio.to_thread(control.get, "runs", run, "rounds", "1")
        assert "median 2.55, half of the clients 1.875 to 2.675" in written(detail(seen))
        assert ("disagrees" in written(detail(seen))) == marked
        status = await asyncio.to_thread(control.get, "runs", run)
        assert ("median 2.55: disagrees" in written(render(status, rows=None))) == marked
        preview = await asyncio.to_thread(
            control.post, "models", digest, "promote", body={}, preview="true"
        )
        assert ("loss 0.001061 (median 2.55)" in preview["consequence"]) == marked
        for path, words in (
            (f"/runs/{run}", "disagrees with the mean"),
            (f"/runs/{run}/rounds", "the median of the clients is 2.55"),
            (f"/runs/{run}/rounds/1", "mean and median disagree"),
            (f"/models/{digest}", "mean and median disagree"),
        ):
            text = await asyncio.to_thread(page, federation, path)
            assert (words in text) == marked, path
            assert "2.55" in text or path.endswith("/rounds")

    played(tmp_path, scenario)


def written(shown):
    """What a wide terminal shows."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(shown)
    return console.export_text()


def page(federation, path):
    """A page of the console."""
    connection = _Connection(federation.directory / "control.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    try:
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


def test_a_client_that_only_evaluates_declines_training(tmp_path):
    """Before the download; the round continues with the other clients."""

    async def scenario(federation, agents):
        await agents.start("judge", Judge(1.0, 1))
        cohort = {"goal": 1, "quorum": 1}
        run = await submit(federation, ZEROS, cohort=cohort, evaluate=False)

        def declined():
            return [m.reason for m in federation.ledger.cohort(run, 1) if m.reason]

        await until(declined)
        assert declined() == ["this client only evaluates"]
        await agents.start("adder", Adder())
        await federation.ended(run)
        assert result(federation, run)["w"].mean() == pytest.approx(1.0)
        assert not list((tmp_path / "judge").rglob("models/*.safetensors"))

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_evaluation_run_continues_after_a_restart(tmp_path):
    """Committed rounds count; no training round opens."""

    async def scenario(federation, agents):
        await agents.start("a", Judge(1.0, 1))
        run = await submit(federation, ZEROS, **only(rounds=3, cohort={"goal": 2, "quorum": 2}))
        await agents.start("b", Judge(2.0, 1))
        await until(lambda: federation.ledger.run(run).committed >= 1)
        await agents.stop("b")
        await federation.server.__aexit__(None, None, None)
        await federation.start()
        await agents.start("b", Judge(2.0, 1))
        await federation.ended(run)
        rounds = federation.ledger.list_rounds(run)
        assert federation.ledger.run(run).committed == 3
        assert {r.kind for r in rounds} == {"evaluate"}

    played(tmp_path, scenario)


def test_a_torch_client_may_have_no_training_data():
    """With `None` instead, the evaluation does not change."""
    asked = TorchClient(linear(), None, cross_entropy, evaluate=data(50, 2))
    both = TorchClient(linear(), data(20, 1), cross_entropy, evaluate=data(50, 2))
    assert not asked.can_train()
    assert both.can_train()
    _, task = made("plain")
    start = asked.initial()
    assert asked.evaluate(start, task) == both.evaluate(start, task)
    assert len(asked.example()) == 3


def test_the_conformance_check_accepts_clients_that_only_evaluate():
    """It checks the evaluation and requests no training."""
    assert check(Judge(1.0, 1), ZEROS) == []

    class Broken(Client):
        def evaluate(self, params, task):
            return 1, {"loss": "low"}

    assert {finding.weight for finding in check(Broken(), ZEROS)} >= {"fault"}


def test_unsupported_evaluation_runs_are_refused():
    """Private runs, whose metrics would leak; and simulations, which train."""
    spec = {"cohort": {"goal": 2}, "evaluate_only": True}
    assert parse(spec).rounds == 1
    with pytest.raises(UsageError, match="evaluate"):
        parse(
            {
                **spec,
                "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "population": 10, "delta": 1e-6},
                "rounds": 1,
            }
        )
    tables = {"data": {"name": "digits", "clients": 2}, "model": {"name": "linear"}}
    with pytest.raises(UsageError, match="must train"):
        build({**spec, **tables})


def test_the_command_has_a_flag():
    """`fedloom run submit --evaluate` is in the help."""
    from fedloom.cli.main import main

    assert "--evaluate" in CliRunner().invoke(main, ["run", "submit", "--help"]).stdout
