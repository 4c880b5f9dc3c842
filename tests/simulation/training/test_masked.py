"""Simulations with masked sums: the bits of unmasked ones, the rounding of few bits, sessions."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.client import Client
from fedloom.protocol.errors import UsageError
from fedloom.simulation.training import attacks, masked_sum
from fedloom.simulation.training.masked_session import sum_in_session
from fedloom.simulation.training.simulator import Simulation, settings_digest
from fedloom.simulation.workers.setup import plan
from fedloom.strategies import Full, Partial, TensorSpec, weight_units
from support.experiments import experiment, population

BOUNDS = {"max_abs": 2.0, "weighting": "examples", "max_weight": 32.0}
SIZES = tuple(np.random.default_rng(1).integers(8, 20, 24).tolist())
FEW = {"group": 16, "min_group": 8}
"""Twenty clients in two sessions of ten."""


def made(*, held_out=3, **settings):
    data = population(SIZES, held_out=held_out)
    return experiment(**{"rounds": 2, "goal": 20, "data": data, **BOUNDS, **settings})


def run(**settings):
    simulation = Simulation(made(**settings))
    try:
        return simulation.digest(), list(simulation.rounds()), simulation
    finally:
        simulation.close()


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ({"name": "scaffold", "clients": 24}, {"name": "fednova"})
        ),
    ],
)
def test_64_bits_give_the_bits_of_unmasked_sums(strategy):
    """For sessions of any size and any number of workers; metrics are means of sums."""
    given = {} if not strategy else {"strategy": strategy}
    if strategy.get("name") == "scaffold":
        given["weighting"] = "uniform"
    if strategy.get("name") == "fednova":
        given["max_abs"] = 64.0  # it sends its number of steps
    _, plain, simulation = run(sum_bits=64, **given)
    wanted = simulation.digest()
    for masking in ({}, FEW, {"group": 10, "min_group": 3}):
        _, masked, simulation = run(masking={"sum_bits": 64, **masking}, **given)
        assert simulation.digest() == wanted
        for mine, its in zip(masked, plain, strict=True):
            assert mine.state == its.state == "committed"
            assert mine.underflow == its.underflow
            assert mine.examples == its.examples
            for name, value in its.evaluation.items():
                assert mine.evaluation[name] == pytest.approx(value, abs=2**-19)


@pytest.mark.parametrize(
    "bits", [24, *(pytest.param(bits, marks=pytest.mark.long) for bits in (16, 32))]
)
def test_the_result_does_not_depend_on_sessions_or_workers(bits):
    """Stochastic rounding is drawn by each client's task, not by its session or worker."""
    digests = set()
    for group, workers in ((17, 1), (20, 1), (32, 1), (17, 2)):  # all need the same step
        masking = {"sum_bits": bits, "precision": 100.0, "min_group": 8, "group": group}
        digests.add(run(masking=masking, workers=workers)[2].digest())
    assert len(digests) == 1
    assert digests != {run()[2].digest()}


def test_fewer_bits_move_the_model_further():
    exact = run()[2].params
    off = []
    for bits in (32, 24, 16):
        found = run(masking={"sum_bits": bits, "precision": 100.0, **FEW})[2].params
        off.append(max(float(np.abs(found[n] - exact[n]).max()) for n in exact))
    assert 0 < off[0] < off[1] < off[2]
    assert off[0] < 1e-4


def test_rounds_have_means_of_the_named_metrics_alone():
    _, [first, *_], _ = run(masking={**FEW, "precision": 1.0, "metrics": {"loss": 10.0}})
    assert set(first.evaluation) == {"loss"}
    assert first.spread == {}
    clamped = run(masking={**FEW, "precision": 1.0, "metrics": {"loss": 0.25}})[1][0]
    assert clamped.evaluation["loss"] == 0.25  # every client's is larger


def test_bytes_are_those_of_words():
    """12 · 8 + 8 + 8 · 4 + 4 values, then the weight, and five words each of both kinds."""
    for bits, size in ((16, 280), (32, 560), (64, 1120)):
        _, [first, *_], _ = run(masking={**FEW, "sum_bits": bits, "precision": 100.0})
        assert first.bytes_up == 20 * (size + 88)


def test_all_members_of_a_session_train_one_width():
    """A width with too few clients sits the round out; its values are those of the others."""
    train = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1, "widths": [1.0, 1.0, 1.0, 0.5]}
    masking = {"sum_bits": 64, "group": 24, "min_group": 8}
    experiment_ = made(goal=24, train=train, masking=masking)
    work, names = experiment_.spec.local_training(), experiment_.population.names
    sizes = Counter(work.width(name) for name in names)
    assert sizes[0.5] < 8 <= sizes[1.0]
    simulation = Simulation(experiment_)
    try:
        records = list(simulation.rounds())
    finally:
        simulation.close()
    assert [record.accepted for record in records] == [sizes[1.0]] * 2 + [24]  # all evaluate
    assert records[0].bytes_up % sizes[1.0] == 0
    assert records[2].bytes_up == 24 * 8 * 5
    both = run(goal=24, train=train, masking={**masking, "min_group": 3})
    assert both[1][0].accepted == 24 if sizes[0.5] >= 3 else sizes[1.0]
    assert both[2].digest() != simulation.digest()
    plain = run(goal=24, train=train, sum_bits=64)[2]
    assert both[2].digest() == plain.digest()


def test_a_round_without_any_session_is_abandoned():
    train = {"epochs": 1, "batch_size": 4, "learning_rate": 0.1, "widths": [1.0, 0.5, 0.25, 0.125]}
    simulation = Simulation(made(train=train, masking={"sum_bits": 64, "group": 20}))
    try:
        first = next(simulation.rounds())
    finally:
        simulation.close()
    assert (first.state, first.accepted, first.bytes_up) == ("abandoned", 0, 0)
    assert "expected at least 16 in sessions of 16 or more with one width" in first.reason


def test_members_of_sessions_are_those_that_the_engine_chooses():
    """Of eleven of a width ten, since 6 and 5 are too few; nobody below the quorum."""
    spec = made(
        train={"epochs": 1, "learning_rate": 0.1, "widths": [1.0, 0.5]},
        masking={"sum_bits": 64, "group": 10, "min_group": 6},
        cohort={"goal": 20, "quorum": 18},
    ).spec
    work = spec.local_training()
    of = {w: [n for n in map(str, range(99)) if work.width(n) == w] for w in (1.0, 0.5)}
    names = of[1.0][:11] + of[0.5][:9]
    task = SimpleNamespace(masking=spec.build_masking(), train=True, settings=work)
    assert masked_sum.ready(task, names, range(20), 18) == set(range(20)) - {10}
    assert masked_sum.ready(task, names, range(20), 20) == set()
    assert masked_sum.ready(task, names, range(16), 10) == set(range(10))


class Partly(Client):
    """Returns one tensor less in every second client."""

    def __init__(self, name):
        self.leaves_out = int(name.split("-")[-1]) % 2

    def train(self, params, task):
        moved = {name: array + np.float32(0.01) for name, array in params.items()}
        if self.leaves_out:
            moved.pop(min(moved))
        return moved, 5, {}


def test_clients_that_send_different_tensors_are_refused():
    with pytest.raises(UsageError, match="coordinates that only some of the members cover"):
        run(held_out=0, client=Partly, masking={"precision": 1.0, **FEW})


def test_an_update_over_a_limit_is_left_out_and_another_client_takes_its_place():
    """As without masks: sums, and the bits of the model, are those of the others."""
    attack = attacks.attack({"name": "scale", "fraction": 0.1, "factor": 1e9})
    plain = run(sum_bits=64, attack=attack)
    masked = run(masking={"sum_bits": 64, **FEW}, attack=attack)
    assert "refused" in plain[1][0].reason
    assert plain[2].digest() == masked[2].digest()
    assert plain[1][0].reason == masked[1][0].reason
    assert masked[1][0].accepted == 20


def test_a_description_has_the_numbers():
    told = plan(made(masking={"precision": 1.0}))
    assert told["sums"] == (
        "32 bits, rounded to steps of 3.815e-06 = 2^-18 of a value times its weight, in sessions "
        "of 16 to 20 devices"
    )
    assert told["  overflow"].startswith("none: the sum of a session is at most")
    assert told["  session of 16"] == "threshold 11, for up to 5 drop-outs and 5 colluding devices"
    assert "648 B" in told["bytes up"]


@pytest.mark.long
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_sessions_with_masks_give_the_same_bits(bits):
    """Real keys, shares, signatures and masks, in two sessions of ten."""
    masking = {"sum_bits": bits, "precision": 100.0, **FEW}
    _, wanted, plain = run(masking=masking)
    _, found, masked = run(masking={**masking, "simulate": "full"})
    assert masked.digest() == plain.digest()
    assert [each.evaluation for each in found] == [each.evaluation for each in wanted]


def test_a_session_gives_the_sum_of_its_members_alone():
    """Whatever stood in the total before; words likewise, below zero too."""
    specs = {("delta", "w"): TensorSpec(shape=(7,), dtype=np.dtype(np.float32))}
    total, members = Partial(specs, 10, narrow=True), {}
    for n, name in enumerate(["eve", "ann", "bob", "dan"]):
        own = Partial(specs, 10, narrow=True)
        values = np.arange(7, dtype=np.float32) * (n - 2)
        own.add_array(("delta", "w"), Full(), weight_units(1.0), values)
        members[name] = own, (n - 3, n)
        total.merge(own)
    wanted = total.sum_block(("delta", "w"), 0, 7)
    arrays, _ = total.arrays()
    arrays["sums.0"][:] = 99
    words = sum_in_session(total, members, sum_bits=32, run="digits", number=1)
    assert total.sum_block(("delta", "w"), 0, 7).tolist() == wanted.tolist()
    assert [(word + 2**63) % 2**64 - 2**63 for word in words] == [-6, 6]


def test_what_a_simulation_cannot_mask_is_refused():
    collude = attacks.attack({"name": "a_little_is_enough", "fraction": 0.1})
    with pytest.raises(UsageError, match=r"needs each"):
        Simulation(made(masking={"precision": 1.0}, attack=collude))


def test_simulations_that_were_begun_before_masking_resume():
    """Their settings have the same digest; masked ones another."""
    plain, masked = made(), made(masking={"precision": 1.0})
    assert settings_digest(plain) != settings_digest(masked)
    full = made(masking={"precision": 1.0, "simulate": "full"})
    assert settings_digest(full) == settings_digest(masked)
