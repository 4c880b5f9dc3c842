"""The states of rounds, masking sessions and runs; entries of their tables that call no step."""

from enum import Enum, StrEnum


class RoundState(StrEnum):
    """The state of a round."""

    SELECTING = "selecting"
    REPORTING = "reporting"
    MASKING = "masking"
    """Of a masked round alone: its sessions are open."""
    CLOSING = "closing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"

    @property
    def is_open(self) -> bool:
        """Whether the round can still be aborted: it is neither closing nor over."""
        return self in (RoundState.SELECTING, RoundState.REPORTING, RoundState.MASKING)

    @property
    def is_over(self) -> bool:
        """Whether the round was committed or abandoned."""
        return self in (RoundState.COMMITTED, RoundState.ABANDONED)


class SessionState(StrEnum):
    """The state of a masking session."""

    SHARING = "sharing"
    MASKING = "masking"
    FREEZING = "freezing"
    """The driver stops accepting bodies."""
    FROZEN = "frozen"
    """The session waits for the others of its round."""
    AGREEING = "agreeing"
    REVEALING = "revealing"
    UNMASKING = "unmasking"
    """The driver computes the sum."""
    DONE = "done"
    ABANDONED = "abandoned"

    @property
    def is_over(self) -> bool:
        """Whether the session has its sum or was abandoned."""
        return self in (SessionState.DONE, SessionState.ABANDONED)

    @property
    def is_frozen(self) -> bool:
        """Whether the survivors whose bodies count are fixed, or the session was abandoned."""
        return self not in (
            SessionState.SHARING, SessionState.MASKING, SessionState.FREEZING
        )  # fmt: skip


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
