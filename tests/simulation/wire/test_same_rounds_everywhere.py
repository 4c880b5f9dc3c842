"""A simulation and a deployment end with the same model, also after unusual rounds.

Each registered part of a run plays the same unusual rounds twice: in a simulation, and on a real
server with six agents, which all cases share. The training code is the same with one exception: a
failing client raises on a device, and sends values that are not finite in a simulation, whose
training code must not raise; in an abandoned round it sends them from a device, too. In the
situation "a sample" half of the clients take part in each round, and both sides train with the
simulation's resident kernel. Bytes up and down are those of the server's ledger.
"""

import os
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Client, SliceOf
from fedloom.client.torch import TorchClient
from fedloom.protocol.codecs import CODECS
from fedloom.protocol.errors import UsageError
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.output.history import spread_of
from fedloom.simulation.training.simulator import Simulation
from fedloom.strategies import registry
from fedloom.strategies.personal.settings import NAMES as PERSONAL
from fedloom.strategies.privacy.settings import Mechanism
from support import parts
from support.deployment import Deployment, kernel_client
from support.experiments import experiment, population

ROUNDS = 3
UNUSUAL = 2
"""The round in which something happens; the one before it fills the memories of both sides."""
PRIVATE = parts.parts()["privacy", "dp_fedavg"]
PARTS = {
    **{key: tables for key, tables in parts.parts().items() if key[0] != "selection"},
    ("privacy", "adaptive clip"): {
        **PRIVATE,
        "privacy": {**PRIVATE["privacy"], "clip_quantile": 0.5},
    },
}
TRAIN = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
FAST = {"compute_examples_per_s": 1000.0, "download_mbit_s": 100.0, "upload_mbit_s": 100.0}
TOGETHER = {
    ("together", "memories"): {
        "compression": {"up": {"name": "low_rank", "rank": 1}, "down": {"name": "int8"}},
        "strategy": {"name": "scaffold", "clients": 6},
        "weighting": "uniform",
    },
    ("together", "robust and encoded"): {
        "aggregation": {"name": "centered_clipping"},
        "compression": {"up": {"name": "int8"}},
    },
    ("together", "groups and kept tensors"): {
        "strategy": {"name": "ifca", "clusters": 2},
        "personal": {"name": "shared", "keep": ["2.*"]},
    },
    ("together", "partial work"): {
        "train": {
            **TRAIN, "only": ["?.weight", "2.bias"], "widths": [1.0, 0.5],
            "tensor_share": 0.7, "patience": 1,
        },
    },
    ("together", "clipped steps"): {
        "train": {"steps": 3, "global_batch_size": 12, "learning_rate": 0.1, "clip_norm": 0.2},
        "rule": {"name": "fedprox", "mu": 0.1},
    },
    ("together", "a head"): {"train": {**TRAIN, "only": ["2.*"]}},
    ("together", "narrow clients"): {"train": {**TRAIN, "widths": [1.0, 0.5, 0.25]}},
    ("together", "drawn tensors"): {"train": {**TRAIN, "tensor_share": 0.4}},
    ("together", "kept tensors, models both ways encoded"): {
        "personal": {"name": "shared", "keep": ["2.*"], "head_epochs": 2},
        "compression": {"up": {"name": "int4", "block": 16}, "down": {"name": "fp16"}},
    },
    ("together", "three models"): {"strategy": {"name": "ifca", "clusters": 3}},
    ("together", "a narrow sum"): {
        "sum_bits": 16, "precision": 0.01, "max_abs": 2.0, "weighting": "uniform",
        "train": {**TRAIN, "tensor_share": 0.7},
    },
    ("together", "drawn by coins"): {
        **PRIVATE,
        "cohort": {"goal": 2, "candidates": 6, "deadline_s": 3600.0},
        "privacy": {**PRIVATE["privacy"], "sampling": "poisson", "population": 5},
    },
}  # fmt: skip
"""Parts that meet in one run; tried with a sample of the clients."""
CHOOSY = {
    "power_of_choice": {"choices": 2.0},
    # No device is slower than this, so real durations draw the cohorts of virtual ones.
    "oort": {"preferred_s": 1e6, "exploration": 0.4},
}
POLICIES = {
    (kind, name): {"selection": {**tables["selection"], **CHOOSY.get(name, {})}, "rounds": 6}
    for (kind, name), tables in parts.parts().items()
    if kind == "selection"
}
"""Selection policies; tried with a sample of the clients, for rounds that follow observations."""
SAMPLE = "a sample"
SITUATIONS = (
    "no tensors", "abandoned", "partial coverage", "evaluation only", "a failure", SAMPLE,
)  # fmt: skip
FAILING = {"abandoned": parts.NAMES[2:4], "a failure": parts.NAMES[2:3]}


class Unusual(Client):
    """A client of PyTorch that behaves unusually in one round.

    Args:
        inner: trains.
        name: of the client.
        situation: its behaviour.
        raises: whether a failure raises, as on a device.
    """

    def __init__(self, inner, name, situation, *, raises):
        self.inner = inner
        self.name = name
        self.situation = situation
        self.raises = raises

    def train(self, params, task):
        new, examples, metrics = self.inner.train(params, task)
        new = {name: np.array(value) for name, value in new.items()}
        metrics = {**metrics, "label": float(int(self.name[-1]) % 2)}
        if task.round == UNUSUAL:
            new = self._changed(new)
        return new, examples, metrics

    def evaluate(self, params, task):
        return self.inner.evaluate(params, task)

    def _changed(self, new):
        if self.situation == "no tensors":
            return {}
        if self.name in FAILING.get(self.situation, ()):
            if self.raises:
                raise RuntimeError("this client fails here")
            return {name: np.full_like(value, np.nan) for name, value in new.items()}
        if self.situation == "partial coverage":
            return _part_of(new, int(self.name[-1]))
        return new


def _part_of(new, number):
    """Some of the tensors, or the first rows of each."""
    if number % 3 == 0:
        return new
    if number % 3 == 1:
        return {name: value for name, value in new.items() if name.endswith("weight")}
    return {
        name: SliceOf(value[:2], ((0, 2), *((0, n) for n in value.shape[1:])))
        for name, value in new.items()
    }


def client(name, *, data, situation, raises):
    """A new client over its shard, for each task."""
    number = data.names.index(name)
    torch.manual_seed(0)
    inner = TorchClient(
        nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)),
        _pairs(data, data.shards[number]),
        nn.functional.cross_entropy,
        evaluate=_pairs(data, data.held_out_shards[number]),
    )
    return Unusual(inner, name, situation, raises=raises)


def _pairs(data, indices):
    return torch.from_numpy(data.examples.x[indices]), torch.from_numpy(data.examples.y[indices])


def described(part, situation):
    """The experiment of a case."""
    tables = {**PARTS, **TOGETHER, **POLICIES}[part]
    table = tables.get("strategy", {"name": "fedavg"})
    schedule = {"warmup_rounds": 2} if situation == "no tensors" else {}
    sample = situation == SAMPLE
    size = {"goal": 6, "quorum": 5}
    if sample:
        number = 5 if part[0] == "aggregation" else 3  # Krum needs five
        size = {"goal": number, "quorum": number}
    values = {
        "cohort": {**size, "deadline_s": 3600.0},
        "rounds": ROUNDS + sample,  # some clients return to their memory
        "evaluate": sample or situation == "partial coverage",
        "evaluate_only": situation == "evaluation only",
        **tables,
        "strategy": {**table, "schedule": schedule} if schedule else table,
    }
    data = population(held_out=3, sizes=(13, 31, 17, 21, 9, 18))
    if sample:
        timed = part == ("selection", "deadline")  # which a simulation needs devices for
        devices = Devices.build(FAST, len(data), 0) if timed else None
        return experiment(data=data, kernel="resident", devices=devices, **values)
    make = partial(client, data=data, situation=situation, raises=False)
    return experiment(data=data, client=make, **values)


def deployed(made, name):
    """The client of a device in an experiment."""
    if made.client is None:
        return kernel_client(made, name)
    raises = made.client.keywords["situation"] == "a failure"
    return made.client.func(name, **made.client.keywords | {"raises": raises})


def simulated(made):
    """The model's digest and the records of a simulation."""
    simulation = Simulation(made)
    try:
        records = list(simulation.rounds())
        return simulation.digest(), records
    finally:
        simulation.close()


@pytest.fixture(scope="module")
def deployment(runner, tmp_path_factory):
    """A server and six agents, shared by all cases."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    runner.run(deployment.start())
    yield deployment
    runner.run(deployment.stop())


QUICK = {("strategy", "scaffold"), ("together", "memories")}
"""The parts of which every test run tries a sample; all cases take minutes."""


def _case(part, situation):
    marks = () if part in QUICK and situation == SAMPLE else pytest.mark.long
    return pytest.param(
        part, situation, id="-".join((*part, situation)).replace(" ", "_"), marks=marks
    )


def _tried(number):
    """A sample for every part, and for every second one another situation, in turn.

    All with `make matrix`.
    """
    if os.environ.get("FEDLOOM_TEST_MATRIX") == "1":
        return SITUATIONS
    others = SITUATIONS[:-1]
    return (SAMPLE,) if number % 2 else (others[number % 5], SAMPLE)


CASES = [
    _case(part, situation)
    for number, part in enumerate(PARTS)
    for situation in _tried(number)
    if (part[0], situation) != ("privacy", "evaluation only")  # refused: metrics are not private
] + [_case(part, SAMPLE) for part in (*TOGETHER, *POLICIES)]


@pytest.mark.e2e
@pytest.mark.parametrize(("part", "situation"), CASES)
def test_a_simulation_and_a_deployment_end_with_the_same_model(part, situation, deployment, runner):
    """Model, states of rounds, evaluation and bytes are the same to the last bit."""
    made = described(part, situation)
    if situation == "partial coverage" and needs_whole_tensors(made.spec):
        refused(made, deployment, runner)
        return
    digest, records = simulated(made)
    run, rounds = runner.run(deployment.play(made, deployed))
    assert [r.state for r in rounds] == [r.state for r in records]
    # A round that is given up counts for nothing, however many updates came before.
    assert [r.accepted for r in rounds if r.state == "committed"] == [
        r.accepted for r in records if r.state == "committed"
    ]
    assert measured(r.evaluation for r in rounds) == [r.evaluation for r in records]
    assert measured(r.training for r in rounds) == [r.training for r in records]
    assert [spread_of(r.training or {}, r.evaluation or {}) for r in rounds] == [
        r.spread for r in records
    ]
    assert [examples(r.training) for r in rounds] == [r.examples for r in records]
    assert [(r.privacy or {}).get("epsilon") for r in rounds] == [r.epsilon for r in records]
    assert [r.underflow for r in rounds] == [r.underflow for r in records]
    assert run.model == digest
    if situation != "a failure":  # whose update comes in a simulation, and not from a device
        same_traffic(rounds, records)
    happened(situation, records)


def same_traffic(rounds, records):
    """Check the bytes of each round against those that the server counted."""
    counted = [r.summary for r in rounds]
    assert [c["bytes_down"] for c in counted] == [r.bytes_down for r in records]
    assert [c["bytes_up"] for c in counted] == [r.bytes_up for r in records]


def needs_whole_tensors(spec):
    """Whether a client rule or kept tensors refuse parts of tensors."""
    return not spec.build_strategy().rule.is_elementary or bool(spec.build_personal().keep)


def refused(made, deployment, runner):
    """Check that simulation and device both refuse a part of a tensor."""
    with pytest.raises(UsageError, match="whole"):
        simulated(made)
    _, rounds = runner.run(deployment.play(made, deployed))
    assert [r.state for r in rounds][:UNUSUAL] == ["committed", "abandoned"]


def measured(metrics):
    """The means of the clients' metrics, round by round."""
    return [(of_round or {}).get("values", {}) for of_round in metrics]


def examples(metrics):
    """The number of examples on which the clients of a round trained."""
    return (metrics or {}).get("num_examples", 0)


def happened(situation, records):
    """Check that the rounds were as unusual as intended."""
    unusual = records[UNUSUAL - 1]
    match situation:
        case "abandoned":
            assert (unusual.state, unusual.accepted) == ("abandoned", 4)
        case "a failure":
            assert (unusual.state, unusual.accepted) == ("committed", 5)
        case "evaluation only":
            assert {r.kind for r in records} == {"evaluate"}
        case "a sample":
            assert unusual.state == "committed"
            assert unusual.accepted in {1, 3, 5}  # 1 was drawn by coins
        case _:
            assert (unusual.state, unusual.accepted) == ("committed", 6)


@pytest.mark.long
def test_policies_select_different_clients():
    """Each ends with a model of its own, so that the comparison above tells them apart."""
    assert len({simulated(described(part, SAMPLE))[0] for part in POLICIES}) == len(POLICIES)


def test_every_registered_part_has_a_case():
    """Every registered part is tried: selection with a sample, others in each situation."""
    known = {
        "strategy": registry.STRATEGIES,
        "rule": registry.CLIENT_RULES,
        "aggregation": registry.AGGREGATIONS,
        "selection": registry.SELECTIONS,
        "codec": CODECS,
        "codec down": set(CODECS) - {"random_k"},
        "personal": PERSONAL,
        "privacy": set(get_args(Mechanism)) - {"distributed"},  # devices never repeat its noise
    }
    expected = {(kind, name) for kind, names in known.items() for name in names}
    assert set(parts.parts()) == expected
    assert expected <= {*PARTS, *POLICIES}
