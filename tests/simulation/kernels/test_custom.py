"""The user's own clients run unchanged in a simulation, and their results are checked."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.client import Client, Kind, MaskOf, SliceOf, Update, Weighting
from fedloom.client.torch import TorchClient
from fedloom.protocol.errors import UsageError
from fedloom.simulation.kernels.base import ClientJob, Measurement
from fedloom.simulation.kernels.custom import ClientKernel
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import Mask, Slice
from support import kernels

NAMES = ["a", "b", "c", "d"]
PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}
for _value in PARAMS.values():
    _value.flags.writeable = False


class Spoiling(Client):
    """Changes the model that it receives, and records its tasks."""

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def train(self, params, task):
        self.seen.append((self.name, task))
        params["w"] += 1
        return params, 3, {"loss": np.float32(0.5)}

    def evaluate(self, params, task):
        self.seen.append((self.name, task.kind))
        params["w"] += 100
        return 2, {"accuracy": 1}


def _kernel(seen):
    return ClientKernel(lambda name: Spoiling(name, seen), NAMES)


def test_a_client_gets_its_own_copies_and_its_seed():
    seen = []
    jobs = [ClientJob(2, 7), ClientJob(0, 8)]
    outcomes = list(_kernel(seen).work(PARAMS, kernels.task(evaluate=True), jobs))
    assert [(name, task.seed, task.round) for name, task in seen[1::2]] == [
        ("c", 7, 3),
        ("a", 8, 3),
    ]
    for outcome, job in zip(outcomes, jobs, strict=True):
        assert outcome.client == job.client
        assert np.array_equal(kernels.deltas(outcome)["w"], np.ones((2, 3)))
        assert outcome.training == Measurement(num_examples=3, metrics={"loss": 0.5})
        assert outcome.evaluation == Measurement(num_examples=2, metrics={"accuracy": 1.0})
        assert outcome.weight is None


def test_an_evaluation_task_has_its_kind():
    seen = []
    task = kernels.task(train=False, evaluate=True)
    (outcome,) = _kernel(seen).work(PARAMS, task, [ClientJob(1, 7)])
    assert seen == [("b", Kind.EVALUATE)]
    assert not outcome.parts


def test_partial_tensors_and_weights_are_passed_on():
    """Slices, masks, omitted tensors, and a weight if the run asks for it."""

    class Partial(Client):
        def train(self, params, task):
            mask = np.array([True, False])
            return Update(
                {
                    "w": SliceOf(np.full((1, 2), 9.0, np.float32), ((1, 2), (0, 2))),
                    "b": MaskOf(np.full(2, 4.0, np.float32), mask),
                },
                num_examples=5,
                weight=2.5,
            )

    kernel = ClientKernel(lambda _name: Partial(), NAMES)
    (outcome,) = kernel.work(PARAMS, kernels.task(weighting=Weighting.CLIENT), [ClientJob(0, 0)])
    box, masked = outcome.parts
    assert box.coverage == Slice(((1, 2), (0, 2)))
    assert np.array_equal(box.values - box.less, [[6.0, 5.0]])
    assert isinstance(masked.coverage, Mask)
    assert np.array_equal(masked.values - masked.less, [4.0])
    assert outcome.weight == 2.5
    assert outcome.evaluation == Measurement()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "got NoneType"),
        (Update({"v": np.zeros(2)}, 1, weight=1.0), "got 'v' from train"),
        (Update({"b": np.zeros(3)}, 1, weight=1.0), r"shape \(2,\) for 'b'"),
        (({}, -1, {}), "num_examples from train .* got -1"),
        (({}, 1, {}), "Return an Update that has one"),
    ],
)
def test_an_invalid_update_is_refused_with_the_reason(returned, message):
    class Wrong(Client):
        def train(self, params, task):
            return returned

    kernel = ClientKernel(lambda _name: Wrong(), NAMES)
    with pytest.raises(UsageError, match=message):
        list(kernel.work(PARAMS, kernels.task(weighting=Weighting.CLIENT), [ClientJob(0, 0)]))


def test_the_torch_client_has_the_resident_kernels_bits():
    """Test examples are evaluated by the resident kernel."""
    people = kernels.population()
    examples = people.examples

    def client(name):
        shard = people.shards[list(people.names).index(name)]
        data = torch.from_numpy(examples.x[shard]), torch.from_numpy(examples.y[shard])
        return TorchClient(kernels.mlp(), data, cross_entropy)

    resident = Resident(kernels.mlp(), cross_entropy, people, kernels.CPU)
    kernel = ClientKernel(client, people.names, measuring=resident)
    params = kernels.received(kernels.seeded(kernels.mlp))
    assert kernel.evaluate(params, 0, 9) == resident.evaluate(params, 0, 9)
    assert ClientKernel(client, people.names).evaluate(params, 0, 9) == Measurement()
    for job in kernels.jobs():
        (ours,), (theirs,) = (k.work(params, kernels.task(), [job]) for k in (kernel, resident))
        expected = kernels.values(theirs)
        assert all(np.array_equal(v, expected[n]) for n, v in kernels.values(ours).items())
        assert ours.training == theirs.training
