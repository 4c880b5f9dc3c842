"""What a round and a buffer share: the state that both keep, and how an event is handled."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar

from fedloom.protocol.errors import Code

from .clock import AT_ONCE, RoundClock
from .cohort import Cohort
from .config import RoundConfig
from .effects import Offer, RoundEffect
from .errors import OperatorRefused
from .events import BufferEvent, OfferAccepted, Wake
from .selection import CandidatePool, Select
from .session_events import MaskedEvent
from .states import REFUSE, RoundState, Verdict

_WAKE = Wake()


class RoundEngine(ABC):
    """Decides what happens in a round: events and their time go in, effects come out.

    Ask `wake_at` after building an engine and after every event, and handle `Wake` at that time.

    Attributes:
        config: the settings of the round.
        state: of the round.
        reason: why it was abandoned.
        cohort: its members and the phase of each.
        candidates: idle clients outside the cohort.
        clock: its deadline and its pause.
        set_aside: returns how many candidates are left to other runs now, whose turn comes first.
        elsewhere: counts the clients outside the cohort that are not idle, but may be before the
            deadline, such as those at work for another run; the driver sets it.
    """

    __slots__ = (
        "candidates", "clock", "cohort", "config", "elsewhere", "reason", "set_aside", "state"
    )  # fmt: skip

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[Any], Any]]]
    """State and event to a step, which returns effects, or to a verdict."""

    def __init__(
        self, config: RoundConfig, select: Select, now: float, available: Iterable[str]
    ) -> None:
        self.config = config
        self.state = RoundState.SELECTING
        self.reason = ""
        self.candidates = CandidatePool(select, available)
        self.cohort = Cohort()
        self.clock = RoundClock(now)
        self.set_aside: Callable[[], int] = int  # none
        self.elsewhere: Callable[[], int] = int  # nobody

    def handle(self, event: BufferEvent | MaskedEvent, now: float) -> list[RoundEffect]:
        """Process an event and return what is to be done, in order.

        The event comes before what is due at the same time: an update that was accepted before
        the deadline was noticed still counts.

        Args:
            event: what happened; `NextBuffer` and `Disband` are for buffers alone, those of
                `session_events` for masked rounds.
            now: monotonic seconds; an earlier time than the last counts as the last.

        Raises:
            OperatorRefused: an operator's command does not fit the state; nothing has changed.
        """
        clock = self.clock
        clock.now = now = max(now, clock.now)
        action = self.TABLE[self.state][type(event)]
        if action is REFUSE:
            raise OperatorRefused(
                f"Expected a round that is still open to {type(event).__name__}, "
                f"got one {self.state}."
            )
        effects: list[RoundEffect] = [] if isinstance(action, Verdict) else action(self, event)
        if now >= clock.check_at:
            due = self.TABLE[self.state][Wake]
            effects += [] if isinstance(due, Verdict) else due(self, _WAKE)
            clock.check_at = self._next_due()
        return effects

    # ---- many events at once -----------------------------------------------------------------
    # A simulation hands over a million events in seconds. These do what `handle` does for each.

    def start_all(self, clients: Sequence[str], now: float) -> list[RoundEffect]:
        """Handle an `OfferAccepted` of each; they were offered their tasks at this time."""
        clock = self.clock
        if self.state is not RoundState.REPORTING or now >= clock.check_at:
            return [e for client in clients for e in self.handle(OfferAccepted(client), now)]
        clock.now = max(now, clock.now)
        self.cohort.start_all(clients)
        return []

    def report_all(self, clients: Sequence[str], now: float) -> None:
        """Handle an `UpdateAccepted` of each; the last came at this time.

        Args:
            clients: at most `spare_reports`, all different and in training.
            now: before `clock.check_at`.
        """
        self.clock.now = max(now, self.clock.now)
        self.cohort.report_all(clients)

    @property
    @abstractmethod
    def spare_reports(self) -> int:
        """Updates that may still count before one of them can have an effect."""

    @property
    def wake_at(self) -> float | None:
        """Monotonic seconds of the next `Wake` that is needed, or None."""
        if self.clock.check_at == AT_ONCE:
            return self.clock.now
        at = self._next_due()
        return None if at == inf else at

    def _next_due(self) -> float:
        if self.clock.paused_at is not None or self.state is not RoundState.REPORTING:
            return inf
        clock = self.clock
        return min(clock.deadline, clock.give_up_at, clock.look_at, self.cohort.next_loss())

    def offer(self, client: str) -> None:
        """Put a client into the cohort, or a member back, with its time to answer from now on."""
        self.cohort.offer(client, self.clock.grace_until(self.config.answer_s))

    @property
    @abstractmethod
    def continues(self) -> bool:
        """Whether members keep working after a commit, for the next round of this engine."""

    @abstractmethod
    def complete(self) -> list[RoundEffect]:
        """Stop waiting for updates: there are enough, or an operator said so."""

    @abstractmethod
    def origin(self, client: str) -> int | None:
        """The round in which a member was asked; None for the open round."""

    @abstractmethod
    def waits_for(self, client: str) -> bool:
        """Whether an update of this client is still expected."""

    @abstractmethod
    def refusal_for(self, client: str, origin: int) -> Code | None:
        """Why an update of this client for the task of round `origin` is refused now, or None.

        The ledger recognises a repeat of an accepted update before this is asked.
        """

    @property
    @abstractmethod
    def needed(self) -> int:
        """Candidates that a round needs to open."""

    @property
    @abstractmethod
    def needed_next(self) -> int:
        """Idle clients that the next round will need, beside the members at work."""

    @abstractmethod
    def could_ask(self, client: str) -> bool:
        """Whether a client could be recruited, were it idle."""

    @property
    def spare(self) -> int:
        """Updates that the candidates could send."""
        return len(self.candidates)

    @property
    @abstractmethod
    def free(self) -> int:
        """Members that may be recruited now."""

    @abstractmethod
    def ask(self, client: str) -> Offer:
        """Add a client to the cohort."""
