from .base import Known as Known
from .base import Occasion as Occasion
from .base import Selection as Selection
from .history import History as History
from .history import Observation as Observation
from .oort import Oort as Oort  # [selection] oort
from .power_of_choice import PowerOfChoice as PowerOfChoice  # [selection] power_of_choice
from .roster import Candidates as Candidates
from .simple import BySize as BySize  # [selection] size
from .simple import Deadline as Deadline  # [selection] deadline
from .simple import Sticky as Sticky  # [selection] sticky
from .simple import Uniform as Uniform  # [selection] uniform
from .stratified import Stratified as Stratified  # [selection] stratified
