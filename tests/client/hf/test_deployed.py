"""A training script with one line more, as two devices of a real server."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers and peft: make hf")

from transformers import Trainer

from fedloom.cli.common.load_code import load_client
from fedloom.client.agent.training_process import Program
from fedloom.client.hf import HFClient
from support.agents import played, result, submit
from support.tiny_gpt import RATE, adapted, arguments, examples

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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_schedule_follows_the_trainings_of_a_run_that_evaluates_between_them(tmp_path):
    """Rounds 1, 3 and 5 train: linear over 3 rounds of 2 steps, as one training of 6 has it."""
    seen, told = [], []

    class Recording(Trainer):
        def training_step(self, *args, **kwargs):
            seen.append(self.optimizer.param_groups[0]["lr"])
            return super().training_step(*args, **kwargs)

    class Telling(HFClient):
        def train(self, params, task):
            told.append((task.round, task.training_round))
            return super().train(params, task)

        def evaluate(self, params, task):
            told.append((task.round, task.training_round))
            return super().evaluate(params, task)

    args = arguments(tmp_path, lr_scheduler_type="linear")
    held_out = examples(2, 2)
    client = Telling(adapted(), args, examples(4, 1), held_out, trainer_class=Recording, rounds=3)

    async def scenario(federation, agents):
        await agents.start("one", client)
        run = await submit(
            federation, client.initial(), rounds=3, evaluate="after",
            train={"steps": 2, "batch_size": 4, "learning_rate": RATE},
            cohort={"goal": 1, "quorum": 1},
        )  # fmt: skip
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"

    played(tmp_path, scenario)
    np.testing.assert_allclose(seen, [RATE * left / 6 for left in (6, 5, 4, 3, 2, 1)])
    assert told == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
