"""A simulated round is abandoned, counted and measured as on the server."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.training.attacks import ALittleIsEnough
from support.experiments import Nudge, experiment, population

KRUM = {"name": "krum", "num_byzantine": 0}
PRIVATE = {"mechanism": "dp_fedavg", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}


class OneSilent(Nudge):
    """As `Nudge`, but client 0 sends no tensors."""

    def train(self, params, task):
        sent, count, metrics = super().train(params, task)
        return {} if self.number == 0 else sent, count, metrics


def test_a_round_with_too_few_updates_is_abandoned_without_metrics():
    """Krum needs three updates with tensors and gets two: nothing of them is released."""
    described = experiment(
        data=population(sizes=(5, 5, 5)),
        client=OneSilent,
        cohort={"goal": 3, "quorum": 3},
        aggregation=KRUM,
        weighting="uniform",
        rounds=1,
    )
    records = simulate(described, show=False).records
    assert [record.state for record in records] == ["abandoned"] * 3
    assert {record.accepted for record in records} == {3}
    assert [(r.trained, r.examples, r.training, r.spread) for r in records] == [(0, 0, {}, {})] * 3


def only_evaluated(**settings):
    return experiment(
        data=population(sizes=(6, 6), held_out=2),
        cohort={"goal": 2, "quorum": 2},
        rounds=2,
        evaluate_only=True,
        train={},
        **settings,
    )


def test_evaluation_rounds_ignore_the_evaluate_setting():
    """As on devices: `evaluate` applies to training rounds only."""
    (alone, _) = simulate(only_evaluated(evaluate=False), show=False).records
    (beside, _) = simulate(only_evaluated(evaluate=True), show=False).records
    assert alone.evaluation == beside.evaluation != {}


def test_evaluation_rounds_count():
    records = simulate(only_evaluated(), show=False).records
    assert [(record.kind, record.trained) for record in records] == [
        ("evaluate", 1),
        ("evaluate", 2),
    ]


def test_colluders_are_refused_in_private_runs():
    """Colluding attacks need the single updates, which a private run does not store."""
    described = experiment(attack=ALittleIsEnough(fraction=0.2, z=1.0), privacy=PRIVATE)
    with pytest.raises(UsageError, match=r"the attack a_little_is_enough needs each update"):
        simulate(described, show=False)
