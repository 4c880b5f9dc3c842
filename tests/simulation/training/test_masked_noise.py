"""Masked simulations with distributed noise: against central noise, with masks, after refusals."""

import math

import numpy as np
import pytest

from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed
from fedloom.simulation.training import attacks, masked_sum
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.workers.setup import plan
from fedloom.strategies.exact.partial import DELTA
from fedloom.strategies.privacy.discrete import fitted
from fedloom.strategies.privacy.release import NoisyMeans, Release
from support.experiments import experiment, population

pytest.importorskip("dp_accounting")

SIZES = tuple(np.random.default_rng(1).integers(8, 20, 24).tolist())
CLIP, NOISE = 0.5, 1.25
PRIVACY = {"mechanism": "distributed", "clip": CLIP, "noise_multiplier": NOISE, "delta": 1e-5}
MASKING = {"group": 16, "min_group": 8}
"""Twenty clients in two sessions of ten."""


def made(masking=None, **settings):
    given = {"rounds": 2, "goal": 20, "data": population(SIZES), "privacy": PRIVACY, **settings}
    return experiment(masking={**MASKING, **(masking or {})}, **given)


def run(masking=None, **settings):
    simulation = Simulation(made(masking, **settings))
    try:
        return list(simulation.rounds()), simulation
    finally:
        simulation.close()


class Summed:
    """Central noise on a round's sum: the streams of its clients added up, in plain numpy."""

    def __init__(self, sigma, seeds, number):
        self.sampler, self.number = fitted(sigma), number
        self.streams = [keyed(key_of_seed(seed)) for seed in seeds]

    def block(self, name, start, stop):
        def source(stream):
            return lambda at, count: stream(f"session/{DELTA}/{name}", self.number, at, count)

        return sum(self.sampler.draw(source(each), start, stop) for each in self.streams)


@pytest.mark.parametrize("bits", [24, 32, 64])
def test_it_is_central_noise_of_the_summed_streams_bit_for_bit(bits, monkeypatch):
    """The noise leaves the updates, and comes back on the sum, by formulas of this test alone."""
    masking = {"sum_bits": bits}
    _, simulation = run(masking, rounds=1)
    wanted = simulation.digest()
    spec, names = simulation.experiment.spec, simulation.experiment.population.names
    size = sum(spec_.size for spec_ in simulation.worker_setup.manifest.specs.values())
    steps = CLIP * (1 + 1e-6) * 2.0 ** spec.exponent() + math.sqrt(size) / 2
    honest = 7 - 3  # of ten: t = floor(20 / 3) + 1, c = 2t - 10 - 1
    sigma = NOISE * steps / math.sqrt(honest)
    chosen = []
    found = masked_sum.sessions
    monkeypatch.setattr(
        masked_sum, "sessions",
        lambda *args: [chosen.extend(job.client for job in jobs) or jobs for jobs in found(*args)],
    )  # fmt: skip
    monkeypatch.setattr(Guard, "share", lambda *_, **__: None)

    def central(_, partial, memory, *, round, step, stream):  # noqa: A002
        assert len(chosen) == 20
        seeds = [task_seed(spec.seed, round, names[client]) for client in chosen]
        return NoisyMeans(partial, 20, Summed(sigma, seeds, round), 20), dict(memory)

    _, plain = run(masking, rounds=1)
    assert plain.digest() != wanted
    chosen.clear()
    monkeypatch.setattr(Release, "means", central)
    assert run(masking, rounds=1)[1].digest() == wanted


def test_the_noise_of_a_round_has_its_variance():
    """Of updates that are clipped to almost nothing: what moves the model is noise alone.

    Two sessions of ten, each member with z · clip / 2 of noise: √5 · z · clip / 20 in a mean.
    """
    table = {**PRIVACY, "clip": 1e-3, "noise_multiplier": 50.0}
    _, simulation = run(rounds=1, privacy=table, train={"epochs": 1, "learning_rate": 1e-9})
    before = {n: v.numpy() for n, v in simulation.experiment.model().state_dict().items()}
    moved = np.concatenate([(simulation.params[n] - before[n]).ravel() for n in before])
    wanted = math.sqrt(5) * 50.0 * 1e-3 / 20
    assert abs(moved.mean()) < 5 * wanted / math.sqrt(moved.size)
    assert abs((moved**2).mean() / wanted**2 - 1) < 5 * math.sqrt(2 / moved.size)


@pytest.mark.long
@pytest.mark.parametrize("bits", [16, 32])
def test_sessions_with_masks_give_the_same_bits(bits):
    wanted = run({"sum_bits": bits})[1].digest()
    assert run({"sum_bits": bits, "simulate": "full"})[1].digest() == wanted


@pytest.mark.long
def test_any_number_of_workers_gives_the_same_bits():
    assert run(workers=2, kernel="resident")[1].digest() == run(kernel="resident")[1].digest()


def test_the_size_of_the_session_decides_the_noise():
    """Unlike without noise, where any split gives the same bits."""
    one, two = ({"group": 32, "min_group": 8}, {"group": 20, "min_group": 8})
    assert run(one)[1].digest() == run(two)[1].digest()  # one session of twenty, either way
    assert run(one)[1].digest() != run()[1].digest()


def test_sessions_are_formed_without_refused_members(monkeypatch):
    """Noise is that of the others' sessions, as on devices, which find out before they are ready.

    A private round takes no other clients instead.
    """
    formed, found = [], masked_sum.sessions
    monkeypatch.setattr(
        masked_sum, "sessions", lambda *args: formed.append(found(*args)) or formed[-1]
    )
    attack = attacks.attack({"name": "scale", "fraction": 0.1, "factor": 1e9})
    records, _ = run(attack=attack, rounds=1)
    assert "2 updates refused" in records[0].reason
    assert records[0].accepted == 18
    assert [[job.members for job in jobs] for jobs in formed[0]] == [[10] * 10] * 2
    assert [[job.members for job in jobs] for jobs in formed[-1]] == [[9] * 9] * 2


def test_a_round_reports_what_was_spent_and_no_metrics():
    records, simulation = run()
    assert [record.epsilon for record in records] == [
        simulation.experiment.spec.privacy_plan().epsilon(n) for n in (1, 2)
    ]
    assert all(not record.evaluation and not record.training for record in records)
    size = sum(s.size for s in simulation.worker_setup.manifest.specs.values())
    assert records[0].bytes_up == 20 * size * 4  # no word beside the values


def test_a_description_has_the_claim_and_the_noise_of_sessions():
    told = plan(made())
    assert "by distributed" in told["privacy"]
    assert "up to 3 of 8 and 5 of 16 of its devices" in told["  against"]
    assert "each adds noise of at least" in told["  session of 16"]


def test_a_model_that_is_too_large_for_few_bits_is_refused():
    """So much noise leaves the clip a few steps, and rounding the values would double it."""
    masking = {"sum_bits": 16, "group": 128, "min_group": 20}
    table = {**PRIVACY, "noise_multiplier": 200.0}
    with pytest.raises(UsageError, match=r"Expected at most .* values in an update with noise"):
        Simulation(made(masking, privacy=table))
