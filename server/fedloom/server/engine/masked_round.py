"""A masked round: its members are ready instead of reporting, and sessions sum what they send.

When enough members are ready, or at the deadline, they are divided into masking sessions, and the
round is MASKING until each of these is done or abandoned. It closes with the sums of those that
are done, if their members meet the quorum. Until the sessions open it is a `Round`.

Sources: as `round` and `masking`.

Invariants: a member is in one session. No session asks for signatures before every session has
frozen its survivors, and these meet the quorum together: otherwise all are abandoned, and nothing
is revealed. The members whose updates count are the survivors of the sessions that are done. This
holds for what is stored, too, if effects are performed in the order in which they were returned.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from fedloom.protocol.errors import Code
from fedloom.strategies.masking.sessions import session_sizes

from . import effects, events, steps
from . import session_events as se
from .cohort import MaskedCohort, Phase
from .config import MaskedConfig
from .effects import RoundEffect
from .errors import OperatorRefused
from .masking import MaskingSession, SessionSnapshot
from .round import Round
from .selection import Select
from .states import IGNORE, REFUSE, RoundState, SessionState

Divide = Callable[[str, Sequence[str]], Sequence[Sequence[str]]]
"""The width class, and its ready members by name → the members of each session.

Of the sizes that `session_sizes` says.
"""

MASKS = "the round's sessions have opened"

TOO_FEW_READY = "too few members are ready"
"""The start of the reason of a round whose sessions would not have `min_group` or the quorum."""


def most_in_sessions(count: int, group: int, least: int) -> int:
    """The most of so many members that sessions of `least` to `group` members can have.

    Sessions of equal sizes may be too small: of 65 members at most 64 a session, 33 and 32.
    """
    while count >= least and session_sizes(count, group)[-1] < least:
        count -= 1
    return count if count >= least else 0


class MaskedRound(Round):
    """One masked round.

    Attributes:
        sessions: by number, once they are open.
    """

    __slots__ = ("_divide", "_ready", "_session_of", "sessions")

    config: MaskedConfig
    cohort: MaskedCohort

    def __init__(
        self,
        config: MaskedConfig,
        *,
        select: Select,
        divide: Divide,
        now: float,
        available: Iterable[str] = (),
    ) -> None:
        """Begin to select at `now` in monotonic seconds; the arguments are those of a `Round`."""
        super().__init__(config, select=select, now=now, available=available)
        self.cohort = MaskedCohort()
        self._divide = divide
        self._ready: dict[str, str] = {}  # client → its width class, in the order of readiness
        self._session_of: dict[str, MaskingSession] = {}
        self.sessions: tuple[MaskingSession, ...] = ()

    @classmethod
    def rebuild(
        cls,
        config: MaskedConfig,
        *,
        select: Select,
        divide: Divide,
        state: RoundState,
        cohort: Mapping[str, Phase],
        sessions: Sequence[SessionSnapshot],
        deadline_left_s: float,
        now: float,
        available: Iterable[str] = (),
        paused: bool = False,
        reasons: Mapping[str, str] | None = None,
    ) -> "MaskedRound":
        """Continue a round after a restart, as `Round.restore` does.

        Members that were ready are out of contact: they say so again when they attend.

        Args:
            config: the settings.
            select: draws replacements.
            divide: as before.
            state: REPORTING, MASKING or CLOSING.
            cohort: client to the phase last stored, in the order of joining.
            sessions: by number.
            deadline_left_s: seconds to the deadline of REPORTING.
            now: monotonic seconds.
            available: clients that are idle already.
            paused: whether the round stays paused; not while sessions are open.
            reasons: of the members that failed, were refused or declined, as text.

        Raises:
            IntegrityError: the stored round, or a session, contradicts itself.
        """
        idle = set(available) - cohort.keys()
        self = cls(config, select=select, divide=divide, now=now, available=idle)
        restored = [MaskingSession.restore(n, s, config, now) for n, s in enumerate(sessions)]
        masks = state is RoundState.MASKING
        counted = {c for s in restored if s.state is SessionState.DONE for c in s.masked}
        self._continue(
            RoundState.REPORTING if masks else state, cohort, () if masks else counted,
            deadline_left_s, reasons or {},
        )  # fmt: skip
        self.state = state
        self._have(restored)
        for client in self._session_of if masks else ():
            self.cohort.make_ready(client)
        if paused and state is RoundState.REPORTING:
            self.clock.pause()
        return self

    def _have(self, sessions: Iterable[MaskingSession]) -> None:
        self.sessions = tuple(sessions)
        self._session_of = {c: session for session in self.sessions for c in session.members}

    # ---- what the driver reads ---------------------------------------------------------------

    def session_of(self, client: str) -> MaskingSession | None:
        """The session of a member; None before it is in one."""
        return self._session_of.get(client)

    def waits_for(self, client: str) -> bool:
        """Whether a member trains, is ready, or is in a session that goes on."""
        session = self._session_of.get(client)
        if session is not None:
            return not session.state.is_over
        return self.state is RoundState.REPORTING and self.cohort.is_unfinished(client)

    def refusal_for(self, client: str, _: int = 0) -> Code | None:
        """Why a masked body of this client is refused now, or None."""
        session = self._session_of.get(client)
        if session is None:
            return Code.NOT_IN_COHORT
        return None if session.accepts(client) else Code.ROUND_CLOSED

    def _next_due(self) -> float:
        if self.state is RoundState.MASKING:
            return min((session.due_at for session in self.sessions), default=inf)
        return super()._next_due()

    # ---- reporting ---------------------------------------------------------------------------

    def _is_ready(self, event: se.Ready) -> list[RoundEffect]:
        client = event.client
        if not self.cohort.make_ready(client):
            return []
        self._ready.pop(client, None)
        self._ready[client] = event.width_class
        waits = self.cohort.accepted < self.config.enough and self.cohort.at_work
        return [] if waits else steps.settle(self)

    @property
    def spare_reports(self) -> int:
        """0: no update counts before a session."""
        return 0

    def complete(self) -> list[RoundEffect]:
        """Open the sessions of the members that are ready, or give the round up."""
        chosen = self._chosen()
        if (count := sum(map(len, chosen.values()))) < self.config.quorum:
            return steps.abandon(self, self._too_few(count))
        rosters = [
            (name, tuple(sorted(session)))
            for name, members in sorted(chosen.items())
            for session in self._divided(name, sorted(members))
        ]
        config, now = self.config, self.clock.now
        self.state = RoundState.MASKING
        self.clock.stop()
        self.clock.deadline = now + config.session_s
        self._have(
            MaskingSession(number, members, config, now, width_class=name)
            for number, (name, members) in enumerate(rosters)
        )
        self.clock.check_at = self._next_due()
        opened = effects.OpenSessions(tuple(rosters))
        outside = (c for c in self.cohort.unfinished() if c not in self._session_of)
        withdrawn = [effects.Withdraw(client, MASKS) for client in outside]
        return [opened, *withdrawn]

    def _chosen(self) -> dict[str, list[str]]:
        """Width class → its members that can be in sessions, those first that were ready first."""
        classes: dict[str, list[str]] = {}
        for client, name in self._ready.items():
            if self.cohort.phases[client] is Phase.READY:
                classes.setdefault(name, []).append(client)
        group, least = self.config.group, self.config.min_group
        kept = {name: most_in_sessions(len(found), group, least) for name, found in classes.items()}
        return {name: found[: kept[name]] for name, found in classes.items() if kept[name]}

    def _too_few(self, count: int) -> str:
        return (
            f"{TOO_FEW_READY}: expected at least {self.config.quorum} in sessions of "
            f"{self.config.min_group} or more with one width, got {count} of {self.cohort.accepted}"
        )

    def _divided(self, name: str, members: Sequence[str]) -> Sequence[Sequence[str]]:
        """The sessions of a class.

        Raises:
            ValueError: `divide` did not return these members in sessions of the right sizes.
        """
        found = self._divide(name, members)
        sizes = list(session_sizes(len(members), self.config.group))
        got = [len(session) for session in found]
        if sizes != got or sorted(c for session in found for c in session) != list(members):
            raise ValueError(f"Expected {len(members)} members in sessions of {sizes}, got {got}.")
        return found

    def _open_now(self, _: events.CloseNow) -> list[RoundEffect]:
        """Open the sessions of the members that are ready.

        Raises:
            OperatorRefused: too few are.
        """
        count = sum(map(len, self._chosen().values()))
        if count < self.config.quorum:
            raise OperatorRefused(f"{self._too_few(count)}; wait for more or abort the round.")
        return self.complete()

    # ---- masking -----------------------------------------------------------------------------

    def _pass(self, event: se.MemberEvent) -> list[RoundEffect]:
        """Pass an event to the session of its client."""
        session = self._session_of.get(event.client)
        return [] if session is None else self._give(session, event)

    def _pass_to(self, event: se.DriverEvent) -> list[RoundEffect]:
        """Pass an event to the session of its number."""
        if not 0 <= event.session < len(self.sessions):
            return []
        return self._give(self.sessions[event.session], event)

    def _give(self, session: MaskingSession, event: se.SessionEvent) -> list[RoundEffect]:
        before = session.state
        given = list[RoundEffect](session.handle(event, self.clock.now))
        self.clock.check_at = min(self.clock.check_at, session.due_at)
        if session.state is not before and self.state is RoundState.MASKING:
            given += self._settle_sessions()
        return given

    def _came_back(self, event: events.Attended) -> list[RoundEffect]:
        if (session := self._session_of.get(event.client)) is not None:
            return self._give(session, event)
        return steps.came_too_late(self, event)

    def _went(self, event: events.Left) -> list[RoundEffect]:
        self.candidates.discard(event.client)
        session = self._session_of.get(event.client)
        return [] if session is None else self._give(session, event)

    def _dropped_out(self, event: events.ClientFailed | events.UpdateRefused) -> list[RoundEffect]:
        """End the part of a member, in a session or not."""
        ended = steps.ended_in_commit(self, event)
        session = self._session_of.get(event.client)
        return ended if session is None else self._give(session, events.ClientFailed(event.client))

    def _time_passed(self, event: events.Wake) -> list[RoundEffect]:
        due = [session for session in self.sessions if session.due_at <= self.clock.now]
        given: list[RoundEffect] = [
            e for session in due for e in session.handle(event, self.clock.now)
        ]
        return given + self._settle_sessions()

    def _settle_sessions(self) -> list[RoundEffect]:
        """Ask for signatures when all sessions are frozen; end when all are over."""
        given: list[RoundEffect] = []
        sessions = self.sessions
        frozen = [s for s in sessions if s.state is SessionState.FROZEN]
        if frozen and all(s.state.is_frozen for s in sessions):
            count = sum(len(s.masked) for s in sessions if s.state is not SessionState.ABANDONED)
            event: se.SessionEvent = se.AllFrozen()
            if count < self.config.quorum:
                event = events.Abort(self._too_few_masked(count))
            given = [e for session in frozen for e in session.handle(event, self.clock.now)]
            self.clock.check_at = min(self.clock.check_at, *(s.due_at for s in frozen))
        over = all(session.state.is_over for session in sessions)
        return given + (self._end() if over else [])

    def _too_few_masked(self, count: int) -> str:
        return (
            f"{steps.NO_QUORUM}: expected at least {self.config.quorum} masked updates in all "
            f"sessions, got {count}"
        )

    def _end(self) -> list[RoundEffect]:
        """Close with the sums of the sessions that are done, or give the round up."""
        counted = {c for s in self.sessions if s.state is SessionState.DONE for c in s.masked}
        self._lose(self._session_of.keys() - counted)
        for client in counted:
            self.cohort.put(client, Phase.REPORTED)  # one that failed after its body, too
        if len(counted) >= self.config.quorum:
            return self._of_sessions(steps.close(self))
        return self._of_sessions(steps.abandon(self, self._without_quorum(len(counted))))

    def _without_quorum(self, counted: int) -> str:
        """Why too few updates count: what ended all sessions at once, or why most of them ended."""
        why = self._too_few_masked(counted)
        reasons = Counter(s.reason for s in self.sessions if s.reason)
        at_once = [reason for reason in reasons if reason.startswith(steps.NO_QUORUM)]
        if at_once or not reasons:
            return at_once[0] if at_once else why
        return f"{why}; {reasons.most_common(1)[0][0]}"

    def _lose(self, clients: Iterable[str]) -> None:
        for client in clients:
            if self.cohort.phases[client] is Phase.READY:
                self.cohort.put(client, Phase.LOST)

    def _of_sessions(self, given: list[RoundEffect]) -> list[RoundEffect]:
        """Leave out the tasks that were withdrawn when the sessions opened."""
        mine = self._session_of
        return [e for e in given if not isinstance(e, effects.Withdraw) or e.client in mine]

    # ---- the end -----------------------------------------------------------------------------

    def _abort(self, event: events.Abort | events.CommitFailed) -> list[RoundEffect]:
        """Abandon every session, and the round."""
        ended = events.Abort(event.reason)
        given: list[RoundEffect] = [
            e for s in self.sessions for e in s.handle(ended, self.clock.now)
        ]
        self._lose(self._session_of)
        ending = self._of_sessions(steps.abandon(self, event.reason))
        return given + ending

    def _cannot_cut(self, _: events.CloseNow) -> list[RoundEffect]:
        raise OperatorRefused(
            "Expected a round that is reporting, got one that is masking: a session cannot be cut; "
            "wait for it or abort the round."
        )

    def _came_late(self, event: events.Attended) -> list[RoundEffect]:
        """Withdraw the task of a member; one of an abandoned session may close it, too."""
        session = self._session_of.get(event.client)
        again = [] if session is None else self._give(session, event)
        return again + steps.came_too_late(self, event)

    _NO_SESSION: ClassVar[Mapping[type[Any], Any]] = {
        se.Ready: IGNORE,
        se.SharesStored: IGNORE,
        se.BodyStored: IGNORE,
        se.AgreementStored: IGNORE,
        se.RevealStored: IGNORE,
        se.ClosingStored: IGNORE,
        se.BodiesFrozen: IGNORE,
        se.Unmasked: IGNORE,
        se.UnmaskFailed: IGNORE,
    }
    _AFTER: ClassVar[Mapping[type[Any], Any]] = {
        **_NO_SESSION,
        events.Attended: _came_late,
        se.ClosingStored: _pass,
    }
    TABLE: ClassVar[Mapping[RoundState, Mapping[type[Any], Any]]] = {
        RoundState.SELECTING: {**Round.TABLE[RoundState.SELECTING], **_NO_SESSION},
        RoundState.REPORTING: {
            **Round.TABLE[RoundState.REPORTING],
            **_NO_SESSION,
            events.UpdateAccepted: IGNORE,  # a body counts in its session
            events.CloseNow: _open_now,
            se.Ready: _is_ready,
        },
        RoundState.MASKING: {
            events.Attended: _came_back,
            events.Left: _went,
            events.OfferAccepted: IGNORE,
            events.OfferDeclined: IGNORE,
            events.ClientFailed: _dropped_out,
            events.UpdateAccepted: IGNORE,
            events.UpdateRefused: _dropped_out,
            events.Wake: _time_passed,
            events.Pause: IGNORE,  # the run waits: members' secrets do not
            events.Resume: IGNORE,
            events.Abort: _abort,
            events.CloseNow: _cannot_cut,
            events.ExtendDeadline: REFUSE,
            events.ChangeGoal: REFUSE,
            events.Committed: IGNORE,
            events.CommitFailed: _abort,
            se.Ready: IGNORE,
            se.SharesStored: _pass,
            se.BodyStored: _pass,
            se.AgreementStored: _pass,
            se.RevealStored: _pass,
            se.ClosingStored: _pass,
            se.BodiesFrozen: _pass_to,
            se.Unmasked: _pass_to,
            se.UnmaskFailed: _pass_to,
        },
        RoundState.CLOSING: {
            **Round.TABLE[RoundState.CLOSING],
            **_AFTER,
            events.UpdateAccepted: IGNORE,
        },
        RoundState.COMMITTED: {**Round.TABLE[RoundState.COMMITTED], **_AFTER},
        RoundState.ABANDONED: {**Round.TABLE[RoundState.ABANDONED], **_AFTER},
    }
