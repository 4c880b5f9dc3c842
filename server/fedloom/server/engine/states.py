"""The states of a round and of a run, and the entries of their tables that call no step."""

from enum import Enum, StrEnum


class RoundState(StrEnum):
    """The state of a round."""

    SELECTING = "selecting"
    REPORTING = "reporting"
    CLOSING = "closing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"

    @property
    def is_open(self) -> bool:
        """Whether the round can still be aborted: it is neither closing nor over."""
        return self in (RoundState.SELECTING, RoundState.REPORTING)

    @property
    def is_over(self) -> bool:
        """Whether the round was committed or abandoned."""
        return self in (RoundState.COMMITTED, RoundState.ABANDONED)


class RunState(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Verdict(Enum):
    """A table entry without a step: nothing happens, or the operator gets an error."""

    IGNORE = "ignore"
    REFUSE = "refuse"


IGNORE = Verdict.IGNORE
REFUSE = Verdict.REFUSE
