"""The exact sums of what a gate has accepted: of each open round one, sealed when the round closes.

A sum is sealed before, once it has many updates or the gate stops; the next update begins another.

The driver merges a sealed sum instead of fetching the bodies in it. It need not be sealed: bodies
stay in the object store until the round is over, and what no sum has is folded from them.

Invariants: an update is in one sealed sum at most, as its row names the sum once: the sums of a
round are disjoint. A row names only a sum that is durable.
"""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.updates.addends import UpdateFile
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.fleet.context import FleetContext
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import timed
from fedloom.server.planning import limits
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.fold import PATIENCE_S, TOGETHER, Folder, factor, in_threads
from fedloom.server.threads import Grouped

log = logging.getLogger(__name__)

Key = tuple[str, int]

MOST_UPDATES, MOST_BYTES = 256, 4 << 30
"""Updates of a sum, and bytes of their bodies, at which it is sealed: what a gate that dies leaves
to the driver."""


class _Waiting(NamedTuple):
    """An update to be folded."""

    update: AcceptedUpdate
    factor: float


@dataclass(slots=True)
class _Sum:
    folder: Folder
    fold: Grouped[_Waiting, None]
    folding: BackgroundTasks = field(default_factory=BackgroundTasks)
    is_whole: bool = True  # no update was added in part
    num_updates: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.num_updates >= MOST_UPDATES or self.size_bytes >= MOST_BYTES


class GateSums:
    """The sums of a gate.

    Args:
        server: context of the gate's services.
        gate: its id.
    """

    def __init__(self, server: FleetContext, gate: str) -> None:
        self._server = server
        self._gate = gate
        self._sums: dict[Key, _Sum | None] = {}  # None: the round has closed
        self._sealing = BackgroundTasks()

    @property
    def keys(self) -> list[Key]:
        """The rounds of the sums, also those that have closed."""
        return list(self._sums)

    def add(self, plan: RoundPlan, update: AcceptedUpdate) -> None:
        """Fold an update that this gate has accepted for a round, or for the task of one; soon."""
        if not update.file:
            return
        key = update.run, update.counted
        if key not in self._sums and plan.spec.needs == "sum":
            folder = Folder(limits.empty_sum(plan.spec, plan.manifest), set())
            fold = partial(self._fold_in_thread, folder)
            grouped = Grouped(self._server.in_fold, fold, most=TOGETHER, patience_s=PATIENCE_S)
            self._sums[key] = _Sum(folder, grouped)
        if (sum_ := self._sums.get(key)) is None:
            self._server.spool.release_copy(update.file)  # the driver fetches it
            return
        waiting = _Waiting(update, factor(plan.spec, update.staleness))
        sum_.folding.start(self._fold(sum_, waiting))
        sum_.num_updates += 1
        sum_.size_bytes += update.size_bytes
        if sum_.is_full:
            self._sealing.start(self._seal(key, self._sums.pop(key)))

    async def _fold(self, sum_: _Sum, waiting: _Waiting) -> None:
        try:
            await sum_.fold(waiting)
        except Exception:  # perhaps in the middle of its values
            sum_.is_whole = False
            update = waiting.update
            extra = about(update.client, update.run, update.round)
            log.exception(
                "the driver folds this sum: that of %s failed", update.client, extra=extra
            )

    def _fold_in_thread(self, folder: Folder, group: Sequence[_Waiting]) -> list[None]:
        spool = self._server.spool
        with timed(self._server.meters.fold_s, times=len(group)):
            updates = {
                update.client: UpdateFile(
                    spool.path(update.file), spool.header(update.file), factor
                )
                for update, factor in group
            }
            folder.fold(updates, in_threads(self._server.in_fold_helpers, updates.values()))
        for update, _ in group:
            spool.release_copy(update.file)
        return [None] * len(group)

    async def seal(self, key: Key) -> None:
        """Seal the sum of a round that has closed, once."""
        sum_, self._sums[key] = self._sums.get(key), None
        await self._seal(key, sum_)

    async def drain(self) -> None:
        """Seal all sums: the gate has stopped, and accepts nothing more."""
        for key in self.keys:
            self._sealing.start(self._seal(key, self._sums.pop(key)))
        await self._sealing.settled()

    async def _seal(self, key: Key, sum_: _Sum | None) -> None:
        if sum_ is None:
            return
        sum_.fold.hurry()
        await sum_.folding.settled()
        if not sum_.is_whole:
            return  # the driver folds the bodies
        try:
            await self._store(key, sum_.folder)
        except Exception as error:  # noqa: BLE001 - the driver folds the bodies
            log.warning(
                "a sum of round %d is not sealed: %r", key[1], error, extra=about(run=key[0])
            )

    async def _store(self, key: Key, folder: Folder) -> None:
        server, members = self._server, folder.folded
        if not members:
            return
        file = f"{key[0]}.{key[1]}..{self._gate}-{secrets.token_hex(4)}"
        await server.in_fold(folder.save, server.spool.path(file))
        await server.in_bodies(server.spool.keep, file, *key)
        crossing("seal.stored")
        ledger = server.ledger
        sealed = await server.in_ledger(ledger.seal, self._gate, key, file, sorted(members))
        crossing("seal.noted")
        if sealed:
            server.spool.release_copy(file)
        else:
            server.spool.release(file)

    def forget(self, key: Key) -> None:
        """Forget a round that is over."""
        self._sums.pop(key, None)
