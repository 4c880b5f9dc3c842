"""The round engine: what decides, and nothing that touches the world.

Events and their time go in, effects come out. The server's shell runs it on asyncio and the
simulator's on a virtual clock; see docs/rounds.md for the machine it is.
"""

from .cohort import Phase
from .config import RoundConfig, RunConfig
from .effects import Abandon, Close, Offer, Opened, Recruited, RoundEffect, Withdraw
from .errors import OperatorRefused
from .events import (
    Abort,
    Attended,
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
from .round import Round
from .run import (
    AbortRound,
    Break,
    Finish,
    OpenRound,
    PauseRound,
    ResumeRound,
    RoundAbandoned,
    RoundCommitted,
    RoundKind,
    Run,
    RunEffect,
    RunEvent,
    RunProgress,
    Started,
    Stop,
)
from .selection import Select, uniform
from .states import IGNORE, REFUSE, RoundState, RunState, Verdict

__all__ = [
    "IGNORE",
    "REFUSE",
    "Abandon",
    "Abort",
    "AbortRound",
    "Attended",
    "Break",
    "ClientFailed",
    "Close",
    "CloseNow",
    "CommitFailed",
    "Committed",
    "ExtendDeadline",
    "Finish",
    "Left",
    "Offer",
    "OfferAccepted",
    "OfferDeclined",
    "OpenRound",
    "Opened",
    "OperatorRefused",
    "Pause",
    "PauseRound",
    "Phase",
    "Recruited",
    "Resume",
    "ResumeRound",
    "Round",
    "RoundAbandoned",
    "RoundCommitted",
    "RoundConfig",
    "RoundEffect",
    "RoundEvent",
    "RoundKind",
    "RoundState",
    "Run",
    "RunConfig",
    "RunEffect",
    "RunEvent",
    "RunProgress",
    "RunState",
    "Select",
    "Started",
    "Stop",
    "UpdateAccepted",
    "UpdateRefused",
    "Verdict",
    "Wake",
    "Withdraw",
    "uniform",
]
