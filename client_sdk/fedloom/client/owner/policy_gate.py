"""The policy gate: declines offers by the owner's policy, and counts the rounds of the last day.

A round is counted by its whole task, not by its number: with a new model, a server could request
another update under the same number.

Times are of the device's clock; if it is set back, rounds count longer, never shorter.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from fedloom.client.owner.policy import PolicyFile
from fedloom.client.training.checkpoints import name_of
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

FILE = "rounds-taken.json"
HOUR_S, DAY_S = 3600.0, 86400.0

KEPT = 100
"""Answered rounds that are kept at least: the file is written twice a round, of which a day can
have thousands. A limit that is raised above it counts no more than these of the rounds before."""

_UNTIL = " until "


class PolicyGate:
    """Declines offers that the owner's policy does not allow.

    Args:
        policy: the owner's.
        directory: of the client's state.
        now: the device's clock, seconds since the epoch.
    """

    def __init__(
        self, policy: PolicyFile, directory: Path, now: Callable[[], float] = time.time
    ) -> None:
        self.policy = policy
        self._path = directory / FILE
        self._now = now
        self._taken = _read(self._path)

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline an offer; None to accept."""
        try:
            policy = self.policy.current()
        except UsageError as error:
            log.warning("every offer is declined: %s", error)
            return "the device's policy cannot be read, so every offer is declined."
        if (objection := policy.objection(offer)) is not None:
            return objection
        for most, span_s, name in (
            (policy.runs.rounds_per_hour, HOUR_S, "an hour"),
            (policy.runs.rounds_per_day, DAY_S, "a day"),
        ):
            if most and self._since(span_s, offer) >= most:
                rounds = "round" if most == 1 else "rounds"
                return f"the device's policy allows {most} {rounds} {name}."
        return None

    def took(self, offer: fleet_pb2.Task) -> None:
        """Count an accepted offer; the same task counts once until it is answered."""
        self._taken.setdefault(name_of(offer), self._now())
        self._keep()

    def answered(self, offer: fleet_pb2.Task) -> None:
        """Mark a task as answered: if it is offered again, it counts again."""
        key, now = name_of(offer), self._now()
        self._taken[f"{key}{_UNTIL}{now}"] = self._taken.pop(key, now)
        self._keep()

    def _keep(self) -> None:
        now = self._now()
        taken = {key: at for key, at in self._taken.items() if now - at < DAY_S}
        answered = sorted((key for key in taken if _UNTIL in key), key=taken.__getitem__)
        for key in answered[: -self._most()]:
            del taken[key]
        self._taken = taken
        try:
            write_whole(self._path, json.dumps(self._taken), mode=0o600)
        except OSError as error:
            log.warning("the count of rounds could not be stored: %s", error)

    def _most(self) -> int:
        """The most answered rounds that a limit of the policy can ask for."""
        try:
            runs = self.policy.current().runs
        except UsageError:
            return max(KEPT, len(self._taken))
        return max(KEPT, runs.rounds_per_hour, runs.rounds_per_day)

    def _since(self, span_s: float, offer: fleet_pb2.Task) -> int:
        now, mine = self._now(), name_of(offer)
        return sum(1 for key, at in self._taken.items() if now - at < span_s and key != mine)


def _read(path: Path) -> dict[str, float]:
    try:
        return {str(key): float(at) for key, at in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("the count of rounds is lost (%s): %s", path, error)
        return {}
