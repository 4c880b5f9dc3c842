"""A buffer: a round that takes updates of older models too, as a state machine without I/O.

Clients are kept at work, `concurrency` at a time, each on the model that was newest when it was
asked. When `goal` updates have come, the buffer closes and its sum makes the next model; clients
at work go on, and what they send counts in the buffer that is open when it arrives. One `Buffer`
is all the buffers of a run, one after another: committed is where it waits for `NextBuffer`.

An update keeps the address of the round that its client was asked in, its origin. Only committed
rounds lie between an origin and the round that is open, since a buffer that is abandoned ends
everybody's work; so the staleness of an update, the models committed since its own, is the
difference of the two numbers.

Sources: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff),
Algorithm 1; with a goal of 1 the schedule is that of Xie et al. 2019, "Asynchronous Federated
Optimization" (FedAsync), Algorithm 1.

Invariants: those of `Round`, and: nobody is asked while `concurrency` members are at work. A
client is asked at most once for a model and counts at most once in a buffer, as in the paper.
Nobody stays at work whose update would be staler than `max_staleness`. What a client does while a
buffer is being committed is noted, and nobody is asked before the next model is there.
"""

# ruff: noqa: SLF001 - a table names the methods of the class that it extends

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, cast

from fedloom.protocol.errors import Code

from .cohort import Phase
from .config import BufferConfig
from .effects import Offer, Opened, Recruited, RoundEffect, Withdraw
from .events import (
    Abort,
    Attended,
    BufferEvent,
    ChangeGoal,
    ClientFailed,
    CloseNow,
    CommitFailed,
    Committed,
    Disband,
    ExtendDeadline,
    Left,
    NextBuffer,
    OfferAccepted,
    OfferDeclined,
    Pause,
    Resume,
    RoundEvent,
    UpdateAccepted,
    UpdateRefused,
    Wake,
)
from .round import _AT_ONCE, Round
from .selection import Select
from .states import IGNORE, REFUSE, RoundState, Verdict

_OUT: Mapping[type[Any], Phase] = {
    OfferDeclined: Phase.DECLINED,
    ClientFailed: Phase.FAILED,
    UpdateRefused: Phase.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a member stands, for a buffer that is built anew.

    Attributes:
        origin: the round that it was asked in.
        phase: as stored.
        patience_s: seconds that it is still waited for; None while it is in contact.
    """

    origin: int
    phase: Phase
    patience_s: float | None = None


class Buffer(Round):
    """The buffers of a run, one after another."""

    __slots__ = ("_knobs", "_last", "_origins", "_resting", "number")

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
        """Begin to select for the first buffer.

        Args:
            config: the knobs.
            number: of the round that the buffer is.
            select: draws who is asked in it.
            now: monotonic seconds.
            available: clients that are idle already.
            last: the run wants no other buffer after this one.
        """
        Round.__init__(self, config, select=select, now=now, available=available)
        self.number = number
        self._knobs = config
        self._last = last
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
        members: Mapping[str, Standing],
        now: float,
        deadline_left_s: float = 0.0,
        available: Iterable[str] = (),
        paused: bool = False,
        last: bool = False,
    ) -> "Buffer":
        """Go on from what was stored.

        The first `Wake` does what is due, as after `Round.restore`. After COMMITTED it is
        `NextBuffer` that goes on.

        Args:
            config: the knobs.
            number: of the round that is open, or was committed last.
            select: draws replacements.
            state: REPORTING, CLOSING or COMMITTED.
            members: those at work or lost, and those whose part in this buffer has ended.
            now: monotonic seconds.
            deadline_left_s: seconds, as `deadline_left_s` gave them before.
            available: clients that are idle already.
            paused: whether the buffer stays paused.
            last: the run wants no other buffer after this one.
        """
        here = available if isinstance(available, Collection) else list(available)
        idle = [client for client in here if client not in members]
        self = cls(config, number=number, select=select, now=now, available=idle, last=last)
        self.state = state
        self._check_at = inf if state is RoundState.COMMITTED else _AT_ONCE
        self._deadline = inf if state is RoundState.COMMITTED else now + deadline_left_s
        for client, standing in members.items():
            self._origins[client] = standing.origin
            self._cohort.put(client, standing.phase)
        for patience_s, client in sorted(_patience(members)):
            self._cohort.leave(client, now + patience_s)
        if len(idle) < len(here):
            rest = (c for c in here if c in members and not self._cohort.is_unfinished(c))
            self._resting = dict.fromkeys(rest)
        if paused and state is RoundState.REPORTING:
            self._paused_at, self._check_at = now, inf
        return self

    # ---- what the shell reads ----------------------------------------------------------------

    @property
    def last(self) -> bool:
        """Whether no other buffer follows."""
        return self._last

    def origin(self, client: str) -> int | None:
        """The round that a member was asked in; None for others."""
        return self._origins.get(client)

    def standing(self, now: float) -> dict[str, Standing]:
        """Those at work or lost, as `rebuild` takes them after a commit."""
        return {client: self._standing(client, now) for client in self._cohort.unfinished()}

    def _standing(self, client: str, now: float) -> Standing:
        phase, until = self._cohort.stands(client)
        return Standing(self._origins[client], phase, None if until is None else until - now)

    def refusal_for(self, client: str, origin: int | None = None) -> Code | None:
        """Why an update of this client for the task of `origin` would not be admitted now."""
        origin = self.number if origin is None else origin
        if self.number - origin > self._knobs.max_staleness:
            return Code.STALE_ROUND
        if self._origins.get(client) != origin:
            return Code.NOT_IN_COHORT
        between = self.state in (RoundState.CLOSING, RoundState.COMMITTED) and not self._last
        return None if between or self.state is RoundState.REPORTING else Code.ROUND_CLOSED

    def handle(self, event: BufferEvent, now: float) -> list[RoundEffect]:
        """Take note of an event and say what is to be done, in order; see `Round.handle`.

        Raises:
            OperatorRefused: an operator's command does not fit; nothing has changed.
        """
        return super().handle(cast(RoundEvent, event), now)

    # selecting

    def _open_if_ready(self, _: Wake | None = None) -> list[RoundEffect]:
        needed = max(min(self._knobs.goal, self._knobs.concurrency), self._knobs.candidates)
        return [] if self.paused or len(self._bench) < needed else self._open()

    def _open(self) -> list[RoundEffect]:
        chosen = self._bench.take(max(0, min(len(self._bench), self._free)))
        for client in chosen:
            self._ask(client)
        self._deadline = self._now + self._knobs.deadline_s
        self._check_at = min(self._deadline, self._cohort.next_loss())
        self.state = RoundState.REPORTING
        return [Opened(tuple(chosen)), *(Offer(c, origin=self.number) for c in chosen)]

    @property
    def _free(self) -> int:
        return self._knobs.concurrency - self._cohort.at_work

    def _ask(self, client: str) -> None:
        self._cohort.put(client, Phase.OFFERED)
        self._origins[client] = self.number

    # reporting

    def _came(self, event: Attended) -> list[RoundEffect]:
        again = self._came_meanwhile(event)
        return again or self._settle()

    def _left(self, event: Left) -> list[RoundEffect]:
        self._resting.pop(event.client, None)
        return super()._left(event)

    def _reported(self, event: UpdateAccepted) -> list[RoundEffect]:
        return self._settle() if self._cohort.report(event.client) else []

    def _recruit(self) -> list[RoundEffect]:
        effects: list[RoundEffect] = []
        while self._free > 0 and (client := self._bench.pop()) is not None:
            self._ask(client)
            effects += (Recruited(client), Offer(client, origin=self.number))
        return effects

    # closing, and between two buffers

    def _close(self) -> list[RoundEffect]:
        effects = super()._close()
        return effects if self._last else effects[:1]

    def _came_meanwhile(self, event: Attended) -> list[RoundEffect]:
        client = event.client
        if self._cohort.is_unfinished(client):
            origin = self._origins[client]
            if self._last and self.state is not RoundState.REPORTING:
                return [Withdraw(client, "the run needs no more updates", origin)]
            self._cohort.come_back(client)
            return [Offer(client, again=True, origin=origin)]
        if client in self._cohort:
            self._resting[client] = None
        else:
            self._bench.add(client)
        return []

    def _out_meanwhile(
        self, event: OfferDeclined | ClientFailed | UpdateRefused
    ) -> list[RoundEffect]:
        self._cohort.end(event.client, _OUT[type(event)])
        return []

    def _commit_failed(self, event: CommitFailed) -> list[RoundEffect]:
        effects = super()._commit_failed(event)
        return effects if self._last else effects + self._withdrawals(event.reason)

    def _next(self, event: NextBuffer) -> list[RoundEffect]:
        for client in self._resting:
            self._bench.add(client)
        self._resting = {}
        self._bench.draw_by(event.select)
        self.number, self._last = event.number, event.last
        withdrawals: list[RoundEffect] = []
        for client in list(self._cohort.phases):
            origin = self._origins[client]
            stale = self.number - origin > self._knobs.max_staleness
            if self._cohort.is_unfinished(client) and not stale:
                continue
            if self._cohort.is_unfinished(client):
                reason = f"its update would be {self.number - origin} models behind"
                withdrawals.append(Withdraw(client, reason, origin))
            self._cohort.drop(client)
            del self._origins[client]
        self._cohort.lose_until(self._now)
        return self._open() + withdrawals

    def _disband(self, event: Disband) -> list[RoundEffect]:
        withdrawals = [] if self._last else self._withdrawals(event.reason)
        self._last = True
        return withdrawals

    # abandoning

    def _withdrawals(self, reason: str) -> list[RoundEffect]:
        unfinished = self._cohort.unfinished()
        return [Withdraw(client, reason, self._origins[client]) for client in unfinished]

    def _came_too_late(self, event: Attended) -> list[RoundEffect]:
        effects = super()._came_too_late(event)
        origin = self._origins.get(event.client)
        return [Withdraw(e.client, e.reason, origin) for e in effects if isinstance(e, Withdraw)]

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[BufferEvent], "BufferAction"]]] = {  # type: ignore[assignment]
        RoundState.SELECTING: {
            Attended: Round._candidate_came,
            Left: Round._candidate_left,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: IGNORE,
            UpdateRefused: IGNORE,
            Wake: _open_if_ready,
            Pause: Round._pause,
            Resume: Round._resume,
            Abort: Round._abort,
            CloseNow: Round._nothing_to_close,
            ExtendDeadline: Round._no_deadline,
            ChangeGoal: REFUSE,
            Committed: IGNORE,
            CommitFailed: IGNORE,
            NextBuffer: IGNORE,
            Disband: IGNORE,
        },
        RoundState.REPORTING: {
            Attended: _came,
            Left: _left,
            OfferAccepted: Round._started,
            OfferDeclined: Round._declined,
            ClientFailed: Round._failed,
            UpdateAccepted: _reported,
            UpdateRefused: Round._refused,
            Wake: Round._time_passed,
            Pause: Round._pause,
            Resume: Round._resume,
            Abort: Round._abort,
            CloseNow: Round._close_now,
            ExtendDeadline: Round._extend,
            ChangeGoal: REFUSE,
            Committed: IGNORE,
            CommitFailed: IGNORE,
            NextBuffer: IGNORE,
            Disband: IGNORE,
        },
        RoundState.CLOSING: {
            Attended: _came_meanwhile,
            Left: _left,
            OfferAccepted: Round._started,
            OfferDeclined: _out_meanwhile,
            ClientFailed: _out_meanwhile,
            UpdateAccepted: Round._reported_in_flight,
            UpdateRefused: _out_meanwhile,
            Wake: Round._close_again,
            Pause: IGNORE,  # it is the run that waits: the commit is not to be cut in two
            Resume: IGNORE,
            Abort: REFUSE,
            CloseNow: REFUSE,
            ExtendDeadline: REFUSE,
            ChangeGoal: REFUSE,
            Committed: Round._committed,
            CommitFailed: _commit_failed,
            NextBuffer: IGNORE,
            Disband: IGNORE,
        },
        RoundState.COMMITTED: {
            Attended: _came_meanwhile,
            Left: _left,
            OfferAccepted: Round._started,
            OfferDeclined: _out_meanwhile,
            ClientFailed: _out_meanwhile,
            UpdateAccepted: IGNORE,
            UpdateRefused: _out_meanwhile,
            Wake: IGNORE,
            Pause: REFUSE,
            Resume: REFUSE,
            Abort: REFUSE,
            CloseNow: REFUSE,
            ExtendDeadline: REFUSE,
            ChangeGoal: REFUSE,
            Committed: IGNORE,
            CommitFailed: IGNORE,
            NextBuffer: _next,
            Disband: _disband,
        },
        RoundState.ABANDONED: {
            Attended: _came_too_late,
            Left: IGNORE,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: IGNORE,
            UpdateRefused: IGNORE,
            Wake: IGNORE,
            Pause: REFUSE,
            Resume: REFUSE,
            Abort: REFUSE,
            CloseNow: REFUSE,
            ExtendDeadline: REFUSE,
            ChangeGoal: REFUSE,
            Committed: IGNORE,
            CommitFailed: IGNORE,
            NextBuffer: IGNORE,
            Disband: IGNORE,
        },
    }


# Each method takes the event of its row, which the type of a table cannot say.
BufferAction = Callable[[Any, Any], list[RoundEffect]] | Verdict


def _patience(members: Mapping[str, Standing]) -> Iterator[tuple[float, str]]:
    return ((s.patience_s, c) for c, s in members.items() if s.patience_s is not None)
