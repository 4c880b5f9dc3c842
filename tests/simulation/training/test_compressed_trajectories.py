"""Every codec with every client rule: the papers' trajectories in NumPy on what really arrives.

The simulation runs first, and what its codec makes of each update is recorded. In the papers'
formulas, a client then sends its values and what was lost before (error feedback); what arrives
must follow the codec's definition, and is what the server's formulas get.
"""

import numpy as np
import pytest

from fedloom.protocol.codecs import CODECS
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import task_seed
from fedloom.simulation.api import simulate
from fedloom.simulation.workers import worker
from support.marks import sampled
from support.trajectories import ROUNDS, RULES, Problem, World, experiment

SHAPE = (8, 12)
SIZE = 96
_RNG = np.random.default_rng(11)
PROBLEM = Problem(
    a=_RNG.uniform(0.5, 2.0, (4, *SHAPE)),
    c=_RNG.uniform(-0.2, 0.2, (4, *SHAPE)),
    start=_RNG.uniform(-0.05, 0.05, SHAPE).astype(np.float32),
)
"""Small values, so that the clients' float32 stays far below the tolerance."""
NOISE = 1e-5
"""Relative to the largest value: what rounding in the clients' float32 may have changed."""
OMITTING = ("top_k", "random_k", "low_rank")


def near(got, wanted, scale, within=0.0):
    return np.all(np.abs(got - wanted) <= within + NOISE * scale)


def rounded(bits):
    """To so many significant bits, or a value beside: bf16 rounds at random."""

    def law(values, got):
        assert near(got, values, np.abs(values).max(), np.abs(values) * 2.0**-bits + 2.0**-25)

    return law


def quantised(levels, block):
    def law(values, got):
        flat, came = values.ravel(), got.ravel()
        for start in range(0, SIZE, block):
            part, there = flat[start : start + block], came[start : start + block]
            scale = np.abs(part).max() / levels
            assert near(there, part, np.abs(part).max(), scale)
            codes = there / scale
            assert near(codes, np.rint(codes), levels * 100)

    return law


def largest(count):
    def law(values, got):
        sent = got != 0
        assert sent.sum() <= count
        scale = np.abs(values).max()
        assert near(got[sent], values[sent], scale)
        left = np.abs(values[~sent]).max()
        assert sent.sum() == count or left <= NOISE * scale
        assert left <= np.abs(values[sent]).min() + NOISE * scale

    return law


def one_of_each_run(count):
    def law(values, got):
        flat, came = values.ravel(), got.ravel()
        for i in range(count):
            run = slice(i * SIZE // count, (i + 1) * SIZE // count)
            length = run.stop - run.start
            (places,) = np.nonzero(came[run])
            assert len(places) <= 1
            wanted = flat[run][places] * length
            assert near(came[run][places], wanted, np.abs(flat).max() * length)

    return law


def projected(rank):
    """PowerSGD's left factor is orthonormal: what arrives is the values' projection on it."""

    def law(values, got):
        left, sizes, _ = np.linalg.svd(got)
        assert np.all(sizes[rank:] <= NOISE * 10 * sizes[0])
        basis = left[:, :rank]
        assert near(got, basis @ (basis.T @ values), 10 * np.abs(values).max())

    return law


CODEC = {
    "fp16": ({}, rounded(11)),
    "bf16": ({}, rounded(7)),
    "int8": ({"block": 16}, quantised(127, 16)),
    "int4": ({"block": 32}, quantised(7, 32)),
    "top_k": ({"fraction": 0.25}, largest(24)),
    "random_k": ({"fraction": 0.25}, one_of_each_run(24)),
    "low_rank": ({"rank": 2}, projected(2)),
    "lossless": ({}, rounded(24)),
}


class Wire:
    """What arrives at the server, checked against the codec's definition."""

    def __init__(self, codec, *, feedback):
        self.law = CODEC[codec][1]
        self.feedback = feedback
        self.came = {}
        self.lost = {}
        self.number = 0

    def __call__(self, i, values, group):
        if self.feedback:
            values = values + self.lost.get((i, group), 0.0)
        seed = task_seed(0, self.number, f"client-{i}")
        got = self.came[seed, group].astype(np.float64)
        self.law(values, got)
        self.lost[i, group] = values - got
        return got


def trajectory(monkeypatch, codec, rule, optimizer, feedback):
    """The simulation's result and the papers' world after the same rounds."""
    table = {"name": codec, **CODEC[codec][0], "error_feedback": feedback}
    made = experiment(PROBLEM, rule, optimizer, compression={"up": table})
    wire, compress = Wire(codec, feedback=feedback), worker.compress

    def recorded(scheme, parts, manifest, seed, memory):
        done = compress(scheme, parts, manifest, seed, memory)
        for part in done.parts:
            assert part.coded is not None
            wire.came[seed, part.group] = part.coded.decode().reshape(SHAPE)
        return done

    monkeypatch.setattr(worker, "compress", recorded)
    result = simulate(made, show=False)
    trained = [record for record in result.records if record.kind == "train"]
    assert [(record.round, record.accepted) for record in trained] == [
        (number, 4) for number in range(1, ROUNDS + 1)
    ]
    names = made.population.names
    wire.came = {
        (task_seed(0, number, f"client-{i}"), group): wire.came[seed, group]
        for number in range(1, ROUNDS + 1)
        for i, name in enumerate(names)
        for seed, group in wire.came
        if seed == task_seed(made.spec.seed, number, name)
    }
    world = World(PROBLEM, optimizer, wire)
    for number in range(1, ROUNDS + 1):
        wire.number = number
        getattr(world, rule)()
    return result, world


def is_refused(codec, rule, feedback):
    if feedback and codec == "random_k":
        return True
    if rule == "feddyn" and codec in OMITTING:
        return True
    return rule in ("scaffold", "feddyn") and not (feedback or codec == "lossless")


def check(monkeypatch, codec, rule, optimizer, *, feedback):
    result, world = trajectory(monkeypatch, codec, rule, optimizer, feedback)
    np.testing.assert_allclose(result.params["w"], world.w, rtol=0, atol=1e-6)
    assert np.abs(world.w - PROBLEM.start).max() > 0.01


def test_every_codec_is_here():
    assert set(CODEC) == set(CODECS)


CASES = [(codec, rule, feedback) for codec in CODEC for rule in RULES for feedback in (True, False)]
ACCEPTED = [case for case in CASES if not is_refused(*case)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("codec", "rule", "feedback"),
    [case for case in ACCEPTED if case[1] in ("fedavg", "scaffold", "ifca")],
)
def test_the_trajectory_is_the_papers(monkeypatch, codec, rule, feedback):
    """Five rounds, to 1e-6, by plain gradient descent."""
    check(monkeypatch, codec, rule, "sgd", feedback=feedback)


@pytest.mark.long
@pytest.mark.parametrize(
    ("codec", "rule", "feedback", "optimizer"),
    sampled([(*case, optimizer) for case in ACCEPTED for optimizer in RULES[case[1]]], 7),
)
def test_the_trajectory_is_the_papers_with_every_optimizer(
    monkeypatch, codec, rule, feedback, optimizer
):
    """Those that the rule refuses are in test_local_optimizers."""
    check(monkeypatch, codec, rule, optimizer, feedback=feedback)


@pytest.mark.parametrize(
    ("codec", "rule", "feedback"), [case for case in CASES if is_refused(*case)]
)
def test_another_combination_is_refused_with_both_names(codec, rule, feedback):
    """When the run's settings are read."""
    table = {"name": codec, **CODEC[codec][0], "error_feedback": feedback}
    with pytest.raises(UsageError, match=rf"(error_feedback|{rule}).*{codec}"):
        experiment(PROBLEM, rule, "sgd", compression={"up": table})
