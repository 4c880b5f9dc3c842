"""Every codec with and without memory, under every strategy: the limit of the uncompressed run.

On quadratics, by the real codecs, memories, client rules and strategies. A combination that a run
may not have is refused when it is submitted.
"""

from functools import cache

import numpy as np
import pytest

from fedloom.protocol.codecs import CODECS, codec
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.compression import scheme
from fedloom.server.planning import spec
from fedloom.strategies import STRATEGIES, registry
from support.compressed import Federation
from support.marks import sampled

ROUNDS = 60
FALLING = {"name": "cosine", "rounds": ROUNDS}
"""Steps of a fixed length do not converge."""
SETTINGS = {
    "fedavg": {},
    "fedavgm": {"server_learning_rate": 0.1},
    "fedadagrad": {"server_learning_rate": 0.5},
    "fedadam": {"server_learning_rate": 0.1, "schedule": FALLING},
    "fedyogi": {"server_learning_rate": 0.1, "schedule": FALLING},
    "fedlamb": {"server_learning_rate": 0.1, "schedule": FALLING},
    "scaffold": {"clients": 3},
    "feddyn": {"alpha": 1.0, "clients": 3},
    "fednova": {},
    "mimelite": {"momentum": 0.5},
    "qfedavg": {"q": 0.1, "server_learning_rate": 3.0},
    "ifca": {"clusters": 2},
}
UPS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {"block": 64},
    "top_k": {"fraction": 0.4},
    "random_k": {"fraction": 0.5},
    "low_rank": {"rank": 4},
    "lossless": {},
}
ENOUGH = {"fedadam": 0.1, "fedyogi": 0.1, "fedlamb": 0.2}
"""Relative distance to the uncompressed limit; more where a step's length is that of the rate."""
OMITTING = {"top_k", "random_k", "low_rank"}
REMEMBERING = {"scaffold", "feddyn"}
BIASED = {("top_k", False), ("low_rank", False)}
"""Without memory what is left out is left out for good: users choose another limit."""


def is_refused(strategy, name, memory):
    """Whether a run may not have it: memory True or False."""
    if name == "random_k" and memory:
        return True  # its memory overshoots
    if strategy == "feddyn" and name in OMITTING:
        return True  # diverges with delays
    return strategy in REMEMBERING and not memory and name != "lossless"


def tables(strategy, **directions):
    weighting = {"weighting": "uniform"} if strategy in {*REMEMBERING, "qfedavg"} else {}
    return {
        "cohort": {"goal": 3},
        "train": {"steps": 2, "learning_rate": 0.1},
        "strategy": {"name": strategy, **SETTINGS[strategy]},
        "compression": directions,
        **weighting,
    }


def built(strategy):
    return registry.strategy(strategy, SETTINGS[strategy])


@cache
def uncompressed(strategy):
    return Federation(built(strategy)).run(ROUNDS)


def lost(strategy, **settings):
    """The distance to the uncompressed run, relative to the way that this one went."""
    expected = uncompressed(strategy)
    found = Federation(built(strategy), **settings).run(ROUNDS)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_every_strategy_and_codec_is_here():
    assert set(SETTINGS) == set(STRATEGIES)
    assert set(UPS) == set(CODECS)


@pytest.mark.parametrize("strategy", SETTINGS)
def test_the_uncompressed_run_goes_a_long_way(strategy):
    """So that a distance to it means something: most of the way from zeros to the optimum."""
    world = Federation(built(strategy))
    optimum = (world.a * world.c).sum(axis=0) / world.a.sum(axis=0)
    away = np.linalg.norm(uncompressed(strategy) - optimum) / np.linalg.norm(optimum)
    assert away < 0.4


@pytest.mark.long
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "no memory"])
@pytest.mark.parametrize(
    ("strategy", "name"), sampled([(strategy, name) for strategy in SETTINGS for name in UPS], 4)
)
def test_compressed_updates_reach_the_limit_or_are_refused(strategy, name, memory):
    up = {"name": name, **UPS[name], "error_feedback": memory}
    if is_refused(strategy, name, memory):
        with pytest.raises(UsageError, match=rf"(error_feedback|{strategy}).*{name}"):
            spec.parse(tables(strategy, up=up))
        return
    assert spec.parse(tables(strategy, up=up)).build_compression() == scheme(up)
    found = lost(strategy, up=scheme(up))
    if (name, memory) in BIASED:
        assert found < 1
    else:
        assert found < ENOUGH.get(strategy, 0.06)


@pytest.mark.long
@pytest.mark.parametrize("name", UPS)
@pytest.mark.parametrize("strategy", SETTINGS)
def test_compressed_models_reach_the_limit_or_are_refused(strategy, name):
    down = {"name": name, **UPS[name]}
    if name == "random_k" or (strategy == "feddyn" and name in OMITTING):
        with pytest.raises(UsageError, match=rf"{name}|{strategy}"):
            spec.parse(tables(strategy, down=down))
        return
    assert spec.parse(tables(strategy, down=down)).build_broadcast() == codec(name, UPS[name])
    assert lost(strategy, down=codec(name, UPS[name])) < ENOUGH.get(strategy, 0.06)


@pytest.mark.parametrize("name", ["int4", "top_k"])
def test_scaffold_needs_the_memory(name):
    """Without it the server's control variate is not the mean of the clients' in the end."""
    up = {"name": name, **UPS[name]}
    assert lost("scaffold", up=scheme({**up, "error_feedback": True})) < 1e-3
    assert lost("scaffold", up=scheme({**up, "error_feedback": False})) > 0.02
    wanted = spec.parse(tables("scaffold", up=up)).build_compression()
    assert wanted.error_feedback


def test_random_k_with_memory_overshoots():
    """With ten times the local steps of above; the scaled form of the same fraction does not."""
    fedavg, up = registry.strategy("fedavg"), codec("random_k", {"fraction": 0.1, "scaled": False})
    plain = Federation(fedavg, steps=30).run(ROUNDS)

    class WithMemory:
        codec, error_feedback = up, True

    with np.errstate(all="ignore"):
        found = Federation(fedavg, steps=30, up=WithMemory()).run(ROUNDS)
    assert np.linalg.norm(found - plain) > np.linalg.norm(plain)
