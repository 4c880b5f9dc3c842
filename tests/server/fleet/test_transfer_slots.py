"""Transfer slots: few fast ones, many slow ones, one for each client, and none is lost.

The seconds are those of a clock that a test sets; a real timer looks at it every `LOOK_S`.
"""

import asyncio

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport.methods import CHUNK_BYTES
from fedloom.server.fleet.sessions import Call
from fedloom.server.fleet.transfer_slots import (
    BUSY,
    ENOUGH_BYTES_PER_S,
    FEW,
    IDLE_S,
    JUDGED_AFTER_S,
    LOOK_S,
    MAX_PARKED,
    SLOW_CHUNK_BYTES,
    SLOW_PER_FAST,
    TransferSlots,
)


class Clock:
    """A clock set by the test."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Peer:
    """A transfer whose peer moves when the test says; it ends when it has moved as often."""

    def __init__(self, slots, client, *, steps=1, size_bytes=1000):
        self.slots, self.client, self.size_bytes = slots, client, size_bytes
        self.moves = asyncio.Semaphore(0)
        self.transfer = None
        self.begun = asyncio.Event()
        self.done = asyncio.ensure_future(self._run(steps))

    async def _run(self, steps):
        call = Call(self.client, None, asyncio.current_task())
        async with self.slots.enter(call) as self.transfer:
            self.begun.set()
            for _ in range(steps):
                with self.transfer.idle():
                    await self.moves.acquire()
                await self.transfer.passed(self.size_bytes)

    async def started(self):
        async with asyncio.timeout(10):
            await self.begun.wait()
        return self

    async def move(self, times=1):
        """Let the peer move, and everything that follows from it happen."""
        for _ in range(times):
            self.moves.release()
        await settled()

    async def end(self, times=1):
        await self.move(times)
        async with asyncio.timeout(10):
            await self.done


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


def scenario(test):
    """Run a test on slots with one fast place and a clock at 0."""

    async def main():
        await test(TransferSlots(1, Clock()))

    def run():
        asyncio.run(main())

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


@scenario
async def test_full_slots_make_others_wait(slots):
    """The second transfer begins when the first ends."""
    first = await Peer(slots, "a").started()
    second = Peer(slots, "b")
    await settled()
    assert not second.begun.is_set()
    assert (slots.busy, slots.waiting) == (1, 1)
    await first.end()
    await (await second.started()).end()
    assert (slots.busy, slots.waiting) == (0, 0)


@scenario
async def test_an_idle_transfer_loses_its_slot_to_one_that_waits(slots):
    """Not before it has been idle for long enough; it goes on as soon as there is a slot."""
    clock = slots.clock
    silent = await Peer(slots, "a", steps=2).started()
    honest = Peer(slots, "b")
    await asyncio.sleep(0.2)
    assert not honest.begun.is_set()
    clock.now = IDLE_S
    await honest.started()
    assert silent.transfer.is_parked
    await silent.move()
    assert not silent.transfer.is_parked
    assert silent.transfer.chunk_bytes == SLOW_CHUNK_BYTES
    await silent.end()
    await honest.end()


@scenario
async def test_an_idle_transfer_keeps_its_slot_while_nobody_waits(slots):
    clock = slots.clock
    silent = await Peer(slots, "a").started()
    clock.now = 100 * IDLE_S
    await asyncio.sleep(0.2)
    assert not silent.transfer.is_parked
    assert silent.transfer.chunk_bytes == CHUNK_BYTES


@scenario
async def test_a_transfer_that_the_server_works_on_is_not_idle(slots):
    """A slow disk of the server costs no client its slot."""
    clock = slots.clock
    call = Call("a", None, asyncio.current_task())
    async with slots.enter(call) as transfer:
        other = Peer(slots, "b")
        clock.now = 100 * IDLE_S
        await asyncio.sleep(0.2)
        assert not transfer.is_parked
        assert not other.begun.is_set()


@scenario
async def test_a_client_has_one_slot(slots):
    """Its other transfers wait, though slots are free; those of others do not."""
    slots = TransferSlots(8)
    first = await Peer(slots, "a").started()
    more = [Peer(slots, "a") for _ in range(30)]
    await (await Peer(slots, "b").started()).end()
    assert not any(peer.begun.is_set() for peer in more)
    await first.end()
    await (await more[0].started()).end()


@scenario
async def test_clients_get_slots_in_turn(slots):
    """Not in the order of their calls: a client with many waits like one with one."""
    order = []

    async def one(client):
        async with slots.enter(Call(client, None, asyncio.current_task())):
            order.append(client)
            await settled()

    names = ["a", "a", "a", "a", "b", "b", "c"]
    async with asyncio.timeout(10):
        await asyncio.gather(*map(one, names))
    assert "".join(order) == "abcabaa"


@scenario
async def test_an_idle_transfer_makes_way_for_its_own_client(slots):
    """As after a lost connection, whose call lives on for a while."""
    clock = slots.clock
    await Peer(slots, "a").started()
    again = Peer(slots, "a")
    clock.now = IDLE_S
    await (await again.started()).end()


@scenario
async def test_parked_transfers_of_a_client_are_limited(slots):
    """The next one is refused, and served once one of them has ended."""
    clock = slots.clock
    silent = [Peer(slots, "a") for _ in range(MAX_PARKED + 20)]
    for i in range(MAX_PARKED):
        await silent[i].started()
        clock.now += IDLE_S
        async with asyncio.timeout(10):
            while not silent[i].transfer.is_parked:
                await asyncio.sleep(0.01)
    for peer in [*silent[MAX_PARKED:], Peer(slots, "a")]:
        with pytest.raises(Refusal) as refused:
            await peer.done
        assert refused.value.code is Code.STALLED
    await (await Peer(slots, "b").started()).end()
    await silent[0].end()
    await (await Peer(slots, "a").started()).end()


@scenario
async def test_a_client_that_stalled_begins_slowly_until_it_is_fast_again(slots):
    """So that silence costs the others a fast slot once, and not in every round."""
    clock = slots.clock
    silent = await Peer(slots, "a", size_bytes=8 << 20).started()
    honest = Peer(slots, "b")
    clock.now += IDLE_S
    await (await honest.started()).end()
    await silent.end()
    again = await Peer(slots, "a").started()
    honest = await Peer(slots, "b").started()  # beside it: the fast slot is free
    assert again.transfer.chunk_bytes == SLOW_CHUNK_BYTES
    assert honest.transfer.chunk_bytes == CHUNK_BYTES
    clock.now += 0.1
    again.size_bytes = 8 << 20
    await again.end()
    await honest.end()
    assert (await Peer(slots, "a").started()).transfer.chunk_bytes == CHUNK_BYTES


@scenario
async def test_slow_transfer_frees_its_fast_slot(slots):
    """It moves to a slow slot with small chunks."""
    clock = slots.clock
    thin = await Peer(slots, "a", steps=3).started()
    assert thin.transfer.chunk_bytes == CHUNK_BYTES
    clock.now = JUDGED_AFTER_S + 0.1
    await thin.move()
    assert thin.transfer.chunk_bytes == SLOW_CHUNK_BYTES
    await (await Peer(slots, "b").started()).end()
    await thin.end(2)


@scenario
async def test_fast_transfer_keeps_its_slot(slots):
    """However long it takes."""
    clock = slots.clock
    fast = await Peer(slots, "a", steps=100, size_bytes=2 << 20).started()
    waiting = Peer(slots, "b")
    for second in range(1, 100):
        clock.now = float(second)
        await fast.move()
    assert fast.transfer.chunk_bytes == CHUNK_BYTES
    assert not waiting.begun.is_set()


@scenario
async def test_slow_slots_are_limited_and_freed(slots):
    """If all are taken, a slow transfer waits for one and leaves the fast slot to others."""
    clock = slots.clock
    slow = []
    for i in range(SLOW_PER_FAST + 1):
        slow.append(await Peer(slots, f"a{i}", steps=2).started())
        clock.now += JUDGED_AFTER_S + 0.1
        slow[-1].transfer.idle_since = clock.now
        await slow[-1].move()
        for each in slow[:-1]:
            each.transfer.idle_since = clock.now
    assert slots.waiting == 1
    await (await Peer(slots, "b").started()).end()
    await slow[0].end()
    assert slots.waiting == 0
    await slow[-1].end()


@scenario
async def test_a_cancelled_transfer_frees_what_it_has(slots):
    """While it waits, and while it holds a slot."""
    first = await Peer(slots, "a").started()
    second, third = Peer(slots, "b"), Peer(slots, "c")
    await settled()
    second.done.cancel()
    first.done.cancel()
    await (await third.started()).end()
    assert (slots.busy, slots.waiting) == (0, 0)


def test_slot_that_is_freed_while_a_waiting_call_ends_goes_to_the_next():
    """The call was cancelled in the same step, and has not left the queue yet."""

    async def scene():
        slots = TransferSlots(1)
        first = slots.enter(Call("a", None, asyncio.current_task()))
        await first.__aenter__()
        cancelled, next_one = Peer(slots, "b"), Peer(slots, "c")
        await settled()
        cancelled.done.cancel()
        await first.__aexit__(None, None, None)
        await next_one.started()
        await next_one.end()
        assert cancelled.done.cancelled()
        assert (slots.busy, slots.waiting) == (0, 0)
        await (await Peer(slots, "d").started()).end()

    asyncio.run(scene())


@scenario
async def test_a_parked_transfer_that_is_cancelled_while_it_waits_leaves_the_queue_at_once(slots):
    """Its call may take time to clean up; meanwhile the slot goes to another."""
    parked, cleaned = [], asyncio.Event()

    async def stall(name):
        async with slots.enter(Call(name, None, asyncio.current_task())) as transfer:
            transfer.give_up()
            parked.append(name)
            try:
                await transfer.passed(1)
                await asyncio.Event().wait()
            finally:
                if name == "last":
                    await cleaned.wait()

    names = [*(f"a{i}" for i in range(SLOW_PER_FAST)), "last", "next"]
    stalling = {name: asyncio.ensure_future(stall(name)) for name in names}
    while len(parked) < len(names):
        await asyncio.sleep(0)
    await settled()
    assert slots.waiting == 2
    stalling["last"].cancel()
    await settled()
    stalling["a0"].cancel()
    await settled()
    assert slots.waiting == 0  # "next" has the slot of "a0"
    cleaned.set()
    for each in stalling.values():
        each.cancel()
    await asyncio.wait(stalling.values())
    assert (slots.busy, slots.waiting) == (0, 0)


# ---- how many fast slots are open --------------------------------------------------------------


class Server:
    """Slots whose server is as busy as a test says; of every look 0.05 s pass on the clock."""

    def __init__(self, fast, busy):
        self.clock, self.busy = Clock(), busy
        self.slots = TransferSlots(fast, self.clock, busy=lambda: self.busy)
        self.peers = []

    async def connect(self, count):
        self.peers += [Peer(self.slots, f"c{number}", steps=1000) for number in range(count)]
        await settled()

    @property
    def num_begun(self):
        return sum(peer.begun.is_set() for peer in self.peers)

    async def look(self, moved=0):
        """Until the slots have looked once more, after so many bytes of one transfer."""
        if moved:
            self.peers[0].size_bytes = moved
            await self.peers[0].move()
        self.clock.now += LOOK_S
        before = self.slots._timer
        assert before is not None
        async with asyncio.timeout(10):
            while self.slots._timer is before:
                await asyncio.sleep(LOOK_S / 10)
        await settled()

    async def leave(self):
        for peer in self.peers:
            peer.done.cancel()
        await asyncio.wait([peer.done for peer in self.peers])


def with_server(fast, busy):
    def of(test):
        async def scene():
            server = Server(fast, busy)
            await test(server)
            await server.leave()

        def run():
            asyncio.run(scene())

        run.__doc__, run.__name__ = test.__doc__, test.__name__
        return run

    return of


MUCH = 2 * int(ENOUGH_BYTES_PER_S * LOOK_S)


@with_server(5, busy=BUSY - 0.1)
async def test_slots_open_one_by_one_while_the_server_is_not_busy(server):
    """Up to the setting, whatever is moved."""
    await server.connect(7)
    begun = [server.num_begun]
    for moved in (0, MUCH, 0, MUCH, 0):
        await server.look(moved)
        begun.append(server.num_begun)
    assert begun == [FEW, 3, 4, 5, 5, 5]


@with_server(5, busy=BUSY)
async def test_a_busy_server_that_moves_much_opens_no_slot(server):
    """More transfers at once would only share its processor."""
    await server.connect(5)
    for _ in range(4):
        await server.look(MUCH)
    assert server.num_begun == FEW


@with_server(5, busy=1.0)
async def test_a_server_that_is_busy_with_something_else_opens_slots(server):
    """Slow links must not wait for each other because the console or a fold has much to do."""
    await server.connect(6)
    for _ in range(4):
        await server.look(MUCH // 3)
    assert server.num_begun == 5


@with_server(5, busy=1.0)
async def test_what_was_moved_before_the_last_look_does_not_count(server):
    await server.connect(4)
    await server.look(10 * MUCH)
    assert server.num_begun == FEW
    await server.look()
    assert server.num_begun == 3


@with_server(5, busy=0.0)
async def test_slots_close_when_the_server_becomes_busy(server):
    """Transfers keep theirs; as many fewer begin when they end, but never fewer than a few."""
    await server.connect(20)
    for _ in range(4):
        await server.look()
    assert server.num_begun == 5
    server.busy = 1.0
    for _ in range(6):
        await server.look(MUCH)
    for peer in server.peers[1:4]:
        peer.done.cancel()
    await settled()
    assert server.num_begun == 5
    server.peers[4].done.cancel()
    await settled()
    assert server.num_begun == 6
    server.busy = 0.0
    await server.look(MUCH)
    assert server.num_begun == 7


@with_server(1, busy=1.0)
async def test_one_slot_stays_one(server):
    await server.connect(3)
    assert server.num_begun == 1
    for moved in (MUCH, 0, MUCH):
        await server.look(moved)
    server.peers[0].done.cancel()
    await settled()
    assert server.num_begun == 2


@with_server(8, busy=0.0)
async def test_slots_that_are_full_of_idle_peers_open_others_at_once(server):
    """Peers that stand still cost others a look, not the half second until they are parked."""
    await server.connect(3)
    await server.look()
    assert server.num_begun == 3
    assert not any(peer.transfer.is_parked for peer in server.peers)
