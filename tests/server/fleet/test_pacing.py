"""Token buckets of peers: a burst, then a rate; bounded debt and memory."""

import asyncio

import pytest

from fedloom.server.access.token_buckets import LONGEST_HOLD_S, REFUSED_AFTER_S, Buckets
from fedloom.server.fleet import pacing
from fedloom.server.fleet.pacing import PeerPace, SharedRate, address_of
from support.modules import like


def served(buckets, key, times):
    """How many of these requests were served without a wait."""
    return sum(not buckets.take(key, now) for now in times)


def test_bucket_serves_its_burst_and_then_its_rate():
    """Within the rate nobody waits; a flood is served its burst."""
    buckets = Buckets(burst=8, per_s=4.0)
    assert served(buckets, "elm", [0.25 * n for n in range(1000)]) == 1000
    assert served(buckets, "oak", [0.0] * 100) == 8
    assert served(buckets, "ash", [0.0] * 8 + [0.25 * n for n in range(1, 100)]) == 8 + 99


def test_peer_that_stops_is_served_after_its_debt():
    """Whatever it sent before: its debt is bounded."""
    buckets = Buckets(burst=2, per_s=1.0)
    for _ in range(1000):
        assert buckets.take("oak", 0.0) <= LONGEST_HOLD_S
    assert buckets.wait_s("oak", 0.0) > 0
    assert buckets.wait_s("oak", 2 * LONGEST_HOLD_S) == 0
    assert buckets.wait_s("elm", 0.0) == 0


def test_memory_is_bounded():
    """The longest unused bucket is dropped: it has the most tokens."""
    buckets = Buckets(burst=1, per_s=1.0, max_keys=3)
    for key in ("a", "b", "a", "c", "d"):
        buckets.take(key, 0.0)
    assert len(buckets) == 3
    assert buckets.wait_s("b", 0.0) == 0 < buckets.wait_s("a", 0.0)


def test_refused_peer_waits_and_others_do_not(monkeypatch):
    """Only so many answers wait at once; the others are sent."""
    monkeypatch.setattr(pacing, "HELD", 3)

    async def scene():
        pace = PeerPace()
        pace.refusals = Buckets(burst=1, per_s=1.0)
        await pace.refusal("oak")
        waiting = [asyncio.ensure_future(pace.refusal("oak")) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (pace.held, sum(task.done() for task in waiting)) == (3, 2)
        await asyncio.wait_for(pace.refusal("elm"), 0.5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert pace.held == 0

    asyncio.run(scene())


@pytest.fixture
def slept(monkeypatch):
    """The seconds that each request waited; none is waited for."""
    found = []

    async def sleep(seconds):
        found.append(seconds)

    monkeypatch.setattr(pacing, "asyncio", like(asyncio, sleep=sleep))
    return found


def test_a_peer_far_beyond_its_rate_waits_long_for_its_refusal(slept):
    """Else 64 calls at a time on a connection would make 64 a second."""

    async def scene():
        pace = PeerPace()
        pace.refusals = Buckets(burst=1, per_s=4.0)
        for _ in range(12):
            await pace.refusal("oak")

    asyncio.run(scene())
    assert slept[:3] == pytest.approx([0.25, 0.5, 0.75], abs=0.24)
    assert set(slept[-5:]) == {REFUSED_AFTER_S}


def test_transfers_that_share_a_rate_wait_in_turn(slept):
    """Each for its bytes and for those before it; time without transfers is not saved up."""

    async def scene():
        rate = SharedRate(1000)
        for size in (500, 250, 1000):
            await rate.passed(size)

    asyncio.run(scene())
    assert slept == pytest.approx([0.5, 0.75, 1.75], abs=0.2)


@pytest.mark.parametrize("kind", ["stream", "message"])
def test_all_streams_of_a_client_have_one_bucket(slept, kind):
    """A new stream does not begin with a full one; other clients are not affected."""

    async def waits(pace, client):
        before = sum(slept)
        await getattr(pace, kind)(client)
        return sum(slept) - before

    async def scene():
        pace = PeerPace()
        pace.messages = Buckets(burst=8, per_s=0.5)
        assert [await waits(pace, "oak") for _ in range(8)] == [0.0] * 8
        assert await waits(pace, "oak") > 0.5
        assert await waits(pace, "elm") == 0.0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:5812", "192.0.2.7"),
        ("ipv6:%5B2001:db8:0:1::7%5D:5812", "2001:db8:0:1::/64"),
        ("ipv6:[2001:db8:0:1:9::7]:1", "2001:db8:0:1::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("unix:", "unix:"),
    ],
)
def test_address_of_a_peer_has_no_port(peer, address):
    """Of IPv6 it is the network, of which one host has all addresses."""
    assert address_of(peer) == address
