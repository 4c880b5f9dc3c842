"""A training script with one line more, as two devices of a real server."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

from fedloom.cli.common.load_code import load_client
from fedloom.client.agent.training_process import Program
from support.agents import played, result, submit

SCRIPT = Path(__file__).parents[2] / "support" / "train_adapters.py"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft beside transformers 5
def test_a_script_trains_on_two_devices(tmp_path, monkeypatch):
    """Each in a process of its own: the adapters change, and nothing else was sent."""
    monkeypatch.chdir(tmp_path)
    client = load_client(f"{SCRIPT}:client")
    start = client.initial()
    module = "fedloom.cli.device.training_child"
    words = (sys.executable, "-m", module, "--config", "client.toml", f"{SCRIPT}:client")

    async def scenario(federation, agents):
        for name in ("one", "two"):
            await agents.start(name, Program(words, keep_warm_s=60.0))
        run = await submit(
            federation,
            start,
            rounds=2,
            train={"epochs": 1, "batch_size": 4, "learning_rate": 0.01},
            cohort={"goal": 2, "quorum": 2},
            config={"base": client.base},
        )
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        model = result(federation, run)
        assert set(model) == set(start)
        assert not any(np.array_equal(model[name], start[name]) for name in start)
        for number in (1, 2):
            for member in federation.ledger.cohort(run, number):
                assert member.bytes_up < 2 * sum(array.nbytes for array in start.values())

    played(tmp_path, scenario)
