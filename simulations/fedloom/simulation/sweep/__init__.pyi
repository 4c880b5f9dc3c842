from .outcome import SweepResult as SweepResult
from .outcome import TrialRow as TrialRow
from .reading import read as read
from .runner import run as run
from .settings import Sweep as Sweep
