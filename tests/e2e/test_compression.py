"""Compression on a real server: memory over restarts, differences of models, and fallbacks."""

import json
import logging
import threading

import numpy as np
import pytest

from fedloom.protocol.tensors.container import read_params
from support.agents import Adder, played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((40, 30), np.float32), "b": np.zeros(3, np.float32)}
BOTH = {"up": {"name": "top_k", "fraction": 0.1}, "down": {"name": "int8", "block": 16}}
ROUNDS = {"rounds": 4, "cohort": {"goal": 2, "quorum": 2}, "compression": BOTH}


class Wave(Adder):
    """Adds another pattern in every round."""

    def train(self, params, task):
        step = np.sin(np.arange(1200) * (self.step + task.round)).reshape(40, 30)
        new = {"w": params["w"] + step.astype(np.float32), "b": params["b"] + np.float32(1)}
        return new, 1, {}


class Gated(Wave):
    """Trains once for each permission of the test."""

    def __init__(self, step):
        super().__init__(step)
        self.gate = threading.Semaphore(0)

    def train(self, params, task):
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().train(params, task)


def damage(folder, *, cut):
    """Flip a bit of every model in a client's store, or truncate it."""
    for path in folder.glob("*.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2 | 3] ^= 0x40  # a bit of the exponent
        path.write_bytes(raw[:-100] if cut else raw)


async def honest(federation, agents):
    """Two clients, four rounds, no fault."""
    for name, step in (("ann", 1.0), ("bob", 2.0)):
        await agents.start(name, Wave(step))
    run = await submit(federation, ZEROS, **ROUNDS)
    await federation.ended(run)
    return result(federation, run)["w"].copy()


@pytest.mark.long
def test_a_restart_keeps_clients_models_and_memories(tmp_path):
    """A server stopped between two updates of a round ends with the same bits."""

    async def stopped(federation, agents):
        await agents.start("ann", Wave(1.0))
        await agents.enrol("bob")
        run = await submit(federation, ZEROS, **ROUNDS)
        await agents.start("bob", Wave(2.0))
        await until(lambda: federation.ledger.accepted(run, 2))
        await federation.stop()
        await federation.start()
        await federation.ended(run)
        note = json.loads(federation.ledger.run(run).strategy_state)
        assert len(note["told"]["differences"]) > 1
        held = read_params(federation.contexts.models.path(note["told"]["model"][0]))["w"]
        final = result(federation, run)["w"]
        assert not np.array_equal(held, final)
        # Scales are of blocks of 16 values of a mean of two sparse steps.
        assert np.abs(held - final).max() < 0.02 * np.abs(final).max()
        return final.copy()

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert np.array_equal(played(tmp_path / "a", stopped), played(tmp_path / "b", honest))


@pytest.mark.long
def test_a_client_with_a_damaged_model_downloads_the_whole_model(tmp_path, caplog):
    """After flipped bits or missing bytes; the run's result does not change."""

    async def damaged(federation, agents):
        ann, folder = Gated(1.0), tmp_path / "a" / "bob" / "client-state" / "models"
        await agents.start("ann", ann)
        await agents.start("bob", Wave(2.0))
        run = await submit(federation, ZEROS, **ROUNDS)
        for number in range(1, 5):
            await until(lambda number=number: federation.ledger.accepted(run, number))
            damage(folder, cut=number == 2)  # bob is done, and the next round waits for ann
            ann.gate.release()
        await federation.ended(run)
        return result(federation, run)["w"].copy()

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with caplog.at_level(logging.WARNING):
        got = played(tmp_path / "a", damaged)
    assert caplog.text.count("does not lead to the model") == 3
    caplog.clear()
    assert np.array_equal(got, played(tmp_path / "b", honest))
    assert "does not lead" not in caplog.text
