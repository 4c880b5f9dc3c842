"""A round's task follows from the specification and the progress of the run."""

import pytest

from fedloom.client.agent.task_run import task_from_message
from fedloom.protocol.task_message import to_message
from fedloom.server.engine import RoundKind
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from support.run_rounds import PRIVATE

TRAIN = {"epochs": 1, "learning_rate": 0.1}


def asked(kind=RoundKind.TRAIN, trained=0, clip=0.0, **values):
    settings = {"train": TRAIN, "cohort": {"goal": 2}, **values}
    spec = parse({"rounds": 4, **settings})
    return describe(spec, run="run-1", number=7, trained=trained, kind=kind, clip=clip)


def test_the_task_is_of_the_run_and_the_round():
    """The sender adds files, seed and deadline."""
    task = asked(name="demo", config={"depth": 3}, weighting="uniform")
    assert (task.run, task.round, task.run_name) == ("run-1", 7, "demo")
    assert (task.config, task.weighting) == ({"depth": 3}, "uniform")
    assert (task.model, task.differences, task.received) == (None, (), None)


def test_the_learning_rate_follows_the_rounds_that_were_committed():
    """An abandoned round takes no step of the clients' schedule."""
    train = {"epochs": 1, "learning_rate": 1.0, "warmup_rounds": 1}
    assert [asked(trained=n, train=train).settings.learning_rate for n in (0, 1, 2)] == [0.5, 1, 1]


@pytest.mark.parametrize(
    ("kind", "trained", "number"),
    [(RoundKind.TRAIN, 0, 1), (RoundKind.TRAIN, 3, 4), (RoundKind.EVALUATE, 3, 3)],
)
def test_training_rounds_are_counted_without_the_others(kind, trained, number):
    """An evaluation after a training has the training's number."""
    assert asked(kind, trained=trained).training_round == number


def test_a_run_that_only_evaluates_has_no_training_round():
    """Its devices take the number of the round."""
    spec = parse({"rounds": 4, "evaluate_only": True, "train": TRAIN, "cohort": {"goal": 2}})
    for trained in (0, 3):
        kind = RoundKind.EVALUATE
        task = describe(spec, run="r", number=trained + 1, trained=trained, kind=kind, clip=0.0)
        assert task_from_message(to_message(task)).training_round == trained + 1


@pytest.mark.parametrize(
    ("kind", "evaluate", "evaluates"),
    [
        (RoundKind.TRAIN, False, False),
        (RoundKind.TRAIN, True, True),
        (RoundKind.EVALUATE, False, True),
        (RoundKind.EVALUATE, True, True),
    ],
)
def test_clients_evaluate_on_request_and_in_evaluation_rounds(kind, evaluate, evaluates):
    task = asked(kind, evaluate=evaluate)
    assert (task.train, task.evaluates) == (kind is RoundKind.TRAIN, evaluates)


def test_a_device_adds_noise_under_local_privacy():
    """With a trusted server, the server adds it to the sum."""
    central = asked(clip=0.5, privacy={**PRIVATE, "clip_quantile": 0.5}).privacy
    assert (central.clip, central.count_within, central.noise_multiplier) == (0.5, True, 0.0)
    local = asked(clip=0.5, privacy={**PRIVATE, "mechanism": "local", "noise": "seed"}).privacy
    assert (local.noise_multiplier, local.count_within, local.seeded) == (1.0, False, True)


def test_a_device_adds_no_noise_without_privacy():
    """Nor in an evaluation round."""
    assert asked().privacy is None
    assert asked(RoundKind.EVALUATE, clip=1.0, privacy=PRIVATE).privacy is None
