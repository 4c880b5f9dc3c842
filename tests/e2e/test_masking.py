"""[masking] on a real server: shown with its numbers, and refused where they do not fit."""

import asyncio
import json
from urllib.parse import urlencode

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from support.agents import played, submit
from support.door import _Connection

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((4, 3), np.float32)}
RUN = """
max_abs = 1.0
weighting = "uniform"
cohort = { goal = 20 }
train = { epochs = 1, learning_rate = 0.1 }

[masking]
sum_bits = 24
precision = 1e-4
"""


async def cli(federation, *words):
    words = [*words, "--dir", str(federation.directory)]
    return await asyncio.to_thread(CliRunner().invoke, main, words)


def checked(federation, text):
    """The console's page after a check of a new run."""
    connection = _Connection(federation.directory / "control.sock")
    form = urlencode({"toml": text, "then": "check", "model": ""})
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/runs/new", body=form, headers=headers)
    page = connection.getresponse().read().decode()
    connection.close()
    return page


@pytest.mark.long
def test_a_server_shows_the_numbers_of_a_masked_run_and_refuses_wrong_ones(tmp_path):
    """`describe` and the form print them; `submit` refuses bounds that do not fit; others start."""

    async def scenario(federation, _):
        spec, model = tmp_path / "run.toml", federation.directory / "initial.safetensors"
        spec.write_text(RUN)
        await submit(federation, ZEROS, cohort={"goal": 2})  # leaves the model's file there
        before = len(federation.ledger.list_runs())
        shown = await cli(federation, "run", "describe", str(spec))
        assert shown.exit_code == 0
        assert "Sums: 24 bits, rounded stochastically to steps of 1.526e-05 = 2^-16" in shown.output
        assert "in sessions of 16 to 20 devices" in shown.output
        assert "the sum of a session is at most 4,194,368 < 2^23" in shown.output
        assert "session of 16: threshold 11, for up to 5 drop-outs and 5 colluding" in shown.output
        assert "values up to 1.526e-05 at weight 1" in shown.output
        found = await cli(federation, "run", "describe", str(spec), "--json")
        assert json.loads(found.output)["sums"]["masking"]["sessions"][1]["members"] == 20
        page = await asyncio.to_thread(checked, federation, RUN)
        assert "These settings are valid" in page
        assert "session of 20: threshold 14" in page
        spec.write_text(RUN.replace("max_abs = 1.0", "max_abs = 100.0"))
        for words in (("describe", str(spec)), ("submit", str(spec), "--model", str(model))):
            refused = await cli(federation, "run", *words)
            text = " ".join(refused.output.split())
            assert refused.exit_code != 0
            assert "Expected steps of at most 0.0001 (masking.precision)" in text
            assert "The largest max_abs that fits is 4 with this precision" in text
        assert len(federation.ledger.list_runs()) == before
        spec.write_text(RUN)
        started = await cli(federation, "run", "submit", str(spec), "--model", str(model))
        assert started.exit_code == 0, started.output
        assert len(federation.ledger.list_runs()) == before + 1

    played(tmp_path, scenario)
