"""Token buckets of peers: a burst, then a rate; bounded debt and memory."""

import asyncio

import pytest

from fedloom.server.access.token_buckets import LONGEST_HOLD_S, Buckets
from fedloom.server.fleet import pacing
from fedloom.server.fleet.pacing import PeerPace, address_of


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


def test_a_peer_far_beyond_its_rate_waits_long_for_its_refusal(monkeypatch):
    """Else 64 calls at a time on a connection would make 64 a second."""
    monkeypatch.setattr(pacing, "REFUSED_AFTER_S", 2.5)

    async def scene():
        pace = PeerPace()
        pace.refusals = Buckets(burst=1, per_s=4.0)
        clock = asyncio.get_running_loop().time
        begun, waited = clock(), []

        async def refused():
            await pace.refusal("oak")
            waited.append(clock() - begun)

        await asyncio.gather(*(refused() for _ in range(8)))
        # One is answered at once, four wait for their tokens, the others are far beyond.
        assert waited[0] < 0.2 <= waited[1] <= waited[4] < 2.0
        assert waited[5] >= 2.4

    asyncio.run(scene())


@pytest.mark.long
def test_streams_and_messages_are_counted_for_a_client_however_often_it_reconnects():
    """A new stream does not begin with a full bucket."""

    async def waits(count, client):
        begun = asyncio.get_running_loop().time()
        await count(client)
        return asyncio.get_running_loop().time() - begun

    async def scene():
        pace = PeerPace()
        pace.messages = Buckets(burst=2, per_s=5.0)
        for count, served in ((pace.stream, 8), (pace.message, 2)):
            found = [await waits(count, "oak") for _ in range(served + 1)]
            assert max(found[:-1]) < 0.1 < found[-1] <= LONGEST_HOLD_S + 0.2
            assert await waits(count, "elm") < 0.1

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
