"""A transfer that is cut resumes where it stopped, and its update counts once."""

import signal

import pytest

from fedloom.protocol.transport.methods import CHUNK_BYTES
from support.relay import Relay
from support.stage import Stage, model, wait

pytestmark = pytest.mark.e2e

MODEL_BYTES = 12 << 20
NAMES = ("shaky", "steady")
CASES = [("down", 0.1), ("down", 0.5), ("down", 0.9), ("up", 0.1), ("up", 0.5), ("up", 0.9)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server and two devices, one of them behind a relay."""
    with Stage(tmp_path_factory.mktemp("cuts"), NAMES) as stage, Relay(stage.port) as relay:
        stage.relay = relay
        stage.point("shaky", f"localhost:{relay.port}")
        for name in NAMES:
            stage.start(name)
        stage.online(2)
        stage.clean = dict(zip(("up", "down"), _play(stage, seed=1), strict=True))
        yield stage


def _play(stage, seed, **cut):
    """Two rounds, the first with a cut; returns the bytes that passed the relay, up and down."""
    before = dict(stage.relay.passed)
    if cut:
        stage.relay.cut_after(**cut)
    initial = model(MODEL_BYTES, seed)
    run = stage.submit(initial)
    stage.finished(run)
    assert stage.judge(run, initial) == [sorted(NAMES)] * 2
    return tuple(stage.relay.passed[way] - before[way] for way in ("up", "down"))


@pytest.mark.parametrize(("direction", "share"), CASES)
def test_a_cut_transfer_resumes_where_it_stopped(stage, direction, share):
    """After a reset, less than two chunks are sent again."""
    connections = stage.relay.connections
    size = int(share * MODEL_BYTES)
    seed = 10 * size + (direction == "up")
    up, down = _play(stage, seed, direction=direction, size_bytes=size)
    passed = {"up": up, "down": down}
    assert stage.relay.has_cut
    assert stage.relay.connections > connections + 4, "nothing was connected anew"
    again = passed[direction] - stage.clean[direction]
    print(f"{direction} {share:.0%}: {again / CHUNK_BYTES:.2f} chunks again")
    assert again < 2 * CHUNK_BYTES


def test_an_update_whose_acknowledgement_was_lost_is_acknowledged_again(stage):
    """The whole update has arrived; the device asks again and sends no part of the body."""
    initial = model(MODEL_BYTES, seed=7)
    before, connections = stage.relay.passed["up"], stage.relay.connections
    stage.relay.cut_after("up", MODEL_BYTES - CHUNK_BYTES // 2, how="mute")
    run = stage.submit(initial, rounds=1)
    stage.finished(run)
    accepted = f"of {run} accepted"
    log = stage.devices["shaky"].log
    assert stage.relay.has_cut
    assert accepted not in log()
    stage.relay.cut()
    wait(lambda: accepted in log(), "the acknowledgement")
    assert stage.judge(run, initial, rounds=1) == [sorted(NAMES)]
    assert stage.relay.connections > connections
    assert stage.relay.passed["up"] - before < MODEL_BYTES + CHUNK_BYTES


def test_a_dead_upload_does_not_block_the_next_one(stage):
    """The server has not noticed the loss; the new upload continues after the received bytes."""
    initial = model(MODEL_BYTES, seed=8)
    before = stage.relay.passed["up"]
    stage.relay.cut_after("up", MODEL_BYTES // 2, how="silent")
    run = stage.submit(initial)
    wait(lambda: stage.relay.has_cut, "the middle of the upload")
    stage.end("shaky", signal.SIGKILL)
    stage.start("shaky")
    stage.finished(run, 50.0)  # less than the server waits for the old upload's bytes
    assert stage.judge(run, initial) == [sorted(NAMES)] * 2
    assert stage.relay.passed["up"] - before - stage.clean["up"] < 2 * CHUNK_BYTES
