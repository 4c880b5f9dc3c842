"""Replay guard: refuses old offers that are sent again.

Signatures do not expire, so a recorded offer stays valid. For each run the device therefore stores
the last round that it answered or that was withdrawn, and the signing time of the newest accepted
offer. An offer of this or an earlier round is refused unless it was signed later: then the server
itself repeats the round, as after a restore from a backup. Only the server's times are compared,
because the device's clock may be wrong.
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
    """The last answered round of each run, kept across restarts."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._runs = _read(self._path)

    def check(self, run: str, number: int, issued_us: int) -> None:
        """Check that an offer is not a replay.

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
        """Record that an offer of a run was accepted."""
        last, newest_us = self._runs.get(run, (0, 0))
        self._runs[run] = (last, max(newest_us, issued_us))

    def settle(self, run: str, number: int) -> None:
        """Record that a round was answered or withdrawn. A disk error is only logged."""
        last, newest_us = self._runs.pop(run, (0, 0))
        self._runs[run] = (max(number, last), newest_us)
        while len(self._runs) > KEEP_RUNS:
            del self._runs[next(iter(self._runs))]
        try:
            write_whole(self._path, json.dumps(self._runs))
        except OSError as error:
            log.warning("round %d of %s could not be stored as answered: %s", number, run, error)


def _read(path: Path) -> dict[str, tuple[int, int]]:
    try:
        found = json.loads(path.read_text())
        return {run: (int(last), int(newest_us)) for run, (last, newest_us) in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("the record of answered rounds is lost (%s): %s", path, error)
        return {}
