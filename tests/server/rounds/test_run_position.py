"""What the draw of a round knows of the masking sessions before it."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.protocol.manifest import Manifest
from fedloom.server.engine import RoundKind
from fedloom.server.engine.conduct import ROUNDS, Conduct, PastSession
from fedloom.server.planning.spec import parse
from fedloom.server.rounds.run_position import Position
from fedloom.strategies import TensorSpec
from support.masked_rounds import MASKED, NAMES

PRIVATE = {"mechanism": "distributed", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}


def position(**settings):
    row = SimpleNamespace(
        id="digits-1", spec=parse(MASKED | settings).as_dict(), model="m", strategy_state=None,
        goals=None,
    )  # fmt: skip
    stream = SimpleNamespace(stream=lambda *_: None)
    specs = {"w": TensorSpec(shape=(4,), dtype=np.dtype(np.float32))}
    manifest = Manifest(dtypes={"w": "F32"}, specs=specs, size_bytes=100)
    return Position(row, manifest, SimpleNamespace(noise=stream))


def left_by(client, numbers):
    """A session of each round that this client left."""
    return [
        PastSession(
            round=number, masked=frozenset(NAMES) - {client}, dropped=frozenset({client}),
            summed=True, implausible=False,
        )
        for number in numbers
    ]  # fmt: skip


def remembered(found, past):
    for each in past:
        found.remember([each])
    return found.plan(past[-1].round + 1, RoundKind.TRAIN, 0, {})


def test_who_leaves_sessions_is_drawn_after_the_others():
    """And the draw is what it was where nobody did."""
    found, clean = position(), position()
    plan = remembered(found, left_by("c", [1, 2, 3]))
    assert plan.conduct == Conduct(dropped={"c": 3})
    assert found.select(plan)(list(NAMES), 8)[-1] == "c"
    rest = [name for name in NAMES if name != "c"]
    usual = clean.select(clean.plan(4, RoundKind.TRAIN, 0, {}))
    assert found.select(plan)(rest, 3) == usual(rest, 3)


def test_private_runs_draw_all_clients_alike():
    """Their claims assume it."""
    plan = remembered(position(privacy=PRIVATE), left_by("c", [1, 2, 3]))
    assert plan.conduct == Conduct()


@pytest.mark.parametrize("rounds", [ROUNDS, ROUNDS + 30])
def test_a_run_remembers_its_latest_rounds(rounds):
    found = position()
    plan = remembered(found, left_by("c", range(1, rounds + 1)))
    assert plan.conduct.dropped == {"c": ROUNDS}
    assert len(found._sessions) == ROUNDS
