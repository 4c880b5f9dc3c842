"""The settings of a round, of a buffer and of a run, checked when built.

Sources: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", sections 2.2
and 4.3 (goal count, over-selection, minimal fraction, reporting window); Nguyen et al. 2022,
"Federated Learning with Buffered Asynchronous Aggregation", Algorithm 1 (concurrency, buffer).
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import ClassVar

from fedloom.protocol.errors import UsageError
from fedloom.strategies.staleness import InverseSqrt, Staleness

from .best import BestSettings

LEAST_ANSWER_S = 10.0
"""Shortest time to answer an offer: clients may be far away, and busy when it arrives."""

_ROUNDING = 1e-9  # 100 × 1.1 is 110.00000000000001, which means a cohort of 110


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """How many updates a round wants, how few it accepts, and how long it waits.

    Attributes:
        goal: clients; the round opens when this many are available and closes when this many
            updates are accepted. At least 1.
        over_selection: factor, at least 1; up to ceil(goal × over_selection) clients are chosen,
            so that the round need not wait for the slowest.
        quorum: updates, from 1 to goal; the fewest with which the round may close at its deadline
            or when nobody is at work.
        deadline_s: seconds from the opening of REPORTING until the round closes with the updates
            it has, or is abandoned under quorum. Positive and finite.
        patience_s: the grace period: seconds that a cohort member may be out of contact before
            the round stops waiting for it and an idle client replaces it; likewise that it may
            leave its offer unanswered, but at least `LEAST_ANSWER_S`. At least 0, finite.
        candidates: clients that must be available before the cohort is drawn from them; the goal
            if that is higher.
        replace: whether an idle client replaces a member that dropped out.
        give_up_s: seconds, but at most `patience_s`, that the round still waits for another client
            once failures have put its quorum out of reach. At least 0, finite.

    Raises:
        UsageError: a value is out of its range.
    """

    LEAST_QUORUM: ClassVar[int] = 1

    goal: int
    over_selection: float = 1.0
    quorum: int = 1
    deadline_s: float = 600.0
    patience_s: float = 30.0
    candidates: int = 1
    replace: bool = True
    give_up_s: float = 3.0

    def __post_init__(self) -> None:
        _expect(self.candidates >= 1, f"candidates={self.candidates} >= 1 clients")
        _expect(self.goal >= 1, f"goal={self.goal} >= 1 clients")
        _expect(1 <= self.over_selection < inf, f"over_selection={self.over_selection} >= 1")
        least = self.LEAST_QUORUM
        _expect(
            least <= self.quorum <= self.goal,
            f"quorum={self.quorum} from {least} to goal={self.goal}",
        )
        _expect(0 < self.deadline_s < inf, f"deadline_s={self.deadline_s} > 0 and finite")
        _expect(0 <= self.patience_s < inf, f"patience_s={self.patience_s} >= 0 and finite")
        _expect(0 <= self.give_up_s < inf, f"give_up_s={self.give_up_s} >= 0 and finite")

    @property
    def cohort_size(self) -> int:
        """Clients to choose when there are enough: ceil(goal × over_selection)."""
        return max(self.goal, ceil(self.goal * self.over_selection - _ROUNDING))

    @property
    def answer_s(self) -> float:
        """Seconds that a member has to answer its offer."""
        return max(self.patience_s, LEAST_ANSWER_S)

    @property
    def by_coins(self) -> bool:
        """Whether each available client is drawn by its own coin, in any number."""
        return False

    @property
    def needed(self) -> int:
        """Clients that must be available before the cohort is drawn."""
        return self.candidates if self.by_coins else max(self.goal, self.candidates)

    @property
    def enough(self) -> float:
        """Updates at which a round closes without its other members; infinity to wait for all."""
        return inf if self.by_coins else self.goal


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledConfig(RoundConfig):
    """The settings of rounds whose random cohort amplifies privacy.

    Such a round is never abandoned for too few updates: in the rounds that are left, a client that
    always answers would be drawn more often than by its probability.

    Attributes:
        coins: whether each available client is drawn by its own coin, in any number; otherwise
            `goal` of them.
        goal: clients; with `coins`, the expected number.
        over_selection: 1.
        quorum: 0.
        deadline_s: as of a round.
        patience_s: as of a round.
        candidates: clients that must be available before the cohort is drawn from them.
        replace: False.
        give_up_s: unused, since no quorum is out of reach.

    Raises:
        UsageError: a value is out of its range.
    """

    LEAST_QUORUM: ClassVar[int] = 0

    coins: bool = False
    quorum: int = 0
    replace: bool = False

    def __post_init__(self) -> None:
        RoundConfig.__post_init__(self)
        _expect(self.quorum == 0, f"quorum=0 for a sampled cohort, got {self.quorum}")
        _expect(self.over_selection == 1, f"over_selection=1, got {self.over_selection}")
        _expect(not self.replace, "replace=false for a sampled cohort, got true")

    @property
    def by_coins(self) -> bool:
        """Whether each available client is drawn by its own coin, in any number."""
        return self.coins


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageConfig(RoundConfig):
    """The settings of a round that sends messages to clients who are named.

    Attributes:
        goal: clients that get a message.
        over_selection: 1.
        quorum: 0; such a round ends when every client has answered, failed or is lost.
        deadline_s: as of a round.
        patience_s: as of a round.
        candidates: 1.
        replace: False.
        give_up_s: unused.

    Raises:
        UsageError: a value is out of its range.
    """

    LEAST_QUORUM: ClassVar[int] = 0
    quorum: int = 0
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig(RoundConfig):
    """The settings of buffered asynchronous rounds (Nguyen et al. 2022, FedBuff).

    Attributes:
        goal: updates; the buffer closes when this many are accepted.
        concurrency: clients at work at a time, on any model; at least 1.
        max_staleness: committed models; a staler update is refused, and a task whose update would
            be staler is withdrawn. At least 0.
        staleness: the factor of a stale update.
        quorum: as of a round.
        deadline_s: seconds from a buffer's opening until it closes with the updates it has, or
            is abandoned under quorum.
        patience_s: as of a round.
        candidates: clients that must be available before the first buffer opens.
        over_selection: 1; `concurrency` sets how many are at work.
        replace: True.
        give_up_s: as of a round.

    Raises:
        UsageError: a value is out of its range.
    """

    concurrency: int
    max_staleness: int = 20
    staleness: Staleness = field(default_factory=InverseSqrt)

    def __post_init__(self) -> None:
        RoundConfig.__post_init__(self)
        _expect(self.concurrency >= 1, f"concurrency={self.concurrency} >= 1 clients")
        _expect(self.max_staleness >= 0, f"max_staleness={self.max_staleness} >= 0 models")
        _expect(
            self.over_selection == 1,
            f"over_selection=1 for a buffer (set concurrency instead), got {self.over_selection}",
        )
        _expect(self.replace, "replace=true for a buffer, got false")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedConfig(RoundConfig):
    """The settings of masked rounds: their members' updates are summed in masking sessions.

    Attributes:
        goal: clients; the sessions open when this many are ready.
        over_selection: as of a round.
        quorum: of members of sessions, from `min_group` to `goal`; bodies, too, in all sessions
            together.
        deadline_s: seconds from the opening of REPORTING until the sessions open with those that
            are ready, or the round is abandoned.
        patience_s: as of a round; a session, too, waits so long for a member out of contact.
        candidates: as of a round.
        replace: as of a round.
        give_up_s: as of a round.
        group: most members of a session; from 2 to `MOST_IN_GROUP`.
        min_group: fewest members of a session; at least 2.
        phase_s: seconds that members have for each message.
        upload_s: seconds that members have for their masked bodies.
        session_s: seconds from the roster until members forget their secrets.

    Raises:
        UsageError: a value is out of its range.
    """

    MOST_IN_GROUP: ClassVar[int] = 128

    group: int = 64
    min_group: int = 16
    phase_s: float = 30.0
    upload_s: float = 300.0
    session_s: float = 600.0

    def __post_init__(self) -> None:
        RoundConfig.__post_init__(self)
        least, most = self.min_group, self.MOST_IN_GROUP
        _expect(2 <= self.group <= most, f"group={self.group} from 2 to {most} members")
        _expect(2 <= least <= self.group, f"min_group={least} from 2 to group={self.group} members")
        _expect(least <= self.quorum, f"quorum={self.quorum} >= min_group={least} clients")
        for name in ("phase_s", "upload_s", "session_s"):
            seconds = getattr(self, name)
            _expect(0 < seconds < inf, f"{name}={seconds} > 0 and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How many rounds a run wants, and when it pauses.

    Attributes:
        rounds: committed training rounds wanted. At least 1.
        evaluate_last: whether a round of evaluation follows the last training round.
        evaluate_each: whether one follows each training round.
        evaluate_only: whether all rounds evaluate and none trains.
        max_abandoned: abandoned rounds in a row after which the run pauses. At least 1.
        most_opened: training rounds that it may open, abandoned ones included; None for any.
        on_demand: whether rounds open when there are messages to send, in any number.
        best: how its best model is found, and when it ends early; None for neither.

    Raises:
        UsageError: a value is out of its range.
    """

    rounds: int
    evaluate_last: bool = False
    evaluate_each: bool = False
    evaluate_only: bool = False
    max_abandoned: int = 3
    most_opened: int | None = None
    on_demand: bool = False
    best: BestSettings | None = None

    def __post_init__(self) -> None:
        _expect(self.rounds >= 1, f"rounds={self.rounds} >= 1")
        _expect(self.max_abandoned >= 1, f"max_abandoned={self.max_abandoned} >= 1")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise UsageError(f"Expected {what}.")
