"""Runs with narrow sums on a real server: refused at submit, and zeros shown in every round."""

import asyncio
import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client import Client
from support.agents import Adder, Held, played, result, submit, until
from support.door import _Connection

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(5, np.float64)}
NARROW = {"sum_bits": 16, "precision": 0.004, "max_abs": 1.0, "weighting": "uniform"}
"""68 updates of at most 1 in 16 bits: steps of 2^-7, of which 2^-8 = 0.0039 is the half."""


class Small(Client):
    """Changes twelve values by 0.5, 0.001 and nothing, four of each."""

    def train(self, params, task):
        moved = params["w"] + np.float32([0.5, 0.001, 0.0])
        return {**params, "w": moved}, 1, {}


async def cli(federation, *words):
    words = [*words, "--dir", str(federation.directory)]
    return await asyncio.to_thread(CliRunner().invoke, main, words)


def page_of(federation, path):
    """A page of the console."""
    connection = _Connection(federation.directory / "control.sock")
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.long
def test_bounds_that_miss_the_precision_are_refused_when_submitted(tmp_path):
    """With both figures and what to lower; `describe` shows the same, and nothing starts."""

    async def scenario(federation, _):
        spec, model = tmp_path / "run.toml", federation.directory / "initial.safetensors"
        settings = "cohort = {goal = 2}\ntrain = {epochs = 1, learning_rate = 0.1}\n"
        settings += 'max_abs = 1.0\nweighting = "uniform"\nsum_bits = 16\nprecision = '
        await submit(federation, ZEROS, cohort={"goal": 2})  # leaves the model's file there
        before = len(federation.ledger.list_runs())
        spec.write_text(settings + "1e-6\n")
        for words in (("describe", str(spec)), ("submit", str(spec), "--model", str(model))):
            refused = await cli(federation, "run", *words)
            assert refused.exit_code != 0
            text = " ".join(refused.output.split())
            assert "precision >= 0.00390625" in text
            assert "got 1e-06" in text
            assert "Lower max_abs" in text
            assert "sum_bits = 32" in text
        assert len(federation.ledger.list_runs()) == before
        spec.write_text(settings + "0.004\n")
        shown = await cli(federation, "run", "describe", str(spec))
        assert "16 bits, rounded to steps of 0.007812 = 2^-7" in shown.output
        assert "values up to 0.003906 at weight 1" in shown.output
        started = await cli(federation, "run", "submit", str(spec), "--model", str(model))
        assert "largest error: 0.003906 of a mean" in started.output
        assert len(federation.ledger.list_runs()) == before + 1

    played(tmp_path, scenario)


@pytest.mark.long
def test_the_share_of_values_that_became_zero_is_measured_through_a_restart(tmp_path):
    """4 of 8 values of one client and none of 17 of the other: 16 %, everywhere it is shown."""

    async def scenario(federation, agents):
        held = Held(0.25)
        await agents.start("small", Small())
        await agents.start("held", held)
        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2}, rounds=2, **NARROW)
        await until(lambda: len(federation.ledger.accepted(run, 1)) == 1)
        await federation.stop()
        await federation.start()
        held.let_go.set()
        await until(lambda: federation.ledger.list_rounds(run)[0].state == "committed")
        first = federation.ledger.list_rounds(run)[0]
        assert first.underflow == 4 / 25
        assert "16% of the values other than zero were rounded to zero" in first.reason
        await federation.ended(run)
        shown = await cli(federation, "round", "show", run, "1")
        assert "rounded to zero: 16.00% of the values other than zero" in shown.output
        status = json.loads((await cli(federation, "run", "status", run, "--json")).output)
        assert [row["underflow"] for row in status["rounds"]] == [4 / 25] * 2
        assert status["sums"]["largest_error"] > 2.0**-8
        shown = await cli(federation, "run", "status", run)
        assert "16.00%" in shown.output
        assert "largest error: 0.003906 of a mean" in shown.output
        page = await asyncio.to_thread(page_of, federation, f"/runs/{run}/rounds/1")
        assert "16.00 % of the values other than zero" in page
        page = await asyncio.to_thread(page_of, federation, f"/runs/{run}")
        assert "largest error: 0.003906 of a mean" in page

    played(tmp_path, scenario)


@pytest.mark.long
def test_exact_rounds_have_no_such_share(tmp_path):
    async def scenario(federation, agents):
        await agents.start("small", Small())
        await agents.start("other", Adder())
        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2})
        await federation.ended(run)
        [only] = federation.ledger.list_rounds(run)
        assert (only.underflow, only.reason) == (None, "")
        assert result(federation, run)["w"][0, 1] == np.float32(0.5005)

    played(tmp_path, scenario)
