"""The round engine: pure state machines of rounds, buffers and runs.

Events and their time go in, effects come out. The server drives them on asyncio, the simulator on
a virtual clock; docs/rounds.md has their states and tables.
"""

from .buffer import Buffer as Buffer
from .buffer import MemberSnapshot as MemberSnapshot
from .cohort import Phase as Phase
from .config import BufferConfig as BufferConfig
from .config import RoundConfig as RoundConfig
from .config import RunConfig as RunConfig
from .effects import Abandon as Abandon
from .effects import Close as Close
from .effects import Offer as Offer
from .effects import Opened as Opened
from .effects import Recruited as Recruited
from .effects import RoundEffect as RoundEffect
from .effects import Withdraw as Withdraw
from .errors import OperatorRefused as OperatorRefused
from .events import Abort as Abort
from .events import Attended as Attended
from .events import BufferEvent as BufferEvent
from .events import ChangeGoal as ChangeGoal
from .events import ClientFailed as ClientFailed
from .events import CloseNow as CloseNow
from .events import CommitFailed as CommitFailed
from .events import Committed as Committed
from .events import Disband as Disband
from .events import ExtendDeadline as ExtendDeadline
from .events import Left as Left
from .events import NextBuffer as NextBuffer
from .events import OfferAccepted as OfferAccepted
from .events import OfferDeclined as OfferDeclined
from .events import Pause as Pause
from .events import Resume as Resume
from .events import RoundEvent as RoundEvent
from .events import UpdateAccepted as UpdateAccepted
from .events import UpdateRefused as UpdateRefused
from .events import Wake as Wake
from .round import Round as Round
from .round_engine import RoundEngine as RoundEngine
from .run import AbortRound as AbortRound
from .run import Break as Break
from .run import Finish as Finish
from .run import OpenRound as OpenRound
from .run import PauseRound as PauseRound
from .run import ResumeRound as ResumeRound
from .run import RollBack as RollBack
from .run import RolledBack as RolledBack
from .run import RoundAbandoned as RoundAbandoned
from .run import RoundCommitted as RoundCommitted
from .run import RoundKind as RoundKind
from .run import Run as Run
from .run import RunEffect as RunEffect
from .run import RunEvent as RunEvent
from .run import RunProgress as RunProgress
from .run import Started as Started
from .run import Stop as Stop
from .selection import Select as Select
from .selection import select_by as select_by
from .selection import uniform as uniform
from .states import IGNORE as IGNORE
from .states import REFUSE as REFUSE
from .states import RoundState as RoundState
from .states import RunState as RunState
from .states import Verdict as Verdict
