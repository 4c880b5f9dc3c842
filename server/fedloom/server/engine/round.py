"""One round of federated learning as a state machine that does no I/O.

A `Round` is told what happened and when, and answers with what is to be done; sockets, files and
clocks are its shell's. It is mutable on purpose: a simulation pushes millions of events through
it, and a cohort that is copied for each event would make that quadratic.

One module of five hundred lines: a fifth of it is the table and what it names, and the methods
that the table names share one clock and one cohort. A clock apart would cost every event of a
simulation a look-up more and would still be moved by half of the methods.

Sources: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2
(selection, reporting, goal and deadline); the shape, a literal table of (state, event), is h11's.

Invariants: a client is counted once. Every member gets one first offer. A round closes with its
quorum, or by its operator's command with at least one update. Terminal states stay terminal.
After handling, `wake_at` is None or later than `now`. Handling raises nothing but OperatorRefused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Any, ClassVar

from fedloom.protocol.errors import Code, IntegrityError, UsageError

from .cohort import Cohort, Phase
from .config import RoundConfig
from .effects import Abandon, Close, Offer, Opened, Recruited, RoundEffect, Withdraw
from .errors import OperatorRefused
from .events import (
    Abort,
    Attended,
    ChangeGoal,
    ClientFailed,
    CloseNow,
    CommitFailed,
    Committed,
    ExtendDeadline,
    Left,
    OfferAccepted,
    OfferDeclined,
    Pause,
    Resume,
    RoundEvent,
    UpdateAccepted,
    UpdateRefused,
    Wake,
)
from .selection import Bench, Select
from .states import IGNORE, REFUSE, RoundState, Verdict

_WAKE = Wake()
_AT_ONCE = -inf

NO_QUORUM = "quorum not reached"
"""How the reason of a round begins that was abandoned at its deadline."""


class Round:
    """One round: its cohort, its clock and its state.

    Ask `wake_at` after building and after every event, and handle `Wake` at that time.
    """

    __slots__ = (
        "_bench",
        "_check_at",
        "_cohort",
        "_deadline",
        "_now",
        "_paused_at",
        "_places",
        "config",
        "reason",
        "state",
    )

    def __init__(
        self, config: RoundConfig, *, select: Select, now: float, available: Iterable[str] = ()
    ) -> None:
        """Begin to select.

        Args:
            config: the five knobs.
            select: draws the cohort and its replacements; what it returns is checked, and
                anything but the asked number of different candidates is a ValueError.
            now: monotonic seconds.
            available: clients that are idle already. Those named here are drawn from together,
                so that the draw does not depend on the order in which they attended.
        """
        self.config = config
        self.state = RoundState.SELECTING
        self.reason = ""
        self._bench = Bench(select, available)
        self._cohort = Cohort()
        self._places = 0  # reports hoped for: the size of the cohort when it was chosen
        self._deadline = inf
        self._paused_at: float | None = None
        self._now = now
        self._check_at = _AT_ONCE  # nothing is due before this time

    @classmethod
    def restore(
        cls,
        config: RoundConfig,
        *,
        select: Select,
        state: RoundState,
        cohort: Mapping[str, Phase],
        accepted: Collection[str],
        deadline_left_s: float,
        now: float,
        available: Iterable[str] = (),
        paused: bool = False,
    ) -> "Round":
        """Go on with a round after a restart.

        Members that the round was waiting for are out of contact, their patience starts now, and
        they are offered their task again when they attend. The first `Wake` does what is due: a
        round that has reached its goal closes, one that was closing asks for its commit again.

        Args:
            config: the five knobs.
            select: draws replacements.
            state: REPORTING or CLOSING. A round that was selecting is simply begun anew.
            cohort: client to the phase last stored, in the order of joining.
            accepted: members whose updates are durable; this outweighs their stored phase.
            deadline_left_s: seconds, as `deadline_left_s` gave them before.
            now: monotonic seconds.
            available: clients that are idle already.
            paused: whether the round stays paused.

        Raises:
            IntegrityError: the stored round contradicts itself.
        """
        strangers = set(accepted) - cohort.keys()
        if strangers:
            raise IntegrityError(f"Expected updates of the cohort alone, got {min(strangers)}'s.")
        if state not in (RoundState.REPORTING, RoundState.CLOSING):
            raise IntegrityError(f"Expected a round that is reporting or closing, got {state}.")
        self = cls(config, select=select, now=now, available=set(available) - cohort.keys())
        self.state = state
        self._places = max(config.goal, min(len(cohort), config.cohort_size))
        self._deadline = now + deadline_left_s
        for client, phase in cohort.items():
            lapsed = phase is Phase.REPORTED and client not in accepted
            settled = Phase.REPORTED if client in accepted else phase
            self._cohort.put(client, Phase.OFFERED if lapsed else settled)
            self._cohort.leave(client, now + config.patience_s)
        if paused and state is RoundState.REPORTING:
            self._paused_at, self._check_at = now, inf
        return self

    # ---- what the shell and the status page read ---------------------------------------------

    @property
    def phases(self) -> Mapping[str, Phase]:
        """The cohort: client to phase, in the order of joining; a live, read-only view."""
        return self._cohort.phases

    @property
    def accepted(self) -> int:
        """Updates counted so far."""
        return self._cohort.accepted

    @property
    def paused(self) -> bool:
        """Whether an operator stopped the clock."""
        return self._paused_at is not None

    @property
    def available(self) -> int:
        """Idle clients outside the cohort."""
        return len(self._bench)

    @property
    def is_open(self) -> bool:
        """Whether the round can still be aborted: it is neither closing nor over."""
        return self.state in (RoundState.SELECTING, RoundState.REPORTING)

    @property
    def is_over(self) -> bool:
        """Whether the round was committed or abandoned."""
        return self.state in (RoundState.COMMITTED, RoundState.ABANDONED)

    @property
    def wake_at(self) -> float | None:
        """Monotonic seconds of the next `Wake` that is needed, or None."""
        if self._check_at == _AT_ONCE:
            return self._now
        at = self._next_due()
        return None if at == inf else at

    def counts(self) -> dict[Phase, int]:
        """Members in each phase, zeros included."""
        return self._cohort.counts()

    def deadline_left_s(self, now: float) -> float | None:
        """Seconds until the deadline, standing still in a pause; None before it is set."""
        if self._deadline == inf:
            return None
        return max(0.0, self._deadline - (now if self._paused_at is None else self._paused_at))

    def refusal_for(self, client: str) -> Code | None:
        """Why an update of this client would not be admitted now, or None.

        A repeat of an accepted update is the ledger's to recognise, before this is asked.
        """
        if client not in self._cohort:
            return Code.NOT_IN_COHORT
        return None if self.state is RoundState.REPORTING else Code.ROUND_CLOSED

    # ---- handling ----------------------------------------------------------------------------

    def handle(self, event: RoundEvent, now: float) -> list[RoundEffect]:
        """Take note of an event and say what is to be done, in order.

        The event comes before what is due at the same time: an update that was accepted before
        anybody noticed the deadline still counts.

        Args:
            event: what happened.
            now: monotonic seconds; an earlier time than the last counts as the last.

        Raises:
            OperatorRefused: an operator's command does not fit; nothing has changed.
        """
        self._now = now = max(now, self._now)
        action = self.TABLE[self.state][type(event)]
        if action is REFUSE:
            raise OperatorRefused(_too_late(event, self.state))
        effects = [] if isinstance(action, Verdict) else action(self, event)
        if now >= self._check_at:
            due = self.TABLE[self.state][Wake]
            if not isinstance(due, Verdict):
                effects += due(self, _WAKE)
            self._check_at = self._next_due()
        return effects

    def _next_due(self) -> float:
        if self._paused_at is not None or self.state is not RoundState.REPORTING:
            return inf
        return min(self._deadline, self._cohort.next_loss())

    # selecting

    def _candidate_came(self, event: Attended) -> list[RoundEffect]:
        self._bench.add(event.client)
        return self._open_if_ready()

    def _candidate_left(self, event: Left) -> list[RoundEffect]:
        self._bench.discard(event.client)
        return []

    def _open_if_ready(self, _: Wake | None = None) -> list[RoundEffect]:
        if self.paused or len(self._bench) < max(self.config.goal, self.config.candidates):
            return []
        chosen = self._bench.take(min(len(self._bench), self.config.cohort_size))
        for client in chosen:
            self._cohort.put(client, Phase.OFFERED)
        self._places = len(chosen)
        self._deadline = self._check_at = self._now + self.config.deadline_s
        self.state = RoundState.REPORTING
        return [Opened(tuple(chosen)), *map(Offer, chosen)]

    # reporting

    def _came(self, event: Attended) -> list[RoundEffect]:
        client = event.client
        if self._cohort.come_back(client):
            return [Offer(client, again=True)]
        if client in self._cohort:
            return []
        self._bench.add(client)
        return self._settle()

    def _left(self, event: Left) -> list[RoundEffect]:
        self._bench.discard(event.client)
        paused_at = self._paused_at
        until = (self._now if paused_at is None else paused_at) + self.config.patience_s
        self._cohort.leave(event.client, until)
        if paused_at is None:
            self._check_at = min(self._check_at, until)
        return []

    def _started(self, event: OfferAccepted) -> list[RoundEffect]:
        self._cohort.start_training(event.client)
        return []

    def _declined(self, event: OfferDeclined) -> list[RoundEffect]:
        return self._ended(event.client, Phase.DECLINED)

    def _failed(self, event: ClientFailed) -> list[RoundEffect]:
        return self._ended(event.client, Phase.FAILED)

    def _refused(self, event: UpdateRefused) -> list[RoundEffect]:
        return self._ended(event.client, Phase.REFUSED)

    def _ended(self, client: str, phase: Phase) -> list[RoundEffect]:
        return self._settle() if self._cohort.end(client, phase) else []

    def _reported(self, event: UpdateAccepted) -> list[RoundEffect]:
        cohort = self._cohort
        if not cohort.report(event.client):
            return []
        # A report frees no place, and while others are at work only the goal can close the round.
        waits = cohort.accepted < self.config.goal and cohort.at_work
        return [] if waits else self._settle()

    def _settle(self) -> list[RoundEffect]:
        """Close if the goal is reached, else fill free places, else close if nobody is left."""
        if self.paused:
            return []
        if self._cohort.accepted >= self.config.goal:
            return self._close()
        effects = self._recruit()
        if not self._cohort.at_work and self._cohort.accepted >= self.config.quorum:
            effects += self._close()
        return effects

    def _recruit(self) -> list[RoundEffect]:
        effects: list[RoundEffect] = []
        if not self.config.replace:
            return effects
        free = self._places - self._cohort.accepted - self._cohort.at_work
        while free > 0 and (client := self._bench.pop()) is not None:
            self._cohort.put(client, Phase.OFFERED)
            effects += (Recruited(client), Offer(client))
            free -= 1
        return effects

    def _time_passed(self, _: Wake) -> list[RoundEffect]:
        if self.paused:
            return []
        if self._now >= self._deadline:
            return self._deadline_came()
        self._cohort.lose_until(self._now)
        return self._settle()

    def _deadline_came(self) -> list[RoundEffect]:
        accepted, quorum = self._cohort.accepted, self.config.quorum
        if accepted >= quorum:
            return self._close()
        return self._abandon(
            f"{NO_QUORUM}: expected at least {quorum} updates by the deadline, got {accepted}"
        )

    # closing

    def _close(self) -> list[RoundEffect]:
        self.state = RoundState.CLOSING
        self._paused_at, self._check_at = None, inf
        return [Close(), *self._withdrawals("the round has closed")]

    def _reported_in_flight(self, event: UpdateAccepted) -> list[RoundEffect]:
        # It became durable while the round closed; the shell waits for such before it folds.
        self._cohort.report(event.client)
        return []

    def _close_again(self, _: Wake) -> list[RoundEffect]:
        # Only a round restored as CLOSING has anything due here, and only once.
        if self._check_at != _AT_ONCE:
            return []
        self._check_at = inf
        return [Close()]

    def _committed(self, _: Committed) -> list[RoundEffect]:
        self.state = RoundState.COMMITTED
        return []

    def _commit_failed(self, event: CommitFailed) -> list[RoundEffect]:
        self.state, self.reason = RoundState.ABANDONED, event.reason
        return [Abandon(event.reason)]

    def _came_too_late(self, event: Attended) -> list[RoundEffect]:
        if not self._cohort.is_unfinished(event.client):
            return []
        return [Withdraw(event.client, self.reason or "the round has closed")]

    # abandoning

    def _abandon(self, reason: str) -> list[RoundEffect]:
        self.state, self.reason = RoundState.ABANDONED, reason
        self._paused_at, self._check_at = None, inf
        return [Abandon(reason), *self._withdrawals(reason)]

    def _withdrawals(self, reason: str) -> list[RoundEffect]:
        return [Withdraw(client, reason) for client in self._cohort.unfinished()]

    # operator

    def _abort(self, event: Abort) -> list[RoundEffect]:
        return self._abandon(event.reason)

    def _close_now(self, _: CloseNow) -> list[RoundEffect]:
        if not self._cohort.accepted:
            raise OperatorRefused(
                "Expected at least 1 accepted update to close with, got 0; "
                "wait for one or abort the round."
            )
        return self._close()

    def _nothing_to_close(self, _: CloseNow) -> list[RoundEffect]:
        raise OperatorRefused(
            "Expected a round that is reporting, got one that waits for clients; abort it instead."
        )

    def _extend(self, event: ExtendDeadline) -> list[RoundEffect]:
        if not (event.seconds > 0 and isfinite(self._deadline + event.seconds)):
            raise OperatorRefused(f"Expected seconds={event.seconds} > 0 and finite.")
        self._deadline += event.seconds
        return []

    def _no_deadline(self, _: ExtendDeadline) -> list[RoundEffect]:
        raise OperatorRefused(
            "Expected a round that is reporting, got one that waits for clients: "
            "its deadline is set when it opens."
        )

    def _change_goal(self, event: ChangeGoal) -> list[RoundEffect]:
        try:
            config = replace(self.config, goal=event.goal, quorum=event.quorum)
        except UsageError as error:
            raise OperatorRefused(str(error)) from None
        self.config, self._check_at = config, _AT_ONCE  # what is due by the new numbers
        if self.state is RoundState.REPORTING:
            self._places = max(config.goal, min(self._places, config.cohort_size))
        return []

    def _pause(self, _: Pause) -> list[RoundEffect]:
        if self.paused:
            raise OperatorRefused("Expected a round that runs, got one that is paused already.")
        self._paused_at, self._check_at = self._now, inf
        return []

    def _resume(self, _: Resume) -> list[RoundEffect]:
        if self._paused_at is None:
            raise OperatorRefused("Expected a round that is paused, got one that runs.")
        pause_s = self._now - self._paused_at
        self._deadline += pause_s
        self._cohort.delay(pause_s)
        self._paused_at, self._check_at = None, _AT_ONCE  # do at once what the pause held back
        return []

    _OVER: ClassVar[Mapping[type[RoundEvent], "Action"]] = {
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
    }

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[RoundEvent], "Action"]]] = {
        RoundState.SELECTING: {
            Attended: _candidate_came,
            Left: _candidate_left,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: IGNORE,
            UpdateRefused: IGNORE,
            Wake: _open_if_ready,
            Pause: _pause,
            Resume: _resume,
            Abort: _abort,
            CloseNow: _nothing_to_close,
            ExtendDeadline: _no_deadline,
            ChangeGoal: _change_goal,
            Committed: IGNORE,
            CommitFailed: IGNORE,
        },
        RoundState.REPORTING: {
            Attended: _came,
            Left: _left,
            OfferAccepted: _started,
            OfferDeclined: _declined,
            ClientFailed: _failed,
            UpdateAccepted: _reported,
            UpdateRefused: _refused,
            Wake: _time_passed,
            Pause: _pause,
            Resume: _resume,
            Abort: _abort,
            CloseNow: _close_now,
            ExtendDeadline: _extend,
            ChangeGoal: _change_goal,
            Committed: IGNORE,
            CommitFailed: IGNORE,
        },
        RoundState.CLOSING: {
            Attended: _came_too_late,
            Left: IGNORE,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: _reported_in_flight,
            UpdateRefused: IGNORE,
            Wake: _close_again,
            Pause: IGNORE,  # it is the run that waits: the commit is not to be cut in two
            Resume: IGNORE,
            Abort: REFUSE,
            CloseNow: REFUSE,
            ExtendDeadline: REFUSE,
            ChangeGoal: REFUSE,
            Committed: _committed,
            CommitFailed: _commit_failed,
        },
        RoundState.COMMITTED: _OVER,
        RoundState.ABANDONED: _OVER,
    }


# Each method takes the event of its row, which the type of a table cannot say.
Action = Callable[[Round, Any], list[RoundEffect]] | Verdict


def _too_late(event: RoundEvent, state: RoundState) -> str:
    return f"Expected a round that is still open to {type(event).__name__}, got one {state}."
