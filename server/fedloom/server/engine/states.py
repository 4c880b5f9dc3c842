"""The states of a round and of a run, and what their tables say where no method is called."""

from enum import Enum, StrEnum


class RoundState(StrEnum):
    """Where a round stands."""

    SELECTING = "selecting"
    REPORTING = "reporting"
    CLOSING = "closing"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class Verdict(Enum):
    """What the table says where no method is called."""

    IGNORE = "ignore"
    REFUSE = "refuse"


IGNORE = Verdict.IGNORE
REFUSE = Verdict.REFUSE
