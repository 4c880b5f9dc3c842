"""Transfer slots for models and updates: few fast transfers at once, many slow ones, by client.

A fast transfer has megabytes in flight. Only a few run at a time and the others wait, so the
server's memory does not grow with the number of clients. A slow transfer has little in flight but
takes minutes: once it proves slow, it moves to a slow slot with smaller chunks and frees its fast
one.

Fast slots open one by one while transfers wait, and close again while the server is busy: transfers
that the network limits then run side by side, and transfers that the server's processor limits run
one after another, which costs less and ends each sooner.

A client has one slot in each direction, and clients get slots in turn. A transfer whose peer is
idle loses its slot when another waits: it is parked, keeps its offset, and waits for a slot again
as soon as its peer moves. A client that was parked or slow begins its next transfers in a slow
slot, until one of them is fast to its end.

Invariants: a slot is lost only while its transfer waits for the peer. A parked transfer has at most
one message in flight, and a client at most `MAX_PARKED` parked transfers.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.server.event_loop import busy_share
from fedloom.server.fleet.sessions import Call

SLOW_BYTES_PER_S = 1 << 20
"""Below this mean rate a transfer counts as slow: 8 Mbit/s."""

JUDGED_AFTER_S = 2.0
"""Seconds that a transfer holds a slot before its rate is judged."""

IDLE_S = 0.5
"""Seconds without a message after which a transfer loses its slot if another waits."""

LOOK_S = 0.05
"""Interval at which idle transfers are looked for while others wait, seconds."""

FEW = 2
"""Fast slots that are always open."""

BUSY = 0.4
"""Share of the event loop's time from which more transfers at once would only share it."""

ENOUGH_BYTES_PER_S = 100 << 20
"""Rate of all fast transfers below which the loop is busy with something else than them."""

SLOW_PER_FAST = 64
SLOW_CHUNK_BYTES = 64 << 10

MAX_PARKED = 8
"""Transfers of one client that may be parked, in each direction."""

MAX_DOUBTED = 10_000
"""Names of slow clients that are remembered; the oldest are forgotten."""


class _Lane:
    """Slots of one kind: how many are open, who holds them, and whose turn is next."""

    def __init__(self, slots: int) -> None:
        self.open = slots
        self.held: set[Transfer] = set()
        self.turns: OrderedDict[str, None] = OrderedDict()

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.open


class _Client:
    """The transfers of one client: one holds a slot, the others wait or are parked."""

    def __init__(self) -> None:
        self.holder: Transfer | None = None
        self.waiting: deque[Transfer] = deque()
        self.num_parked = 0
        self.num_transfers = 0


class Transfer:
    """A transfer in its slot, parked, or waiting.

    Attributes:
        client: whose it is.
        lane: of its slot; None while it has none.
        granted: done when it gets the slot that it waits for.
        is_new: whether it has not held a slot yet.
        is_parked: whether it lost its slot and its peer has not moved since.
        was_parked: whether that ever happened.
        idle_since: when the server began to wait for the peer; None while it does not.
        waited_s: seconds for which it waited for a slot.
    """

    def __init__(self, slots: "TransferSlots", client: str) -> None:
        self.client = client
        self.lane: _Lane | None = None
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_new = True
        self.is_parked = self.was_parked = False
        self.idle_since: float | None = None
        self.waited_s = 0.0
        self._slots = slots
        self._held_since = 0.0
        self._held_s = 0.0  # before that
        self._passed = 0

    @property
    def chunk_bytes(self) -> int:
        """Size of the chunks to send."""
        return SLOW_CHUNK_BYTES if self._slots.is_slow(self) else self._slots.chunks.size

    @property
    def held_s(self) -> float:
        """Seconds for which it has held a slot."""
        now = 0.0 if self.lane is None else self._slots.clock() - self._held_since
        return self._held_s + now

    @property
    def is_fast(self) -> bool:
        """Whether its mean rate is not that of a slow transfer, without the time while parked."""
        return self._passed >= self.held_s * SLOW_BYTES_PER_S > 0

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Within this the server waits for the peer; the slot may be lost."""
        self.idle_since = self._slots.clock()
        try:
            yield
        finally:
            self.idle_since = None

    async def passed(self, size_bytes: int, seconds: float = 0.0) -> None:
        """Count a chunk, and wait for a slot again if the transfer was parked or proves slow.

        Args:
            size_bytes: of the chunk.
            seconds: that sending it took; 0 for received chunks.
        """
        self._passed += size_bytes
        if self.lane is not None and not self._slots.is_slow(self):
            self._slots.count(size_bytes, seconds)
            if self.held_s > JUDGED_AFTER_S and not self.is_fast:
                self._slots.doubt(self)
        if self.lane is None:
            await self._slots.acquire(self)

    def give_up(self) -> None:
        """Park it: nothing more is expected of its peer."""
        self._slots.park(self)

    def gets(self, lane: _Lane) -> None:
        """Hold a slot of this lane from now on."""
        self.lane, self._held_since, self.is_new = lane, self._slots.clock(), False
        lane.held.add(self)

    def loses(self) -> None:
        """Free the slot."""
        if self.lane is not None:
            self._held_s = self.held_s
            self.lane.held.discard(self)
            self.lane = None


class TransferSlots:
    """Slots for transfers in one direction.

    Args:
        fast: most fast slots; there are `SLOW_PER_FAST` times as many slow ones.
        clock: monotonic seconds.
        chunks: sizes of chunks in fast slots.
        busy: share of the time in which the server is busy, from 0 to 1.

    Attributes:
        busy: transfers in progress, parked ones included.
        waiting: transfers that wait for a slot.
    """

    def __init__(
        self,
        fast: int,
        clock: Callable[[], float] = time.monotonic,
        chunks: Chunks | None = None,
        busy: Callable[[], float] = busy_share,
    ) -> None:
        self.clock = clock
        self.chunks = chunks or Chunks()
        self._most, self._busy = fast, busy
        self._fast, self._slow = _Lane(min(FEW, fast)), _Lane(fast * SLOW_PER_FAST)
        self._looked_at, self._moved = 0.0, 0  # the bytes in fast slots since then
        self._clients: dict[str, _Client] = {}
        self._doubted: OrderedDict[str, None] = OrderedDict()
        self._behind: set[str] = set()  # clients whose own transfer is in the way of their next
        self._timer: asyncio.TimerHandle | None = None
        self._overdue: dict[Transfer, float] = {}  # at the last look: since when each is idle
        self.busy = self.waiting = 0

    @asynccontextmanager
    async def enter(self, call: Call) -> AsyncIterator[Transfer]:
        """Wait for a slot and hold it, but for the times at which the transfer is parked.

        Raises:
            Refusal: STALLED, too many transfers of this client are parked.
        """
        transfer = Transfer(self, call.client)
        client = self._clients.setdefault(call.client, _Client())
        if client.num_parked >= MAX_PARKED:
            raise _stalled()
        client.num_transfers += 1
        try:
            await self.acquire(transfer)
            self.busy += 1
            try:
                yield transfer
                if transfer.is_fast and not transfer.was_parked:
                    self._doubted.pop(call.client, None)
            finally:
                self.busy -= 1
        finally:
            self._end(transfer)

    def is_slow(self, transfer: Transfer) -> bool:
        """Whether it is in a slow slot, or gets one next."""
        return transfer.lane is self._slow or transfer.client in self._doubted

    def count(self, size_bytes: int, seconds: float) -> None:
        """Count a chunk that passed in a fast slot."""
        self.chunks.passed(size_bytes, seconds)
        self._moved += size_bytes

    def doubt(self, transfer: Transfer) -> None:
        """Free the fast slot of a transfer that proved slow."""
        name = transfer.client
        self._doubted[name] = None
        if len(self._doubted) > MAX_DOUBTED:
            self._doubted.popitem(last=False)
        transfer.loses()
        self._clients[name].holder = None

    def park(self, transfer: Transfer) -> None:
        """Take away the slot of a transfer whose peer is idle."""
        if transfer.lane is None:
            return
        self.doubt(transfer)
        transfer.is_parked = transfer.was_parked = True
        client = self._clients[transfer.client]
        client.num_parked += 1
        if client.num_parked >= MAX_PARKED:
            for each in [each for each in client.waiting if each.is_new]:
                client.waiting.remove(each)
                if not each.granted.done():
                    each.granted.set_exception(_stalled())
        self._line_up(transfer.client)
        self._grant()

    async def acquire(self, transfer: Transfer) -> None:
        """Wait until the client has its turn."""
        client = self._clients[transfer.client]
        self._unpark(transfer)
        # One that has begun goes before those that have not.
        (client.waiting.append if transfer.is_new else client.waiting.appendleft)(transfer)
        transfer.granted = asyncio.get_running_loop().create_future()
        begun = self.clock()
        self.waiting += 1
        try:
            self._line_up(transfer.client)
            self._grant()
            await transfer.granted
        finally:
            self.waiting -= 1
            transfer.waited_s += self.clock() - begun
            if transfer in client.waiting:
                client.waiting.remove(transfer)
                self._line_up(transfer.client)

    def _unpark(self, transfer: Transfer) -> None:
        self._clients[transfer.client].num_parked -= transfer.is_parked
        transfer.is_parked = False

    def _end(self, transfer: Transfer) -> None:
        name, client = transfer.client, self._clients[transfer.client]
        self._unpark(transfer)
        transfer.loses()
        if client.holder is transfer:
            client.holder = None
        client.num_transfers -= 1
        self._line_up(name)
        if not client.num_transfers:
            del self._clients[name]
        self._grant()

    # ---- turns -------------------------------------------------------------------------------

    def _line_up(self, name: str) -> None:
        """Give a client a turn if it wants one and holds no slot."""
        client = self._clients[name]
        mine, other = self._fast, self._slow
        if name in self._doubted:
            mine, other = other, mine
        other.turns.pop(name, None)
        self._behind.discard(name)
        if not client.waiting:
            mine.turns.pop(name, None)
        elif client.holder is None:
            mine.turns.setdefault(name)
        else:
            self._behind.add(name)

    def _grant(self) -> None:
        """Give free slots to the clients whose turn it is."""
        for lane in (self._fast, self._slow):
            while lane.turns and lane.has_room:
                name, _ = lane.turns.popitem(last=False)
                client = self._clients[name]
                transfer = client.waiting.popleft()
                if not transfer.granted.done():  # else it was cancelled, and is about to leave
                    client.holder = transfer
                    transfer.gets(lane)
                    transfer.granted.set_result(None)
                self._line_up(name)
        if self.waiting and self._timer is None:
            self._looked_at, self._moved = self.clock(), 0
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Open or close a fast slot, and park idle transfers that are in the way of others.

        Only those are parked that were overdue at the last look too: if this process was late, the
        messages of their peers have been received since.
        """
        self._timer = None
        self._open_or_close()
        since, before = self.clock() - IDLE_S, self._overdue
        held = [t for lane in (self._fast, self._slow) for t in lane.held]
        self._overdue = {
            t: t.idle_since for t in held if t.idle_since is not None and t.idle_since <= since
        }
        idle = [t for t, at in self._overdue.items() if before.get(t) == at]
        for transfer in sorted(idle, key=self._overdue.__getitem__):
            lane = transfer.lane
            crowded = lane is not None and lane.turns and not lane.has_room
            if crowded or transfer.client in self._behind:
                self.park(transfer)
        self._grant()

    def _open_or_close(self) -> None:
        lane = self._fast
        is_full = self._busy() >= BUSY and self._moved >= ENOUGH_BYTES_PER_S * (
            self.clock() - self._looked_at
        )
        if is_full and lane.open > FEW:
            lane.open -= 1
        elif not is_full and lane.turns and lane.open < self._most:
            lane.open += 1


def _stalled() -> Refusal:
    return Refusal(
        Code.STALLED,
        f"Expected at most {MAX_PARKED} transfers of a client that stand still, got one more: "
        "continue or cancel them, or try again in a minute.",
    )
