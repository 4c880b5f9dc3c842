"""The resident kernel computes the same as the deployed client."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import augment
from fedloom.protocol.errors import UsageError
from fedloom.simulation import models
from fedloom.simulation.kernels.base import ClientJob, Measurement
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import FedProx, Plain
from support import kernels

IMAGE = (1, 8, 8)
NORMED = functools.partial(
    lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
)


def _two_nn():
    return models.build("2nn", input_shape=IMAGE, num_classes=4)


def _cnn():
    return models.build("digits-cnn", input_shape=IMAGE, num_classes=4)


def _lstm():
    return models.build("char-lstm", num_classes=4, hidden=8)


AUGMENTED = [
    augment.Crop(padding=1),
    augment.PerExample(lambda x: x + torch.rand(())),
    augment.Noise(deviation=0.1),
    augment.Normalise(mean=0.5, deviation=0.5),
]
MAKERS = {
    "2nn": (_two_nn, {"shape": IMAGE}),
    "cnn": (_cnn, {"shape": IMAGE}),
    "cnn, augmented": (_cnn, {"shape": IMAGE, "transform": AUGMENTED}),
    "batchnorm": (lambda: kernels.seeded(NORMED), {}),
    "lstm": (_lstm, {"shape": (6,), "places": (6,), "tokens": True}),
}
# A last batch of one example is more than BatchNorm can normalise.
SIZES = (23, 20, 8, 42)


def _check(make, people, task, optimizer=None):
    kernel = Resident(make(), cross_entropy, people, kernels.CPU, optimizer)
    params = kernels.received(make())
    for job in kernels.jobs():
        (outcome,) = kernel.work(params, task, [job])
        sent, num_examples, metrics, evaluation = kernels.deployed(
            make(), people, cross_entropy, params, task, job, optimizer=optimizer
        )
        ours = kernels.values(outcome)
        assert ours.keys() == sent.keys()
        assert all(ours[name].tobytes() == sent[name].tobytes() for name in sent)
        assert all(part.less is params[part.tensor] for part in outcome.parts)
        assert outcome.training == Measurement(num_examples=num_examples, metrics=metrics)
        assert outcome.evaluation == Measurement(num_examples=evaluation[0], metrics=evaluation[1])


@pytest.mark.long
@pytest.mark.parametrize("rule", [Plain(), FedProx(mu=0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("model", MAKERS)
def test_an_update_has_the_bits_of_the_deployed_client(model, rule):
    """Values, metrics and evaluation, with a smaller last batch, dropout and buffers."""
    make, shape = MAKERS[model]
    people = kernels.population(sizes=SIZES, **shape)
    _check(make, people, kernels.task(rule=rule, evaluate=True, epochs=2))


@pytest.mark.parametrize(
    "settings", [{"epochs": None, "steps": 7}, {"batch_size": 0, "epochs": 3}, {"batch_size": 1000}]
)
def test_every_length_of_training_has_the_deployed_clients_bits(settings):
    """Steps across epochs, and all examples in one batch."""
    people = kernels.population(shape=IMAGE)
    _check(_two_nn, people, kernels.task(evaluate=True, **settings))


def test_any_optimizer_has_the_deployed_clients_bits():
    """Each client has a new optimizer."""
    people = kernels.population(shape=IMAGE)
    optimizer = functools.partial(torch.optim.SGD, momentum=0.9)
    _check(_two_nn, people, kernels.task(evaluate=True), optimizer)


def test_an_update_depends_on_no_other_job():
    """Neither by order nor by buffers that are not sent."""

    def make():
        model = kernels.seeded(NORMED)
        model.register_buffer("seen", torch.zeros(1), persistent=False)
        model[0].register_forward_hook(lambda _m, _i, out: out + model.seen.add_(1))
        return model

    people = kernels.population(sizes=SIZES)
    params, task = kernels.received(make()), kernels.task()
    alone = {}
    for job in kernels.jobs():
        kernel = Resident(make(), cross_entropy, people, kernels.CPU)
        (outcome,) = kernel.work(params, task, [job])
        alone[job.client] = kernels.values(outcome)
    kernel = Resident(make(), cross_entropy, people, kernels.CPU)
    for outcome in kernel.work(params, task, kernels.jobs()[::-1]):
        ours = kernels.values(outcome)
        assert all(np.array_equal(ours[n], v) for n, v in alone[outcome.client].items())


def test_a_task_that_only_evaluates_trains_no_client():
    people = kernels.population(shape=IMAGE)
    kernel = Resident(_two_nn(), cross_entropy, people, kernels.CPU)
    params = kernels.received(_two_nn())
    outcomes = list(kernel.work(params, kernels.task(train=False, evaluate=True), kernels.jobs()))
    assert [outcome.evaluation.num_examples for outcome in outcomes] == [0, 3, 6, 9]
    assert outcomes[0].evaluation == Measurement()
    assert not any(outcome.parts or outcome.training.metrics for outcome in outcomes)


def test_test_examples_can_be_evaluated_in_pieces():
    """Their means weighted by examples are the mean of all."""
    people = kernels.population(shape=IMAGE)
    kernel = Resident(_two_nn(), cross_entropy, people, kernels.CPU)
    params = kernels.received(_two_nn())
    whole = kernel.evaluate(params, 0, 30)
    first, second = kernel.evaluate(params, 0, 12), kernel.evaluate(params, 12, 99)
    assert (first.num_examples, second.num_examples, whole.num_examples) == (12, 18, 30)
    for name in ("loss", "accuracy"):
        mean = (12 * first.metrics[name] + 18 * second.metrics[name]) / 30
        assert mean == pytest.approx(whole.metrics[name], rel=1e-5)
    assert kernel.evaluate(params, 30, 60) == Measurement()


def test_read_only_arrays_and_small_integers_are_accepted():
    """Shared memory is read-only; class numbers may have any integer type."""
    people = kernels.population(shape=IMAGE)
    narrow = kernels.population(shape=IMAGE)
    object.__setattr__(narrow.examples, "y", narrow.examples.y.astype(np.uint8))
    narrow.examples.x.flags.writeable = narrow.examples.y.flags.writeable = False
    params = kernels.received(_two_nn())
    for value in params.values():
        value.flags.writeable = False
    got = [
        kernels.values(outcome)
        for each in (people, narrow)
        for outcome in Resident(_two_nn(), cross_entropy, each, kernels.CPU).work(
            params, kernels.task(), [ClientJob(1, 5)]
        )
    ]
    assert all(np.array_equal(got[0][name], got[1][name]) for name in params)


def test_a_run_with_another_model_is_refused():
    kernel = Resident(_two_nn(), cross_entropy, kernels.population(shape=IMAGE), kernels.CPU)
    params = kernels.received(_two_nn())
    del params["1.bias"]
    with pytest.raises(UsageError, match=r"lacks 1 of the clients' tensors, such as '1\.bias'"):
        list(kernel.work(params, kernels.task(), kernels.jobs()))
