"""A buffer: a round that takes updates of older models too, as a state machine without I/O.

Clients are kept at work, `concurrency` at a time, each on the model that was newest when it was
asked. After `goal` updates the buffer closes and its sum makes the next model. Clients at work
continue; their updates count in the buffer that is open when they arrive. One `Buffer` object
serves all buffers of a run, one after another: in state COMMITTED it waits for `NextBuffer`.

An update keeps the number of the round in which its client was asked, its origin. An abandoned
buffer ends all work, so only committed rounds lie between an origin and the open round: the
staleness of an update (models committed since its own) is the difference of the two numbers.

Sources: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff),
Algorithm 1; with a goal of 1 the schedule is that of Xie et al. 2019, "Asynchronous Federated
Optimization" (FedAsync), Algorithm 1.

Invariants: those of `Round`. No client is asked while `concurrency` members are at work. A client
is asked at most once per model and counts at most once per buffer, as in the paper. Work whose
update would be staler than `max_staleness` is withdrawn. Events of clients are processed while a
buffer is committed, but no client is asked before the next model exists.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

from fedloom.protocol.errors import Code
from fedloom.strategies.selection.roster import Attendance

from . import events, steps
from .clock import AT_ONCE
from .cohort import Phase
from .config import BufferConfig
from .effects import Offer, Opened, RoundEffect, Withdraw
from .round_engine import RoundEngine
from .selection import Select
from .states import IGNORE, REFUSE, RoundState, Verdict


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """The state of a member, for a buffer that is rebuilt.

    Attributes:
        origin: the round in which it was asked.
        phase: as stored.
        grace_s: seconds left of its grace period or time to answer; None while it is in contact
            and has answered.
        reason: of its failure or refusal.
    """

    origin: int
    phase: Phase
    grace_s: float | None = None
    reason: str = ""


class Buffer(RoundEngine):
    """The buffers of a run, one after another; the cohort includes members of earlier rounds.

    Attributes:
        number: of the round that the buffer is.
        last: the run wants no other buffer after this one.
    """

    __slots__ = ("_origins", "_resting", "last", "number")

    config: BufferConfig

    def __init__(
        self,
        config: BufferConfig,
        *,
        number: int,
        select: Select,
        now: float,
        available: Iterable[str] = (),
        last: bool = False,
    ) -> None:
        """Begin to select for the first buffer, at `now` in monotonic seconds."""
        super().__init__(config, select, now, available)
        self.number = number
        self.last = last
        self._origins: dict[str, int] = {}
        self._resting: dict[str, None] = {}  # idle, but not to be asked again for this model

    @classmethod
    def rebuild(
        cls,
        config: BufferConfig,
        *,
        number: int,
        select: Select,
        state: RoundState,
        members: Mapping[str, MemberSnapshot],
        now: float,
        deadline_left_s: float = 0.0,
        available: Iterable[str] = (),
        paused: bool = False,
        last: bool = False,
    ) -> "Buffer":
        """Continue from what was stored.

        The first `Wake` does what is due, as after `Round.restore`. After COMMITTED, `NextBuffer`
        continues.

        Args:
            config: the settings.
            number: of the round that is open, or was committed last.
            select: draws replacements.
            state: REPORTING, CLOSING or COMMITTED.
            members: those at work or lost, and those that ended in this buffer.
            now: monotonic seconds.
            deadline_left_s: seconds, as `RoundClock.deadline_left_s` gave them before.
            available: clients that are idle already.
            paused: whether the buffer stays paused.
            last: the run wants no other buffer after this one.
        """
        here = available if isinstance(available, Collection | Attendance) else list(available)
        if isinstance(here, Attendance):
            idle: Attendance | list[str] = here.without(members)
        else:
            idle = [client for client in here if client not in members]
        self = cls(config, number=number, select=select, now=now, available=idle, last=last)
        self.state = state
        over = state is RoundState.COMMITTED
        self.clock.check_at = inf if over else AT_ONCE
        self.clock.deadline = inf if over else now + deadline_left_s
        self.clock.look_at = inf if over else now + config.patience_s  # the others return, too
        for client, member in members.items():
            self._origins[client] = member.origin
            self.cohort.put(client, member.phase, member.reason)
        for grace_s, client in sorted(_grace(members)):
            offered = members[client].phase is Phase.OFFERED
            (self.cohort.offer if offered else self.cohort.leave)(client, now + grace_s)
        if len(idle) < len(here):
            rest = (c for c in here if c in members and not self.cohort.is_unfinished(c))
            self._resting = dict.fromkeys(rest)
        if paused and state is RoundState.REPORTING:
            self.clock.pause()
        return self

    # ---- what the driver reads ---------------------------------------------------------------

    @property
    def continues(self) -> bool:
        """Whether members keep working after a commit, for the next buffer."""
        return not self.last and self.state is not RoundState.ABANDONED

    def complete(self) -> list[RoundEffect]:
        """Close."""
        return steps.close(self)

    def origin(self, client: str) -> int | None:
        """The round in which a member was asked; None for others."""
        return self._origins.get(client)

    def snapshot(self, now: float) -> dict[str, MemberSnapshot]:
        """The members at work or lost, as `rebuild` takes them after a commit."""
        return {client: self._member(client, now) for client in self.cohort.unfinished()}

    def _member(self, client: str, now: float) -> MemberSnapshot:
        phase, until = self.cohort.contact(client)
        return MemberSnapshot(self._origins[client], phase, None if until is None else until - now)

    def waits_for(self, client: str) -> bool:
        """Whether an update of this client is still expected, in this buffer or a later one."""
        wanted = self.state.is_open if self.last else self.state is not RoundState.ABANDONED
        return wanted and self.cohort.is_unfinished(client)

    def refusal_for(self, client: str, origin: int | None = None) -> Code | None:
        """Why an update of this client for the task of `origin` is refused now, or None."""
        origin = self.number if origin is None else origin
        if self.number - origin > self.config.max_staleness:
            return Code.STALE_ROUND
        if self._origins.get(client) != origin:
            return Code.NOT_IN_COHORT
        between = self.state in (RoundState.CLOSING, RoundState.COMMITTED) and not self.last
        return None if between or self.state is RoundState.REPORTING else Code.ROUND_CLOSED

    # selecting

    def _candidate_came(self, event: events.Attended) -> list[RoundEffect]:
        self.candidates.add(event.client)
        return self._open_if_ready()

    def _open_if_ready(self, _: events.Wake | None = None) -> list[RoundEffect]:
        if self.clock.paused or len(self.candidates) < self.needed:
            return []
        return self._open() if len(self.candidates) - self.set_aside() >= self.needed else []

    def _open(self) -> list[RoundEffect]:
        usable = len(self.candidates) - self.set_aside()
        chosen = self.candidates.take(max(0, min(usable, self.free)))
        offers = [self.ask(client) for client in chosen]
        clock = self.clock
        clock.deadline = clock.now + self.config.deadline_s
        clock.check_at = min(clock.deadline, self.cohort.next_loss())
        clock.hope()
        self.state = RoundState.REPORTING
        return [Opened(tuple(chosen)), *offers]

    @property
    def needed(self) -> int:
        """Candidates that the first buffer needs to open."""
        return max(min(self.config.goal, self.config.concurrency), self.config.candidates)

    @property
    def needed_next(self) -> int:
        """Idle clients that the next buffer will ask at once."""
        return max(0, self.free)

    def could_ask(self, client: str) -> bool:
        """Whether a client could be asked for this model."""
        return client not in self.cohort and client not in self._resting

    @property
    def spare_reports(self) -> int:
        """0: every update frees a place."""
        return 0

    @property
    def free(self) -> int:
        """Members that may be recruited now, so that `concurrency` are at work."""
        return self.config.concurrency - self.cohort.at_work

    def ask(self, client: str) -> Offer:
        """Add a client to the cohort, on the model of this buffer."""
        self.offer(client)
        self._origins[client] = self.number
        return Offer(client, origin=self.number)

    # reporting

    def _came(self, event: events.Attended) -> list[RoundEffect]:
        return self._came_in_commit(event) or steps.settle(self)

    def _left(self, event: events.Left) -> list[RoundEffect]:
        self._resting.pop(event.client, None)
        return steps.left(self, event)

    def _reported(self, event: events.UpdateAccepted) -> list[RoundEffect]:
        return steps.settle(self) if self.cohort.report(event.client) else []

    # closing, and between two buffers

    def _came_in_commit(self, event: events.Attended) -> list[RoundEffect]:
        client = event.client
        if self.cohort.is_unfinished(client):
            origin = self._origins[client]
            if self.last and self.state is not RoundState.REPORTING:
                return [Withdraw(client, "the run needs no more updates", origin)]
            self.offer(client)
            return [Offer(client, again=True, origin=origin)]
        if client in self.cohort:
            self._resting[client] = None
        else:
            self.candidates.add(client)
        return []

    def _next(self, event: events.NextBuffer) -> list[RoundEffect]:
        for client in self._resting:
            self.candidates.add(client)
        self._resting = {}
        self.candidates.draw_by(event.select)
        self.number, self.last = event.number, event.last
        withdrawals = self._drop_ended_and_stale()
        self.cohort.lose_until(self.clock.now)
        return self._open() + withdrawals

    def _drop_ended_and_stale(self) -> list[RoundEffect]:
        withdrawals: list[RoundEffect] = []
        for client in list(self.cohort.phases):
            origin = self._origins[client]
            stale = self.number - origin > self.config.max_staleness
            unfinished = self.cohort.is_unfinished(client)
            if unfinished and not stale:
                continue
            if unfinished:
                reason = f"its update would be {self.number - origin} models behind"
                withdrawals.append(Withdraw(client, reason, origin))
            self.cohort.drop(client)
            del self._origins[client]
        return withdrawals

    def _disband(self, event: events.Disband) -> list[RoundEffect]:
        withdrawals = [] if self.last else steps.withdrawals(self, event.reason)
        self.last = True
        return withdrawals

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[events.BufferEvent], "BufferAction"]]] = {
        RoundState.SELECTING: {
            events.Attended: _candidate_came,
            events.Left: steps.candidate_left,
            events.OfferAccepted: IGNORE,
            events.OfferDeclined: IGNORE,
            events.ClientFailed: IGNORE,
            events.UpdateAccepted: IGNORE,
            events.UpdateRefused: IGNORE,
            events.Wake: _open_if_ready,
            events.Pause: steps.pause,
            events.Resume: steps.resume,
            events.Abort: steps.abort,
            events.CloseNow: steps.nothing_to_close,
            events.ExtendDeadline: steps.no_deadline,
            events.ChangeGoal: REFUSE,
            events.Committed: IGNORE,
            events.CommitFailed: IGNORE,
            events.NextBuffer: IGNORE,
            events.Disband: IGNORE,
        },
        RoundState.REPORTING: {
            events.Attended: _came,
            events.Left: _left,
            events.OfferAccepted: steps.started,
            events.OfferDeclined: steps.ended,
            events.ClientFailed: steps.ended,
            events.UpdateAccepted: _reported,
            events.UpdateRefused: steps.ended,
            events.Wake: steps.time_passed,
            events.Pause: steps.pause,
            events.Resume: steps.resume,
            events.Abort: steps.abort,
            events.CloseNow: steps.close_now,
            events.ExtendDeadline: steps.extend,
            events.ChangeGoal: REFUSE,
            events.Committed: IGNORE,
            events.CommitFailed: IGNORE,
            events.NextBuffer: IGNORE,
            events.Disband: IGNORE,
        },
        RoundState.CLOSING: {
            events.Attended: _came_in_commit,
            events.Left: _left,
            events.OfferAccepted: steps.started,
            events.OfferDeclined: steps.ended_in_commit,
            events.ClientFailed: steps.ended_in_commit,
            events.UpdateAccepted: steps.reported_in_commit,
            events.UpdateRefused: steps.ended_in_commit,
            events.Wake: steps.close_again,
            events.Pause: IGNORE,  # the run waits; the commit is one step
            events.Resume: IGNORE,
            events.Abort: REFUSE,
            events.CloseNow: REFUSE,
            events.ExtendDeadline: REFUSE,
            events.ChangeGoal: REFUSE,
            events.Committed: steps.committed,
            events.CommitFailed: steps.commit_failed,
            events.NextBuffer: IGNORE,
            events.Disband: IGNORE,
        },
        RoundState.COMMITTED: {
            **steps.OVER,
            events.Attended: _came_in_commit,
            events.Left: _left,
            events.OfferAccepted: steps.started,
            events.OfferDeclined: steps.ended_in_commit,
            events.ClientFailed: steps.ended_in_commit,
            events.UpdateRefused: steps.ended_in_commit,
            events.NextBuffer: _next,
            events.Disband: _disband,
        },
        RoundState.ABANDONED: {**steps.OVER, events.NextBuffer: IGNORE, events.Disband: IGNORE},
    }


# A table's type cannot express that each step takes the event of its row.
BufferAction = Callable[[Buffer, Any], list[RoundEffect]] | Verdict


def _grace(members: Mapping[str, MemberSnapshot]) -> Iterator[tuple[float, str]]:
    return ((s.grace_s, c) for c, s in members.items() if s.grace_s is not None)
