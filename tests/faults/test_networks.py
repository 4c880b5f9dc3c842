"""Rounds over bad networks: packets between namespaces are lost, delayed or reordered."""

import time

import pytest

from support import network
from support.field import NAMES, Field
from support.stage import model, wait

REASON = network.missing()
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(REASON), reason=REASON)]

DIGITS_BYTES = 220_000
"""Of the digits' network in the demo, about."""


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    with Field(tmp_path_factory.mktemp("field"), seed=1) as field:
        yield field


SENT_AGAIN = 6
"""Packets lost in an outage: TCP waits twice as long before each one, so this takes seconds."""
LINKS = {
    "loss of 1 %, 50 ms": {"loss": 0.01, "delay_s": 0.025},
    "loss of 5 %, 100 ms": {"loss": 0.05, "delay_s": 0.05},
    "200 ms": {"delay_s": 0.1},
    "50 to 100 ms, out of order": {"delay_s": 0.025, "jitter_s": 0.025},
    "loss of 3 %, 100 to 200 ms, out of order": {"loss": 0.03, "delay_s": 0.05, "jitter_s": 0.05},
}


@pytest.mark.parametrize("link", LINKS)
def test_rounds_over_a_bad_link_are_correct(field, link):
    """Loss, delay and reordering cost only time."""
    initial = model(DIGITS_BYTES, seed=len(link))
    lost = field.link(**LINKS[link])["lost"]
    begun = time.monotonic()
    try:
        run = field.stage.submit(initial, rounds=3)
        field.stage.finished(run)
    finally:
        lost = field.link(loss=0.0, delay_s=0.0, jitter_s=0.0)["lost"] - lost
    assert field.stage.judge(run, initial, rounds=3) == [sorted(NAMES)] * 3
    assert lost > 0 or "loss" not in LINKS[link]
    print(f"{link}: {(time.monotonic() - begun) / 3:.1f} s a round, {lost} packets lost")


def test_a_round_continues_after_an_outage(field):
    """Packets are lost until both sides have retransmitted several times."""
    initial = model(3 << 20, seed=77)
    field.link(delay_s=0.02)
    run = field.stage.submit(initial, config={"pause_s": 0.5})
    wait(lambda: field.stage.phase(run, "far") == "training", "the offer to arrive")
    lost = field.link(cut=True)["lost"]
    wait(lambda: field.link()["lost"] >= lost + SENT_AGAIN, "packets to be sent again")
    field.link(cut=False, delay_s=0.0)
    field.stage.finished(run)
    assert field.stage.judge(run, initial, config={"pause_s": 0.5}) == [sorted(NAMES)] * 2


def test_rounds_over_a_slow_link_are_correct(field):
    """1 Mbit/s in each direction, with a queue of 300 ms."""
    initial = model(DIGITS_BYTES, seed=78)
    for side in (0, 1):
        field.network.limit(side, "1mbit")
    begun = time.monotonic()
    try:
        run = field.stage.submit(initial)
        field.stage.finished(run, 120.0)
    finally:
        for side in (0, 1):
            field.network.limit(side, "")
    assert field.stage.judge(run, initial) == [sorted(NAMES)] * 2
    print(f"1 Mbit/s: {(time.monotonic() - begun) / 2:.1f} s a round")
