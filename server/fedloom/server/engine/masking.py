"""A masking session: the sum of some clients' updates, without one of them, in four messages.

Each member deals shares of its secrets, sends its masked body, signs who survived, and reveals one
share of each peer. Events and their time go in, effects come out; `MaskedRound` owns the sessions
of its round. This module counts who sent what: the cryptography is `fedloom.protocol.masking`.

Sources: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", figure 4 (the rounds, U1 ⊇ U2 ⊇ U3); h11 for the literal table of (state, event).

Invariants: members ⊇ shared ⊇ masked ⊇ signed, and masked ⊇ revealed; each of them is fixed once,
by the threshold of members at least, and never changes but for signatures that come late. Nobody
is asked to sign before `AllFrozen`, to reveal before so many signed, and the sum is requested once.
DONE does not change; ABANDONED only collects the signatures of those who gave up.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

from fedloom.protocol.errors import IntegrityError
from fedloom.strategies.masking.sessions import threshold

from . import effects, events
from . import session_events as se
from .clock import AT_ONCE
from .config import MaskedConfig
from .effects import SessionEffect
from .states import IGNORE, SessionState, Verdict

THRESHOLD = "threshold not reached"
"""The start of the reason of a session in which too few members sent a message in time."""

_DO: Mapping[SessionState, str] = {
    SessionState.SHARING: "send their shares",
    SessionState.MASKING: "upload their masked update",
    SessionState.AGREEING: "sign the survivors",
    SessionState.REVEALING: "reveal their shares",
}
"""What each state waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSnapshot:
    """The state of a session, as stored.

    Attributes:
        state: the last one stored; FREEZING is stored as MASKING.
        members: U1.
        width_class: of all its members.
        left_s: seconds until members forget their secrets.
        shared: U2; empty before it is fixed.
        masked: U3; empty before it is fixed.
        signed: members whose signatures of the survivors are stored.
        heard: members whose message of this state is stored.
        revealed: U4; empty before it is fixed.
        closed: members whose signatures that they gave up are stored.
        failed: members that said that they failed.
        reason: why it was abandoned.
    """

    state: SessionState
    members: Collection[str]
    width_class: str = ""
    left_s: float = 0.0
    shared: Collection[str] = ()
    masked: Collection[str] = ()
    signed: Collection[str] = ()
    heard: Collection[str] = ()
    revealed: Collection[str] = ()
    closed: Collection[str] = ()
    failed: Collection[str] = ()
    reason: str = ""


class MaskingSession:
    """One session; a client's events are those of a member.

    Args:
        number: of the session in its round, from 0.
        members: U1, at least 2.
        config: of the round.
        now: monotonic seconds.
        width_class: of all members.

    Attributes:
        threshold: members that every message needs.
        state: of the session.
        reason: why it was abandoned.
        shared: U2, who dealt shares; empty before it is fixed, like the others.
        masked: U3, whose bodies are stored: the sum is of these.
        signed: who signed the survivors.
        revealed: U4, whose shares give the sum.
        closed: who signed that they gave up.
        deadline: when members forget their secrets.
    """

    __slots__ = (
        *("_away", "_config", "_failed", "_heard", "_lost", "_now", "_partial", "_phase_ends"),
        *("_pending", "closed", "deadline", "masked", "members", "number", "reason", "revealed"),
        *("shared", "signed", "state", "threshold", "width_class"),
    )

    def __init__(
        self,
        number: int,
        members: Collection[str],
        config: MaskedConfig,
        now: float,
        *,
        width_class: str = "",
    ) -> None:
        self.number, self.width_class = number, width_class
        self.members = frozenset(members)
        self.threshold = threshold(len(self.members))
        self.state, self.reason = SessionState.SHARING, ""
        self.shared: frozenset[str] = frozenset()
        self.masked: frozenset[str] = frozenset()
        self.signed: frozenset[str] = frozenset()
        self.revealed: frozenset[str] = frozenset()
        self.closed: frozenset[str] = frozenset()
        self._config, self._now = config, now
        self._heard: set[str] = set()  # who sent the message of this state
        self._partial: set[str] = set()  # who may lack a share that it should have revealed
        self._away: dict[str, float] = {}  # member → the end of its grace period
        self._lost: set[str] = set()  # away for longer
        self._failed: set[str] = set()
        self._pending = False  # a restart: what is due is not known yet
        self.deadline = now + config.session_s
        self._phase_ends = min(now + config.phase_s, self.deadline)

    @classmethod
    def restore(
        cls, number: int, stored: SessionSnapshot, config: MaskedConfig, now: float
    ) -> "MaskingSession":
        """Continue a session after a restart: all members are out of contact.

        The first `Wake` does what is due: the driver is asked again for what it had not finished.

        Raises:
            IntegrityError: the stored session contradicts itself.
        """
        self = cls(number, stored.members, config, now, width_class=stored.width_class)
        self.state, self.reason, self.deadline = stored.state, stored.reason, now + stored.left_s
        if self.state is SessionState.FREEZING:
            self.state = SessionState.MASKING
        for name in ("shared", "masked", "signed", "revealed", "closed"):
            setattr(self, name, frozenset(getattr(stored, name)))
        self._heard, self._failed = set(stored.heard), set(stored.failed) & self.members
        self._partial = set(stored.heard)
        self._check(number)
        self._away = dict.fromkeys(self.members, now + config.patience_s)
        self._begin_phase()
        self._pending = not self.state.is_over
        return self

    def _check(self, number: int) -> None:
        nested = (self.members, self.shared, self.masked, self.signed)
        holds = all(a >= b for a, b in pairwise(nested))
        fixed = {
            SessionState.MASKING: [self.shared],
            SessionState.FROZEN: [self.shared, self.masked],
            SessionState.AGREEING: [self.shared, self.masked],
            SessionState.REVEALING: [self.shared, self.masked, self.signed],
            SessionState.UNMASKING: [self.shared, self.masked, self.signed, self.revealed],
            SessionState.DONE: [self.shared, self.masked, self.signed, self.revealed],
        }.get(self.state, [])
        heard = self._expected if self.state in _DO else self.members
        if not (
            holds
            and self.masked >= self.revealed
            and heard >= self._heard
            and all(len(found) >= self.threshold for found in fixed)
        ):
            raise IntegrityError(
                f"Expected sets of a session that is {self.state} within each other, of "
                f"{self.threshold} members or more, got others in session {number}."
            )

    # ---- what the round reads ----------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When the next `Wake` is needed; infinity for none."""
        if self._pending:
            return AT_ONCE
        if self.state is SessionState.FROZEN:
            return self.deadline
        if self.state not in _DO:
            return inf
        away = (until for client, until in self._away.items() if client not in self._heard)
        return min(self._phase_ends, *away, inf)

    @property
    def heard(self) -> frozenset[str]:
        """The members whose message of this state is stored."""
        return frozenset(self._heard)

    def accepts(self, client: str) -> bool:
        """Whether a masked body of this client would be accepted now."""
        return self.state is SessionState.MASKING and client in self.shared

    def handle(self, event: se.SessionEvent, now: float) -> Sequence[SessionEffect]:
        """Process an event and return what is to be done, in order; it never raises."""
        self._now = max(now, self._now)
        action = self.TABLE[self.state][type(event)]
        return () if isinstance(action, Verdict) else action(self, event)

    # ---- members -----------------------------------------------------------------------------

    @property
    def _expected(self) -> frozenset[str]:
        """The members whose message counts in this state."""
        match self.state:
            case SessionState.SHARING:
                return self.members
            case SessionState.MASKING | SessionState.FREEZING:
                return self.shared
        return self.masked

    def _sent(self, event: se.MemberEvent) -> Sequence[SessionEffect]:
        """Count a message of this state."""
        return self._settle() if self._note(event) else ()

    def _revealed(self, event: se.RevealStored) -> Sequence[SessionEffect]:
        """Count a member's shares, which may not be of all secrets."""
        if not event.complete:
            self._partial.add(event.client)
        return self._sent(event)

    def _note(self, event: se.MemberEvent) -> bool:
        client = event.client
        if client not in self._expected or client in self._heard:
            return False
        self._heard.add(client)
        self._back(client)
        return True

    def _in_flight(self, event: se.BodyStored) -> Sequence[SessionEffect]:
        """Count a body that was stored before the driver stopped accepting them."""
        self._note(event)
        return ()

    def _signed_late(self, event: se.AgreementStored) -> Sequence[SessionEffect]:
        """Ask a member that signed late for its shares, too."""
        client = event.client
        if client not in self.masked or client in self.signed:
            return ()
        self.signed |= {client}
        return (effects.SendSignatures(self.number, _ordered(self.signed), (client,)),)

    def _gave_up(self, event: se.ClosingStored) -> Sequence[SessionEffect]:
        """Count a member that gave up; who signed the survivors cannot."""
        client, before = event.client, len(self.closed)
        if client not in self.members or client in self.signed:
            return ()
        self.closed |= {client}
        proven = before < len(self.closed) == self.threshold
        return (effects.SendClosing(self.number, _ordered(self.closed)),) if proven else ()

    def _came(self, event: events.Attended) -> Sequence[SessionEffect]:
        if event.client not in self.members or event.client in self._failed:
            return ()
        self._back(event.client)
        return (effects.Resend(self.number, event.client),)

    def _left(self, event: events.Left) -> Sequence[SessionEffect]:
        """Start a member's grace period."""
        if event.client in self.members - self._lost:
            self._away.setdefault(event.client, self._now + self._config.patience_s)
        return ()

    def _back(self, client: str) -> None:
        self._away.pop(client, None)
        self._lost.discard(client)

    def _dropped_out(self, event: events.ClientFailed) -> Sequence[SessionEffect]:
        """Wait no more for a member that forgot its secrets."""
        self._failed |= {event.client} & self.members
        return self._settle() if self.state in _DO else ()

    # ---- phases ------------------------------------------------------------------------------

    def _settle(self) -> Sequence[SessionEffect]:
        """Go on if nobody is waited for; give up if too few can still send their message."""
        need, silent = self.threshold, self._expected - self._heard - self._failed
        enough = len(self._heard) >= need
        # `need` complete messages give every secret; incomplete ones may not.
        known = self.state is SessionState.REVEALING and len(self._heard - self._partial) >= need
        if enough and (known or not silent - self._lost):
            return self._go_on()
        if (possible := len(self._heard) + len(silent)) < need:
            return self._give_up(f"only {possible} of {len(self.members)} members can still")
        return ()

    def _time_passed(self, _: events.Wake) -> Sequence[SessionEffect]:
        """Act on the deadlines, or on grace periods that have ended."""
        self._pending = False
        if self._now >= self.deadline:
            return self._abandon(self._too_late)
        late = [client for client, until in self._away.items() if until <= self._now]
        for client in late:
            del self._away[client]
            self._lost.add(client)
        if self._now < self._phase_ends:
            return self._settle()
        if len(self._heard) >= self.threshold:
            return self._go_on()
        return self._give_up(f"{len(self._heard)} of {len(self.members)} members did in time:")

    def _go_on(self) -> Sequence[SessionEffect]:
        """Fix who sent the message of this state, and ask for the next one."""
        heard, names = frozenset(self._heard), _ordered(self._heard)
        match self.state:
            case SessionState.SHARING:
                self.shared = heard
                return self._ask(SessionState.MASKING, effects.ForwardShares(self.number, names))
            case SessionState.MASKING:
                self.state = SessionState.FREEZING
                return (effects.Freeze(self.number),)
            case SessionState.AGREEING:
                self.signed = heard
                ask = effects.SendSignatures(self.number, names, names)
                return self._ask(SessionState.REVEALING, ask)
        self.revealed = heard
        return self._ask(SessionState.UNMASKING, effects.Unmask(self.number, names))

    def _ask(self, state: SessionState, effect: SessionEffect) -> Sequence[SessionEffect]:
        self.state = state
        self._heard.clear()
        self._partial.clear()
        self._begin_phase()
        return (effect,)

    def _begin_phase(self) -> None:
        config = self._config
        seconds = config.upload_s if self.state is SessionState.MASKING else config.phase_s
        self._phase_ends = min(self._now + seconds, self.deadline)

    def _waited_in_vain(self, _: events.Wake) -> Sequence[SessionEffect]:
        self._pending = False
        return self._abandon(self._too_late) if self._now >= self.deadline else ()

    @property
    def _too_late(self) -> str:
        return f"not complete after {self._config.session_s:g} s"

    def _frozen(self, _: se.BodiesFrozen) -> Sequence[SessionEffect]:
        self.state, self.masked = SessionState.FROZEN, frozenset(self._heard)
        self._heard.clear()
        return ()

    def _agree(self, _: se.AllFrozen) -> Sequence[SessionEffect]:
        if self._now >= self.deadline:
            return self._abandon(self._too_late)
        survivors = effects.SendSurvivors(self.number, _ordered(self.masked))
        return self._ask(SessionState.AGREEING, survivors)

    # ---- the end -----------------------------------------------------------------------------

    def _unmask_again(self, _: events.Wake) -> Sequence[SessionEffect]:
        """Request the sum again, once, after a restart."""
        again, self._pending = self._pending, False
        return (effects.Unmask(self.number, _ordered(self.revealed)),) if again else ()

    def _unmasked(self, _: se.Unmasked) -> Sequence[SessionEffect]:
        self.state = SessionState.DONE
        return ()

    def _unmask_failed(self, event: se.UnmaskFailed) -> Sequence[SessionEffect]:
        return self._abandon(event.reason)

    def _aborted(self, event: events.Abort) -> Sequence[SessionEffect]:
        return self._abandon(event.reason)

    def _give_up(self, who: str) -> Sequence[SessionEffect]:
        return self._abandon(f"{THRESHOLD}: {who} {_DO[self.state]}, expected {self.threshold}")

    def _abandon(self, reason: str) -> Sequence[SessionEffect]:
        if self.state is SessionState.AGREEING:
            self.signed = frozenset(self._heard)
        self.state, self.reason, self._pending = SessionState.ABANDONED, reason, False
        return (effects.AbandonSession(self.number, reason),)

    _ANY: ClassVar[Mapping[type[Any], Any]] = {
        se.SharesStored: IGNORE,
        se.BodyStored: IGNORE,
        se.AgreementStored: IGNORE,
        se.RevealStored: IGNORE,
        se.ClosingStored: IGNORE,
        se.BodiesFrozen: IGNORE,
        se.AllFrozen: IGNORE,
        se.Unmasked: IGNORE,
        se.UnmaskFailed: IGNORE,
        events.Attended: _came,
        events.Left: _left,
        events.ClientFailed: _dropped_out,
        events.Wake: _time_passed,
        events.Abort: _aborted,
    }
    """The row of a state; each state names the events that it handles otherwise."""

    TABLE: ClassVar[Mapping[SessionState, Mapping[type[se.SessionEvent], "SessionAction"]]] = {
        SessionState.SHARING: {**_ANY, se.SharesStored: _sent},
        SessionState.MASKING: {**_ANY, se.BodyStored: _sent},
        SessionState.FREEZING: {
            **_ANY,
            se.BodyStored: _in_flight,
            se.BodiesFrozen: _frozen,
            events.Wake: IGNORE,
        },
        SessionState.FROZEN: {**_ANY, events.Wake: _waited_in_vain, se.AllFrozen: _agree},
        SessionState.AGREEING: {**_ANY, se.AgreementStored: _sent},
        SessionState.REVEALING: {
            **_ANY,
            se.AgreementStored: _signed_late,
            se.RevealStored: _revealed,
        },
        SessionState.UNMASKING: {
            **_ANY,
            events.Wake: _unmask_again,
            se.Unmasked: _unmasked,
            se.UnmaskFailed: _unmask_failed,
        },
        SessionState.DONE: dict.fromkeys(_ANY, IGNORE),
        SessionState.ABANDONED: {
            **dict.fromkeys(_ANY, IGNORE),
            events.Attended: _came,
            se.ClosingStored: _gave_up,
        },
    }


# A table's type cannot express that each step takes the event of its row.
SessionAction = Callable[[MaskingSession, Any], Sequence[SessionEffect]] | Verdict


def _ordered(clients: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(clients))
