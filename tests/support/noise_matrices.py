"""The matrices of correlated noise, from the code that draws it, as an oracle for claims."""

import math

import numpy as np

from fedloom.strategies import TensorSpec
from fedloom.strategies.privacy import Participations
from fedloom.strategies.privacy.banded_noise import RoundNoise, add_round
from fedloom.strategies.privacy.discrete import sampler
from fedloom.strategies.privacy.release import _grow
from support.streams import hashed

LARGE = 2**28


def mixing_of_trees(rounds, every):
    """The noise of a round as a row: the sign of each node, one column for each."""
    mixing, memory, number_of = np.zeros((rounds, rounds)), {}, {}
    for step in range(rounds):
        nodes, memory = _grow(memory, step % every, step, f"{step:064x}")
        for sign, level, number, _ in nodes:
            place = number_of.setdefault((level, number), len(number_of))
            mixing[step, place] = sign
    assert len(number_of) == rounds
    return mixing


def sensitivity_of_trees(rounds, every, most=None):
    """The largest norm of a client's unit updates in units of the nodes' noise.

    The outputs are x + W n with one normal n for each node: a client in the rounds of e moves them
    by W⁻¹ e, once in each tree, and in `most` trees if that is set.
    """
    moved = np.linalg.inv(mixing_of_trees(rounds, every))
    trees = [
        max((moved[:, at] ** 2).sum() for at in range(start, min(start + every, rounds)))
        for start in range(0, rounds, every)
    ]
    return math.sqrt(sum(sorted(trees, reverse=True)[:most]))


def column_of_bands(factor, rounds):
    """How much of an update in round 0 is in the centre of each round's noise: float64 [rounds].

    The real noise of a round, with and without a large update in one earlier round.
    """
    stream, specs = hashed("column"), {"w": TensorSpec(shape=(4,), dtype=np.dtype(np.float32))}

    def next_noise(lag):
        memory = {}
        for number in range(1, factor.bands):
            kept = RoundNoise(number, f"{number:064x}", {}, stream)
            memory[f"note/{number}"] = np.frombuffer(bytes.fromhex(kept.digest), np.uint8)
            value = LARGE if factor.bands - number == lag else 0
            memory[f"noise/{number}/w"] = kept.sealed("w", 0, np.full(4, -value))
        number, fine = factor.bands, sampler(2.0**24)
        kept, _ = add_round(memory, factor, fine, specs, round=number, digest="d", stream=stream)
        return int(kept.block("w", 0, 1)[0])

    column = np.zeros(rounds)
    column[0] = 1.0
    for lag in range(1, min(rounds, factor.bands + 1)):
        column[lag] = (next_noise(lag) - next_noise(0)) / LARGE
    return column


def sensitivity_of_bands(settings, factor, rounds):
    """The largest norm of C e over all rounds e that the server lets a client be in."""
    column = column_of_bands(factor, rounds)
    reached = [(Participations(), np.zeros(rounds))]
    for trained in range(1, rounds + 1):
        grown = []
        for seen, output in reached:
            grown.append((seen.after(settings, [], trained), output))
            if "a" not in seen.excluded:
                joined = output.copy()
                joined[trained - 1 :] += column[: rounds - trained + 1]
                grown.append((seen.after(settings, ["a"], trained), joined))
        reached = grown
    return max(math.sqrt(output @ output) for _, output in reached)
