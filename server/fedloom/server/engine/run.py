"""A run as a state machine without I/O: which round comes next, and when to pause.

Invariants: one round is open at a time. Round numbers rise by one for every round opened, whether
it is committed or not; in a run of a parent server they are the parent's. FINISHED, STOPPED and
FAILED do not change. A round that was closing when its run was stopped is still counted when it
commits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from fedloom.protocol.task_kind import Kind

from .best import BestModel, stalled
from .config import RunConfig
from .errors import OperatorRefused
from .events import Pause, Resume
from .states import IGNORE, REFUSE, RunState, Verdict

RoundKind: TypeAlias = Kind
"""What a round is for."""


# ---- events, beside Pause and Resume ---------------------------------------------------------


@dataclass(slots=True)
class Started:
    """The driver has started: open a round unless one is open."""


@dataclass(slots=True)
class RoundCommitted:
    """The open round was committed.

    Attributes:
        kind: of the round.
        best: the best model after it; None in a run that has none.
    """

    kind: RoundKind
    best: BestModel | None = None


@dataclass(slots=True)
class RoundAbandoned:
    """The open round was abandoned; `fault` when another attempt would fail the same way."""

    reason: str
    fault: bool = False


@dataclass(slots=True)
class Stop:
    """The operator ends the run; its committed rounds are kept."""


@dataclass(slots=True)
class Break:
    """The driver cannot continue this run: something that it needs is missing or damaged."""

    reason: str


@dataclass(slots=True)
class Wanted:
    """A run on demand has messages to send: open a round unless one is open.

    Attributes:
        number: of the round, above that of the latest; None for the next one.
        kind: of the round.
    """

    number: int | None = None
    kind: RoundKind = RoundKind.MESSAGE


@dataclass(slots=True)
class Done:
    """A run on demand needs no further round."""


@dataclass(slots=True)
class RollBack:
    """The operator rolls the run back to an earlier model: no round opens until `RolledBack`."""

    reason: str


@dataclass(slots=True)
class RolledBack:
    """The rollback is done, or failed and changed nothing.

    Attributes:
        trained: committed training rounds of the current model; None if nothing changed.
        best: the best model of the rounds that still count.
    """

    trained: int | None
    best: BestModel | None = None


RunEvent = (
    Started
    | RoundCommitted
    | RoundAbandoned
    | Pause
    | Resume
    | Stop
    | Break
    | Wanted
    | Done
    | RollBack
    | RolledBack
)
"""Every event that a run handles."""


# ---- effects ---------------------------------------------------------------------------------


@dataclass(slots=True)
class OpenRound:
    """Begin a round."""

    number: int
    kind: RoundKind


@dataclass(slots=True)
class PauseRound:
    """Pass `Pause` to the open round."""


@dataclass(slots=True)
class ResumeRound:
    """Pass `Resume` to the open round."""


@dataclass(slots=True)
class AbortRound:
    """Pass `Abort` to the round if it `is_open`; a closing round commits."""

    reason: str


@dataclass(slots=True)
class Finish:
    """The run has done all its rounds."""


RunEffect = OpenRound | PauseRound | ResumeRound | AbortRound | Finish
"""Every effect of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """What a run has done: with its state, all that is needed to restore it.

    Attributes:
        opened: rounds opened; the number of the latest.
        trained: rounds committed of those that the run wants.
        evaluated: whether a round of evaluation was committed since the last training round.
        abandoned_in_a_row: rounds abandoned since the last commit or resume.
        open_kind: the kind of the open round, or None when no round is open.
        best: the best model so far; None in a run that has none.
    """

    opened: int = 0
    trained: int = 0
    evaluated: bool = False
    abandoned_in_a_row: int = 0
    open_kind: RoundKind | None = None
    best: BestModel | None = None


class Run:
    """One run: its progress and its next round."""

    __slots__ = ("config", "held", "progress", "reason", "state")

    def __init__(
        self,
        config: RunConfig,
        *,
        state: RunState = RunState.RUNNING,
        reason: str = "",
        progress: RunProgress | None = None,
    ) -> None:
        """Begin a run, or restore one from what was stored of it.

        Args:
            config: how many rounds, and when to pause.
            state: as stored.
            reason: why it is paused or failed, as stored.
            progress: as stored; the driver restores the round that is open, paused if the run is.
        """
        self.config = config
        self.state = state
        self.reason = reason
        self.progress = progress or RunProgress()
        self.held = False  # between `RollBack` and `RolledBack`

    def handle(self, event: RunEvent) -> list[RunEffect]:
        """Process an event and return what is to be done, in order.

        Raises:
            OperatorRefused: an operator's command does not fit the state; nothing has changed.
        """
        action = self.TABLE[self.state][type(event)]
        if action is REFUSE:
            raise OperatorRefused(
                f"Expected a run that can {type(event).__name__.lower()}, got one {self.state}."
            )
        return [] if isinstance(action, Verdict) else action(self, event)

    def _become(self, state: RunState, reason: str = "") -> None:
        self.state, self.reason = state, reason

    # running

    def _started(self, _: Started | None = None) -> list[RunEffect]:
        """Finish, or open the next round unless one is open; a run on demand waits for `Wanted`."""
        if self.held or self.config.on_demand:
            return []
        kind = self._next_kind()
        why = "" if kind is None else self._stalled()
        if kind is None or why:
            self._become(RunState.FINISHED, why)
            return [Finish()]
        return self._open(kind)

    def _stalled(self) -> str:
        """Why the run ends before its last round; empty if it does not."""
        settings, best = self.config.best, self.progress.best
        if settings is None or best is None or self.progress.open_kind is not None:
            return ""
        return stalled(settings, best)

    def _open(self, kind: RoundKind, number: int | None = None) -> list[RunEffect]:
        if self.progress.open_kind is not None:
            return []
        number = self.progress.opened + 1 if number is None else number
        self.progress = replace(self.progress, opened=number, open_kind=kind)
        return [OpenRound(number, kind)]

    def _wanted(self, event: Wanted) -> list[RunEffect]:
        may_open = self.config.on_demand and not self.held
        return self._open(event.kind, event.number) if may_open else []

    def _done(self, _: Done) -> list[RunEffect]:
        ended = self._end(RunState.FINISHED, "")
        return [*ended, Finish()]

    def _next_kind(self) -> RoundKind | None:
        if self.config.evaluate_each and self.progress.trained and not self.progress.evaluated:
            return RoundKind.EVALUATE
        most = self.config.most_opened
        # A round that is open is among those opened; before the evaluation all are for training.
        may_open = most is None or self._is_training() or self.progress.opened < most
        if self.progress.trained < self.config.rounds and may_open:
            return RoundKind.EVALUATE if self.config.evaluate_only else RoundKind.TRAIN
        last = self.config.evaluate_last and not self.config.evaluate_only
        wants_evaluation = last and not self.progress.evaluated
        return RoundKind.EVALUATE if wants_evaluation else None

    def _is_training(self) -> bool:
        return self.progress.open_kind is RoundKind.TRAIN

    def _committed(self, event: RoundCommitted) -> list[RunEffect]:
        self._count(event)
        return self._started()

    def _count(self, event: RoundCommitted) -> list[RunEffect]:
        if self.progress.open_kind is None:
            return []
        counts = event.kind is RoundKind.TRAIN or self.config.evaluate_only
        self.progress = replace(
            self.progress,
            trained=self.progress.trained + counts,
            evaluated=event.kind is RoundKind.EVALUATE,
            abandoned_in_a_row=0,
            open_kind=None,
            best=event.best,
        )
        return []

    def _abandoned(self, event: RoundAbandoned) -> list[RunEffect]:
        self._discount(event)
        in_a_row = self.progress.abandoned_in_a_row
        if event.fault:
            self._become(RunState.PAUSED, event.reason)
        elif in_a_row >= self.config.max_abandoned and not self.held:
            self._become(
                RunState.PAUSED,
                f"{in_a_row} rounds in a row were abandoned; the last one: {event.reason}",
            )
        return self._started() if self.state is RunState.RUNNING else []

    def _discount(self, _: RoundAbandoned) -> list[RunEffect]:
        if self.progress.open_kind is None:
            return []
        self.progress = replace(
            self.progress, abandoned_in_a_row=self.progress.abandoned_in_a_row + 1, open_kind=None
        )
        return []

    def _pause(self, _: Pause) -> list[RunEffect]:
        self._become(RunState.PAUSED, "paused by the operator")
        return [PauseRound()] if self.progress.open_kind is not None else []

    # paused

    def _resume(self, _: Resume) -> list[RunEffect]:
        self._become(RunState.RUNNING)
        self.progress = replace(self.progress, abandoned_in_a_row=0)
        return [ResumeRound()] if self.progress.open_kind is not None else self._started()

    def _committed_in_pause(self, event: RoundCommitted) -> list[RunEffect]:
        self._count(event)
        over = self._next_kind() is None and not self.config.on_demand
        over = over or bool(self._stalled())
        return self._started() if over else []

    def _abandoned_in_pause(self, event: RoundAbandoned) -> list[RunEffect]:
        self._discount(event)
        if event.fault:
            self.reason = event.reason
        return []

    # both

    def _stop(self, _: Stop) -> list[RunEffect]:
        return self._end(RunState.STOPPED, "stopped by the operator")

    def _roll_back(self, event: RollBack) -> list[RunEffect]:
        self.held = True
        return [AbortRound(event.reason)] if self.progress.open_kind is not None else []

    def _rolled_back(self, event: RolledBack) -> list[RunEffect]:
        self.held = False
        if event.trained is not None:
            self.progress = replace(
                self.progress, trained=event.trained, evaluated=False, abandoned_in_a_row=0,
                best=event.best,
            )  # fmt: skip
        return self._started() if self.state is RunState.RUNNING else []

    def _break(self, event: Break) -> list[RunEffect]:
        return self._end(RunState.FAILED, event.reason)

    def _end(self, state: RunState, reason: str) -> list[RunEffect]:
        self._become(state, reason)
        return [AbortRound(reason)] if self.progress.open_kind is not None else []

    _OVER: ClassVar[Mapping[type[RunEvent], "RunAction"]] = {
        Started: IGNORE,
        RoundCommitted: _count,
        RoundAbandoned: _discount,
        Pause: REFUSE,
        Resume: REFUSE,
        Stop: REFUSE,
        Break: IGNORE,
        Wanted: IGNORE,
        Done: IGNORE,
        RollBack: REFUSE,
        RolledBack: IGNORE,
    }
    TABLE: ClassVar[Mapping[RunState, Mapping[type[RunEvent], "RunAction"]]] = {
        RunState.RUNNING: {
            Started: _started,
            RoundCommitted: _committed,
            RoundAbandoned: _abandoned,
            Pause: _pause,
            Resume: REFUSE,
            Stop: _stop,
            Break: _break,
            Wanted: _wanted,
            Done: _done,
            RollBack: _roll_back,
            RolledBack: _rolled_back,
        },
        RunState.PAUSED: {
            Started: IGNORE,
            RoundCommitted: _committed_in_pause,
            RoundAbandoned: _abandoned_in_pause,
            Pause: REFUSE,
            Resume: _resume,
            Stop: _stop,
            Break: _break,
            Wanted: IGNORE,
            Done: _done,
            RollBack: _roll_back,
            RolledBack: _rolled_back,
        },
        RunState.FINISHED: _OVER,
        RunState.STOPPED: _OVER,
        RunState.FAILED: _OVER,
    }


# A table's type cannot express that each method takes the event of its row.
RunAction = Callable[[Run, Any], list[RunEffect]] | Verdict
