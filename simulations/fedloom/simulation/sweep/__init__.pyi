from .outcome import Outcome as Outcome
from .outcome import Row as Row
from .reading import read as read
from .runner import run as run
from .settings import Sweep as Sweep
