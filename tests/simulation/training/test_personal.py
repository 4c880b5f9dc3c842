"""Tensors kept by each client: compared with explicit gradient descent and a deployment."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedloom.client import Client
from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.updates.header import check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.planning import limits as run_sums
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from fedloom.simulation.wire.harness import over_the_wire
from fedloom.simulation.workers.setup import manifest_of
from fedloom.strategies import Personal
from support.experiments import CLASSES, FEATURES, experiment, population

HEAD = {"keep": ["2.*"]}


def normed():
    """A model with batch normalisation, its weights drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
        )


def described(personal, model=None, **settings):
    """Six clients with three examples held out each, half of them in a round."""
    settings = {"cohort": {"goal": 3, "quorum": 3}, "rounds": 4, **settings}
    made = experiment(
        data=population(held_out=3, sizes=(13, 31, 17, 21, 9, 18)), personal=personal, **settings
    )
    return made if model is None else replace(made, model=model)


def descend(model, names, x, y, steps):
    """Gradient descent of some tensors on all examples at rate 0.1."""
    params = dict(model.named_parameters())
    for _ in range(steps):
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, [params[name] for name in names])
        with torch.no_grad():
            for name, grad in zip(names, grads, strict=True):
                params[name].sub_(0.1 * grad)


@pytest.mark.parametrize("head_epochs", [0, 2])
def test_two_rounds_equal_explicit_gradient_descent_with_kept_heads(head_epochs):
    what = described(
        {**HEAD, "head_epochs": head_epochs},
        cohort={"goal": 6},
        rounds=2,
        train={"epochs": 3, "learning_rate": 0.1},
    )
    data = what.population
    x, y = torch.from_numpy(data.examples.x), torch.from_numpy(data.examples.y)
    body, head = ["0.weight", "0.bias"], ["2.weight", "2.bias"]
    shared = {n: torch.from_numpy(a.copy()) for n, a in parameters(what.model()).items()}
    heads = [{n: shared[n].clone() for n in head} for _ in data.shards]
    for _ in range(2):
        ends = []
        for number, shard in enumerate(data.shards):
            model = what.model()
            model.load_state_dict({**shared, **heads[number]})
            if head_epochs:
                descend(model, head, x[shard], y[shard], head_epochs)
                descend(model, body, x[shard], y[shard], 3)
            else:
                descend(model, body + head, x[shard], y[shard], 3)
            ends.append({n: t.detach().clone() for n, t in model.named_parameters()})
            heads[number] = {n: ends[-1][n] for n in head}
        sizes = torch.tensor([len(shard) for shard in data.shards]).double()
        for name in body:
            stacked = torch.stack([end[name].double() for end in ends])
            mean = (stacked * sizes.reshape(-1, *[1] * shared[name].ndim)).sum(0) / sizes.sum()
            shared[name] = mean.float()
    result = simulate(what, show=False)
    for name, value in shared.items():
        np.testing.assert_allclose(result.params[name], value.numpy(), rtol=0, atol=2e-6)
    right = total = 0
    for mine, held_out in zip(heads, data.held_out_shards, strict=True):
        model = what.model()
        model.load_state_dict({**shared, **mine})
        right += int((model(x[held_out]).argmax(1) == y[held_out]).sum())
        total += len(held_out)
    assert result.records[-1].evaluation["accuracy"] == pytest.approx(right / total)


def test_the_servers_copy_of_kept_tensors_does_not_change():
    """New clients start from it."""
    what = described(HEAD)
    result, start = simulate(what, show=False), parameters(what.model())
    for name, value in start.items():
        assert (result.params[name].tobytes() == value.tobytes()) == name.startswith("2.")


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("personal", "model"),
    [({"keep": ["2.*"], "head_epochs": 1}, None), ({"keep": ["1.*"]}, normed)],
    ids=["fedrep", "fedbn"],
)
def test_over_the_wire_gives_the_same_bits(personal, model):
    """Devices train and evaluate with their kept tensors, like the simulation."""
    what = described(personal, model)
    here = simulate(what, show=False)
    there = over_the_wire(what, show=False)
    assert there.digest == here.digest
    assert [r.evaluation for r in there.records] == [r.evaluation for r in here.records]
    assert there.records[-1].kind == "evaluate"
    assert here.digest != simulate(described({}, model), show=False).digest


@pytest.mark.long
def test_workers_and_interruptions_change_no_bit(tmp_path):
    digests = set()
    for workers in (1, 2):
        whole = Simulation(described({"keep": ["1.*"]}, normed, workers=workers))
        list(whole.rounds())
        digests.add(whole.digest())
        whole.close()
    path = tmp_path / "checkpoint.safetensors"
    first = Simulation(described({"keep": ["1.*"]}, normed), path)
    rounds = first.rounds()
    next(rounds), next(rounds)
    first.save()
    first.close()
    second = Simulation(described({"keep": ["1.*"]}, normed), path, resume=True)
    assert len(list(second.rounds())) == 3
    digests.add(second.digest())
    second.close()
    assert len(digests) == 1


@pytest.mark.long
@pytest.mark.parametrize("personal", [HEAD, {**HEAD, "head_epochs": 1}])
def test_the_deployed_client_gives_the_same_bits(personal):
    """TorchClient's own code and the resident kernel's."""
    what = described(personal, kernel="resident", rule={"name": "fedprox", "mu": 0.1})
    data = what.population
    x, y = torch.from_numpy(data.examples.x), torch.from_numpy(data.examples.y)

    def client(name):
        number = data.names.index(name)
        mine, held_out = data.shards[number], data.held_out_shards[number]
        return TorchClient(
            what.model(),
            (x[mine], y[mine]),
            functional.cross_entropy,
            evaluate=(x[held_out], y[held_out]),
        )

    here, there = simulate(what, show=False), simulate(replace(what, client=client), show=False)
    assert there.digest == here.digest
    assert [r.evaluation for r in there.records] == [r.evaluation for r in here.records]


class Counter(Client):
    """Adds one to every tensor, and reports the received bias of the head."""

    def __init__(self, name):
        del name

    def train(self, params, task):
        del task
        found = float(params["2.bias"][0])
        return {n: v + np.float32(1) for n, v in params.items()}, 1, {"found": found}


def test_a_users_own_client_gets_its_kept_tensors():
    what = described(HEAD, client=Counter, rounds=6, evaluate=False, metrics={"per_client": True})
    start = float(parameters(what.model())["2.bias"][0])
    seen = {}
    for record in simulate(what, show=False).records:
        for name, told in record.spread["training"]["clients"].items():
            assert told["values"]["found"] == pytest.approx(start + seen.get(name, 0))
            seen[name] = seen.get(name, 0) + 1
    assert max(seen.values()) > 1


def test_the_server_refuses_kept_tensors():
    what = described(HEAD)
    model = what.model()
    manifest = manifest_of(model, parameters(model))
    limits = run_sums.limits(what.spec, manifest)
    header = fleet_pb2.UpdateHeader(size_bytes=100, weight=1.0)
    header.training.num_examples = 1
    header.parts.add(group="delta", tensor="0.bias", values="a").full.SetInParent()
    assert len(check_header(header, limits, manifest)) == 1
    header.parts.add(group="delta", tensor="2.bias", values="b").full.SetInParent()
    with pytest.raises(Refusal, match="leaves with its clients") as refused:
        check_header(header, limits, manifest)
    assert refused.value.code is Code.UNKNOWN_TENSOR


@pytest.mark.parametrize(
    ("personal", "message"),
    [
        ({"keep": ["3.*"]}, r"'3\.\*', which names none"),
        ({"keep": ["*"]}, "keeps all"),
        ({"keep": "2.*"}, r"personal\.keep as a list of texts"),
        ({"keep": [], "head_epochs": 1}, "name the head"),
        ({"kept": ["2.*"]}, r"Unknown setting 'personal\.kept'"),
    ],
)
def test_invalid_personal_settings_are_refused(personal, message):
    with pytest.raises(UsageError, match=message):
        simulate(described(personal), show=False)


@pytest.mark.long
def test_kept_tensors_work_with_buffers(tmp_path):
    cohort = {"mode": "buffered", "goal": 2, "concurrency": 4}

    def digest(rounds=None, **how):
        settings = {"rounds": 5, "cohort": cohort, "workers": how.pop("workers", 1)}
        simulation = Simulation(described(HEAD, **settings), *how.pop("path", ()), **how)
        done = [record.round for record in islice(simulation.rounds(), rounds)]
        simulation.save()
        simulation.close()
        return done[-1], simulation.digest()

    path = (tmp_path / "checkpoint",)
    assert digest(rounds=2, path=path)[0] == 2
    whole = digest()
    assert whole[0] == 6  # the last one evaluates
    assert digest(path=path, resume=True) == digest(workers=2) == whole


def test_kernels_that_send_every_tensor_are_refused():
    """`auto` selects another."""
    with pytest.raises(
        UsageError, match=r"'fused' cannot train .*: fused does not support personal\.keep"
    ):
        simulate(described(HEAD, kernel="fused"), show=False)
    assert simulate(described(HEAD, rounds=1), show=False).engine.startswith("resident")
    assert simulate(described({}, rounds=1), show=False).engine.startswith("fused")


def test_patterns_match_whole_names_case_sensitively():
    """`bn.*` is not `body.bn.*`."""
    names = ["body.bn.weight", "bn.weight", "BN.weight"]
    assert Personal(keep=("bn.*",)).kept(names) == {"bn.weight"}
    assert Personal(keep=("*bn.*",)).kept(names) == {"bn.weight", "body.bn.weight"}
