"""One synchronous round of federated learning, as a state machine that does no I/O.

A `Round` gets events and their time and returns what is to be done; its driver has the sockets,
files and clocks. It is mutable because a simulation sends millions of events: copying the cohort
for each event would take quadratic time.

Sources: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2
(selection, reporting, goal and deadline); h11 for the literal table of (state, event).

Invariants: a client is counted once. Every member gets one first offer. A round closes with its
quorum, which is 0 with a sampled cohort, or by an operator's command with at least one update.
Terminal states do not change.
After handling, `wake_at` is None or later than `now`. Handling raises OperatorRefused only.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedloom.protocol.errors import Code, IntegrityError, UsageError
from fedloom.strategies.selection import Candidates

from . import events, steps
from .clock import AT_ONCE
from .cohort import Phase
from .config import RoundConfig
from .effects import Offer, Opened, RoundEffect
from .errors import OperatorRefused
from .round_engine import RoundEngine
from .selection import Select
from .states import IGNORE, REFUSE, RoundState, Verdict


class Round(RoundEngine):
    """One round; `ChangeGoal` replaces its settings."""

    __slots__ = ("_busy", "_named", "_places")

    def __init__(
        self,
        config: RoundConfig,
        *,
        select: Select,
        now: float,
        available: Iterable[str] = (),
        named: Iterable[str] = (),
        busy: Collection[str] = (),
    ) -> None:
        """Begin to select at `now` in monotonic seconds.

        `select` draws the cohort and its replacements; ValueError if it does not return the
        requested number of different candidates. The order of `available` does not matter. With
        `named`, these clients are the cohort, available or not, and the round opens at once; it
        waits for those of them that are `busy` with other work until its deadline.
        """
        super().__init__(config, select, now, available)
        self._named, self._busy = tuple(named), frozenset(busy)
        self._places = 0  # updates wanted: the size of the cohort when it was chosen

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
        reasons: Mapping[str, str] | None = None,
    ) -> "Round":
        """Continue a round after a restart.

        Members that the round was waiting for are out of contact, their grace period starts now,
        and they are offered their task again when they attend. The first `Wake` does what is due: a
        round that has reached its goal closes, one that was closing asks for its commit again.

        Args:
            config: the settings.
            select: draws replacements.
            state: REPORTING or CLOSING. For a round that was selecting, build a new one.
            cohort: client to the phase last stored, in the order of joining.
            accepted: members whose updates are durable; it overrides their stored phase.
            deadline_left_s: seconds, as `RoundClock.deadline_left_s` gave them before.
            now: monotonic seconds.
            available: clients that are idle already.
            paused: whether the round stays paused.
            reasons: of the members that failed, were refused or declined, as text.

        Raises:
            IntegrityError: the stored round contradicts itself.
        """
        self = cls(config, select=select, now=now, available=set(available) - cohort.keys())
        self._continue(state, cohort, accepted, deadline_left_s, reasons or {})
        if paused and state is RoundState.REPORTING:
            self.clock.pause()
        return self

    def _continue(
        self,
        state: RoundState,
        cohort: Mapping[str, Phase],
        accepted: Collection[str],
        deadline_left_s: float,
        reasons: Mapping[str, str],
    ) -> None:
        """Take over the state of a stored round; see `restore`."""
        config, now = self.config, self.clock.now
        strangers = set(accepted) - cohort.keys()
        if strangers:
            raise IntegrityError(f"Expected updates of the cohort alone, got {min(strangers)}'s.")
        if state not in (RoundState.REPORTING, RoundState.CLOSING):
            raise IntegrityError(f"Expected a round that is reporting or closing, got {state}.")
        self.state = state
        self._places = max(config.goal, min(len(cohort), config.cohort_size))
        self.clock.deadline = now + deadline_left_s
        self.clock.look_at = now + config.patience_s  # the other clients return, too
        for client, phase in cohort.items():
            lapsed = phase is Phase.REPORTED and client not in accepted
            settled = Phase.REPORTED if client in accepted else phase
            reason = reasons.get(client, "")
            self.cohort.put(client, Phase.OFFERED if lapsed else settled, reason)
            self.cohort.leave(client, now + config.patience_s)

    # ---- what the driver reads ---------------------------------------------------------------

    @property
    def continues(self) -> bool:
        """False: a round is the only one of its engine."""
        return False

    def complete(self) -> list[RoundEffect]:
        """Close."""
        return steps.close(self)

    def origin(self, _: str) -> None:
        """None: members are asked in this round."""

    def waits_for(self, client: str) -> bool:
        """Whether an update of this client is still expected."""
        return self.state is RoundState.REPORTING and self.cohort.is_unfinished(client)

    def refusal_for(self, client: str, _: int = 0) -> Code | None:
        """Why an update of this client is refused now, or None."""
        if client not in self.cohort:
            return Code.NOT_IN_COHORT
        return None if self.state is RoundState.REPORTING else Code.ROUND_CLOSED

    @property
    def needed(self) -> int:
        """Candidates that the round needs to open; of named clients, those that are there."""
        if self._named:
            return sum(client in self.candidates for client in self._named)
        return self.config.needed

    @property
    def needed_next(self) -> int:
        """Idle clients that a next round like this one will need; named ones are not known."""
        at_work = self.cohort.at_work if self.state is RoundState.REPORTING else 0
        return 0 if self._named else max(0, self.config.needed - at_work)

    def could_ask(self, client: str) -> bool:
        """Whether a client could join: each is asked once."""
        return client not in self.cohort

    # selecting

    def _candidate_came(self, event: events.Attended) -> list[RoundEffect]:
        self.candidates.add(event.client)
        return self._open_if_ready()

    def _open_if_ready(self, _: events.Wake | None = None) -> list[RoundEffect]:
        config, candidates, clock = self.config, self.candidates, self.clock
        if clock.paused:
            return []
        if self._named:
            ready = not self.needed or len(candidates) - self.set_aside() >= self.needed
            return self._open_for(self._named) if ready else []
        if len(candidates) < config.needed:
            return []
        usable = len(candidates) - self.set_aside()
        if usable < config.needed:
            return []
        most = min(usable, config.cohort_size)
        chosen = candidates.take(None if config.by_coins else most)
        clock.deadline = clock.check_at = clock.now + config.deadline_s
        cohort = tuple(chosen)
        self.cohort.offer_all(cohort, clock.grace_until(config.answer_s))
        self._places = len(cohort)
        self.state = RoundState.REPORTING
        drawn = chosen if isinstance(chosen, Candidates) else cohort
        opened: list[RoundEffect] = [Opened(drawn), *map(Offer, cohort)]
        return opened if cohort else opened + steps.close(self)  # coins may draw nobody

    def _open_for(self, named: Sequence[str]) -> list[RoundEffect]:
        """Open for these clients; the grace period of those that are away begins."""
        cohort = self.cohort
        clock = self.clock
        clock.deadline = clock.check_at = clock.now + self.config.deadline_s
        present = []
        for client in named:
            cohort.put(client, Phase.OFFERED)
            if client in self.candidates:
                self.candidates.discard(client)
                self.offer(client)
                present.append(client)
            elif client not in self._busy:
                cohort.leave(client, clock.grace_until(self.config.patience_s))
        self._places = len(named)
        self.state = RoundState.REPORTING
        return [Opened(tuple(named)), *map(Offer, present)]

    # reporting

    def _came(self, event: events.Attended) -> list[RoundEffect]:
        client = event.client
        if self.cohort.is_unfinished(client):
            self.offer(client)
            return [Offer(client, again=True)]
        if client in self.cohort:
            return []
        self.candidates.add(client)
        return steps.settle(self)

    def _reported(self, event: events.UpdateAccepted) -> list[RoundEffect]:
        cohort = self.cohort
        if not cohort.report(event.client):
            return []
        # A report frees no place, and while others are at work only the goal can close the round.
        waits = cohort.accepted < self.config.enough and cohort.at_work
        return [] if waits else steps.settle(self)

    @property
    def spare_reports(self) -> int:
        """See `RoundEngine`: the goal closes the round, or that nobody is at work."""
        cohort = self.cohort
        return int(min(self.config.enough - cohort.accepted, cohort.at_work)) - 1

    @property
    def free(self) -> int:
        """Members that may be recruited now, to replace those that dropped out."""
        if not self.config.replace:
            return 0
        return self._places - self.cohort.accepted - self.cohort.at_work

    def ask(self, client: str) -> Offer:
        """Add a client to the cohort."""
        self.offer(client)
        return Offer(client)

    # operator

    def _change_goal(self, event: events.ChangeGoal) -> list[RoundEffect]:
        try:
            config = replace(self.config, goal=event.goal, quorum=event.quorum)
        except UsageError as error:
            raise OperatorRefused(str(error)) from None
        self.config, self.clock.check_at = config, AT_ONCE  # the new goal may be reached already
        if self.state is RoundState.REPORTING:
            self._places = max(config.goal, min(self._places, config.cohort_size))
        return []

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[events.RoundEvent], "Action"]]] = {
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
            events.ChangeGoal: _change_goal,
            events.Committed: IGNORE,
            events.CommitFailed: IGNORE,
        },
        RoundState.REPORTING: {
            events.Attended: _came,
            events.Left: steps.left,
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
            events.ChangeGoal: _change_goal,
            events.Committed: IGNORE,
            events.CommitFailed: IGNORE,
        },
        RoundState.CLOSING: {
            events.Attended: steps.came_too_late,
            events.Left: IGNORE,
            events.OfferAccepted: IGNORE,
            events.OfferDeclined: IGNORE,
            events.ClientFailed: IGNORE,
            events.UpdateAccepted: steps.reported_in_commit,
            events.UpdateRefused: IGNORE,
            events.Wake: steps.close_again,
            events.Pause: IGNORE,  # the run waits; the commit is one step
            events.Resume: IGNORE,
            events.Abort: REFUSE,
            events.CloseNow: REFUSE,
            events.ExtendDeadline: REFUSE,
            events.ChangeGoal: REFUSE,
            events.Committed: steps.committed,
            events.CommitFailed: steps.commit_failed,
        },
        RoundState.COMMITTED: steps.OVER,
        RoundState.ABANDONED: steps.OVER,
    }


# A table's type cannot express that each step takes the event of its row.
Action = Callable[[Round, Any], list[RoundEffect]] | Verdict
