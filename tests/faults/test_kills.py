"""A killed agent restarts and takes part; a finished update counts once."""

import signal

import pytest

from support.stage import Stage, model, wait

pytestmark = pytest.mark.e2e

NAMES = ("ann", "bob")
PLACES = {
    # place: how often ann crosses it before the kill
    "client.download.chunk": 2,
    "client.download.whole": 1,
    "client.train.before": 1,
    "client.train.after": 1,
    "client.outbox.written": 1,
    "client.upload.chunk": 2,
    "client.upload.sent": 1,
    "client.upload.accepted": 1,
}
LARGE, SMALL = 3 << 20, 1000
"""Values of models that are downloaded, and that come with their offers."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server, a device that stays and one that is killed."""
    with Stage(tmp_path_factory.mktemp("kills"), NAMES) as stage:
        stage.start("bob")
        yield stage


@pytest.mark.parametrize(
    ("place", "size"), [*((place, LARGE) for place in PLACES), ("client.download.whole", SMALL)]
)
def test_a_killed_agent_takes_part_in_this_round_and_the_next(stage, place, size):
    """SIGKILL at a named place: both rounds have both updates and the computed bits."""
    initial = model(size, seed=len(place) + sorted(PLACES).index(place) * 100)
    stage.start("ann", FEDLOOM_KILL=f"{place}:{PLACES[place]}")
    stage.online(2)
    run = stage.submit(initial)
    stage.died("ann")
    stage.start("ann")
    stage.finished(run)
    assert stage.judge(run, initial) == [["ann", "bob"]] * 2
    stage.end("ann")


def test_an_agent_killed_in_training_trains_again(stage):
    """SIGKILL during the training code."""
    initial = model(1000, seed=5)
    stage.start("ann")
    stage.online(2)
    run = stage.submit(initial, config={"pause_s": 1.5})
    wait(lambda: stage.phase(run, "ann") == "training", "ann to train")
    stage.end("ann", signal.SIGKILL)
    stage.start("ann")
    stage.finished(run)
    assert stage.judge(run, initial, config={"pause_s": 1.5}) == [["ann", "bob"]] * 2
    stage.end("ann")


def test_an_update_of_a_closed_round_does_not_count(stage):
    """The agent is killed after it made the update, and takes part in the next round."""
    initial = model(1000, seed=6)
    cohort = {"goal": 2, "quorum": 1, "deadline_s": 3600.0, "patience_s": 1.0}
    stage.start("ann", FEDLOOM_KILL="client.outbox.written:1")
    stage.online(2)
    run = stage.submit(initial, cohort=cohort, rounds=3, config={"pause_s": 0.2})
    stage.died("ann")
    wait(lambda: len(stage.rounds(run)) >= 1, "the first round to close without ann")
    stage.start("ann")
    stage.finished(run)
    counted = stage.judge(run, initial, cohort=cohort, rounds=3, config={"pause_s": 0.2})
    assert counted[0] == ["bob"]
    assert counted[-1] == ["ann", "bob"]
    stage.end("ann")
