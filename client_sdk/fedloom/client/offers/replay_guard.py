"""Which rounds are over for this device: an old offer that is played back makes it do nothing.

A signature does not age, and an offer is as good when it is played back as when it was made. So a
device remembers, for each run, the last round that it has answered (or that no longer wanted an
answer), and when the newest offer that it took was signed. An offer of such a round or an earlier
one is old unless it was signed later: then the server itself asks again, as one does that was
restored from a backup. Only times of the server are compared with each other; the device's clock
may be wrong.
"""

import json
import logging
from pathlib import Path

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import Code, Refusal

log = logging.getLogger(__name__)

KEEP_RUNS = 256
FILE = "answered.json"


class ReplayGuard:
    """Rounds that are over, by run; kept over restarts.

    Args:
        directory: of the client's state.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._runs = _read(self._path)

    def check(self, run: str, number: int, issued_us: int) -> None:
        """May this offer of a round be taken?

        Raises:
            Refusal: STALE_ROUND.
        """
        last, newest_us = self._runs.get(run, (0, 0))
        if number <= last and issued_us <= newest_us:
            raise Refusal(
                Code.STALE_ROUND,
                f"Expected an offer of a round of {run} after {last}, which this device has "
                f"answered, or a newer one, got an old offer of round {number}.",
            )

    def saw(self, run: str, issued_us: int) -> None:
        """An offer of a run was taken."""
        last, newest_us = self._runs.get(run, (0, 0))
        self._runs[run] = (last, max(newest_us, issued_us))

    def settle(self, run: str, number: int) -> None:
        """A round was answered, or wants no answer. A full disk costs only the memory of it."""
        last, newest_us = self._runs.pop(run, (0, 0))
        self._runs[run] = (max(number, last), newest_us)
        while len(self._runs) > KEEP_RUNS:
            del self._runs[next(iter(self._runs))]
        try:
            write_whole(self._path, json.dumps(self._runs))
        except OSError as error:
            log.warning("round %d of %s is not noted as answered: %s", number, run, error)


def _read(path: Path) -> dict[str, tuple[int, int]]:
    try:
        found = json.loads(path.read_text())
        return {run: (int(last), int(newest_us)) for run, (last, newest_us) in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("which rounds were answered is not known any more (%s): %s", path, error)
        return {}
