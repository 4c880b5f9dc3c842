"""One synchronous round of federated learning, as a state machine that does no I/O.

A `Round` gets events and their time and returns what is to be done; sockets, files and clocks are
its driver's. It is mutable on purpose: a simulation pushes millions of events through it, and a
cohort that is copied for each event would make that quadratic.

Sources: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2
(selection, reporting, goal and deadline); the shape, a literal table of (state, event), is h11's.

Invariants: a client is counted once. Every member gets one first offer. A round closes with its
quorum, or by its operator's command with at least one update. Terminal states stay terminal.
After handling, `wake_at` is None or later than `now`. Handling raises nothing but OperatorRefused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fedloom.protocol.errors import Code, IntegrityError, UsageError

from . import steps
from .clock import AT_ONCE, RoundClock
from .cohort import Cohort, Phase
from .config import RoundConfig
from .effects import Offer, Opened, RoundEffect
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
from .selection import CandidatePool, Select
from .states import IGNORE, REFUSE, RoundState, Verdict


class Round:
    """One round; see `fedloom.server.engine.RoundEngine` for what its driver reads.

    Attributes:
        config: the five settings; `ChangeGoal` replaces them.
        state: of the round.
        reason: why it was abandoned.
        cohort: its members.
        candidates: idle clients outside the cohort.
        clock: its deadline and its pause.
        continues: False: a round is the only one of its engine.
    """

    __slots__ = ("_places", "candidates", "clock", "cohort", "config", "reason", "state")

    continues: ClassVar[bool] = False

    def __init__(
        self, config: RoundConfig, *, select: Select, now: float, available: Iterable[str] = ()
    ) -> None:
        """Begin to select.

        Args:
            config: the five settings.
            select: draws the cohort and its replacements; what it returns is checked, and
                anything but the asked number of different candidates is a ValueError.
            now: monotonic seconds.
            available: clients that are idle already. Those named here are drawn from together,
                so that the draw does not depend on the order in which they attended.
        """
        self.config = config
        self.state = RoundState.SELECTING
        self.reason = ""
        self.candidates = CandidatePool(select, available)
        self.cohort = Cohort()
        self.clock = RoundClock(now)
        self._places = 0  # reports hoped for: the size of the cohort when it was chosen

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
        """Continue a round after a restart.

        Members that the round was waiting for are out of contact, their grace period starts now,
        and they are offered their task again when they attend. The first `Wake` does what is due: a
        round that has reached its goal closes, one that was closing asks for its commit again.

        Args:
            config: the five settings.
            select: draws replacements.
            state: REPORTING or CLOSING. A round that was selecting is simply begun anew.
            cohort: client to the phase last stored, in the order of joining.
            accepted: members whose updates are durable; this outweighs their stored phase.
            deadline_left_s: seconds, as `RoundClock.deadline_left_s` gave them before.
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
        self.clock.deadline = now + deadline_left_s
        for client, phase in cohort.items():
            lapsed = phase is Phase.REPORTED and client not in accepted
            settled = Phase.REPORTED if client in accepted else phase
            self.cohort.put(client, Phase.OFFERED if lapsed else settled)
            self.cohort.leave(client, now + config.patience_s)
        if paused and state is RoundState.REPORTING:
            self.clock.pause()
        return self

    # ---- what the driver reads ---------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """Monotonic seconds of the next `Wake` that is needed, or None."""
        return steps.wake_at(self)

    def origin(self, _: str) -> None:
        """The round that a member was asked in: always this one."""

    def waits_for(self, client: str) -> bool:
        """Whether an update of this client is still expected."""
        return self.state is RoundState.REPORTING and self.cohort.is_unfinished(client)

    def refusal_for(self, client: str, _: int = 0) -> Code | None:
        """Why an update of this client is not admitted now, or None.

        A repeat of an accepted update is the ledger's to recognise, before this is asked.
        """
        if client not in self.cohort:
            return Code.NOT_IN_COHORT
        return None if self.state is RoundState.REPORTING else Code.ROUND_CLOSED

    # ---- handling ----------------------------------------------------------------------------

    def handle(self, event: RoundEvent, now: float) -> list[RoundEffect]:
        """Take note of an event and say what is to be done, in order.

        The event comes before what is due at the same time: an update that was accepted before
        the deadline was noticed still counts.

        Args:
            event: what happened.
            now: monotonic seconds; an earlier time than the last counts as the last.

        Raises:
            OperatorRefused: an operator's command does not fit; nothing has changed.
        """
        clock = self.clock
        clock.now = now = max(now, clock.now)
        action = self.TABLE[self.state][type(event)]
        if action is REFUSE:
            raise steps.too_late(event, self.state)
        effects = [] if isinstance(action, Verdict) else action(self, event)
        if now >= clock.check_at:
            effects += steps.do_what_is_due(self, self.TABLE)
        return effects

    # selecting

    def _candidate_came(self, event: Attended) -> list[RoundEffect]:
        self.candidates.add(event.client)
        return self._open_if_ready()

    def _open_if_ready(self, _: Wake | None = None) -> list[RoundEffect]:
        config, candidates, clock = self.config, self.candidates, self.clock
        if clock.paused or len(candidates) < max(config.goal, config.candidates):
            return []
        chosen = candidates.take(min(len(candidates), config.cohort_size))
        for client in chosen:
            self.cohort.put(client, Phase.OFFERED)
        self._places = len(chosen)
        clock.deadline = clock.check_at = clock.now + config.deadline_s
        self.state = RoundState.REPORTING
        return [Opened(tuple(chosen)), *map(Offer, chosen)]

    # reporting

    def _came(self, event: Attended) -> list[RoundEffect]:
        client = event.client
        if self.cohort.come_back(client):
            return [Offer(client, again=True)]
        if client in self.cohort:
            return []
        self.candidates.add(client)
        return steps.settle(self)

    def _reported(self, event: UpdateAccepted) -> list[RoundEffect]:
        cohort = self.cohort
        if not cohort.report(event.client):
            return []
        # A report frees no place, and while others are at work only the goal can close the round.
        waits = cohort.accepted < self.config.goal and cohort.at_work
        return [] if waits else steps.settle(self)

    @property
    def free(self) -> int:
        """Members that may be recruited now, in the places of those who dropped out."""
        if not self.config.replace:
            return 0
        return self._places - self.cohort.accepted - self.cohort.at_work

    def ask(self, client: str) -> Offer:
        """Let a client join the cohort."""
        self.cohort.put(client, Phase.OFFERED)
        return Offer(client)

    # operator

    def _change_goal(self, event: ChangeGoal) -> list[RoundEffect]:
        try:
            config = replace(self.config, goal=event.goal, quorum=event.quorum)
        except UsageError as error:
            raise OperatorRefused(str(error)) from None
        self.config, self.clock.check_at = config, AT_ONCE  # what is due by the new numbers
        if self.state is RoundState.REPORTING:
            self._places = max(config.goal, min(self._places, config.cohort_size))
        return []

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[RoundEvent], "Action"]]] = {
        RoundState.SELECTING: {
            Attended: _candidate_came,
            Left: steps.candidate_left,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: IGNORE,
            UpdateRefused: IGNORE,
            Wake: _open_if_ready,
            Pause: steps.pause,
            Resume: steps.resume,
            Abort: steps.abort,
            CloseNow: steps.nothing_to_close,
            ExtendDeadline: steps.no_deadline,
            ChangeGoal: _change_goal,
            Committed: IGNORE,
            CommitFailed: IGNORE,
        },
        RoundState.REPORTING: {
            Attended: _came,
            Left: steps.left,
            OfferAccepted: steps.started,
            OfferDeclined: steps.ended,
            ClientFailed: steps.ended,
            UpdateAccepted: _reported,
            UpdateRefused: steps.ended,
            Wake: steps.time_passed,
            Pause: steps.pause,
            Resume: steps.resume,
            Abort: steps.abort,
            CloseNow: steps.close_now,
            ExtendDeadline: steps.extend,
            ChangeGoal: _change_goal,
            Committed: IGNORE,
            CommitFailed: IGNORE,
        },
        RoundState.CLOSING: {
            Attended: steps.came_too_late,
            Left: IGNORE,
            OfferAccepted: IGNORE,
            OfferDeclined: IGNORE,
            ClientFailed: IGNORE,
            UpdateAccepted: steps.reported_in_commit,
            UpdateRefused: IGNORE,
            Wake: steps.close_again,
            Pause: IGNORE,  # the run waits; the commit is one step
            Resume: IGNORE,
            Abort: REFUSE,
            CloseNow: REFUSE,
            ExtendDeadline: REFUSE,
            ChangeGoal: REFUSE,
            Committed: steps.committed,
            CommitFailed: steps.commit_failed,
        },
        RoundState.COMMITTED: steps.OVER,
        RoundState.ABANDONED: steps.OVER,
    }


# Each step takes the event of its row, which the type of a table cannot say.
Action = Callable[[Round, Any], list[RoundEffect]] | Verdict
