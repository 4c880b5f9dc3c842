"""The policy gate: declines offers by the owner's policy, and counts the rounds of the last day.

A round is counted by its whole task, not by its number: with a new model, a server could request
another update under the same number.

Each line of the file is a JSON object of changes: a name and when its round was accepted, or null
if the name is gone.

Times are of the device's clock; if it is set back, rounds count longer, never shorter.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from fedloom.client.owner.policy import PolicyFile
from fedloom.client.training.checkpoints import name_of
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.positional_files import append_line
from fedloom.protocol.v1 import fleet_pb2

Changes: TypeAlias = Mapping[str, float | None]

log = logging.getLogger(__name__)

FILE = "rounds-taken.json"
HOUR_S, DAY_S = 3600.0, 86400.0

KEPT = 100
"""Answered rounds that are kept at least. A limit that is raised above it counts no more than these
of the rounds before."""

MOST_LINES = 200
"""Lines of the file after which it is written anew. A round adds two, and to replace a file can
take milliseconds: some file systems first write its data to the disk."""

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
        self._taken, self._lines = _read(self._path)

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
        key = name_of(offer)
        if key not in self._taken:
            self._note({key: self._now()})

    def answered(self, offer: fleet_pb2.Task) -> None:
        """Mark a task as answered: if it is offered again, it counts again."""
        key, now = name_of(offer), self._now()
        self._note({key: None, f"{key}{_UNTIL}{now}": self._taken.get(key, now)})

    def _note(self, changes: Changes) -> None:
        _apply(changes, self._taken)
        self._lines += 1
        try:
            if self._lines > MOST_LINES:
                self._write_anew()
            else:
                append_line(self._path, json.dumps(changes).encode() + b"\n")
        except OSError as error:
            log.warning("the count of rounds could not be stored: %s", error)

    def _write_anew(self) -> None:
        now = self._now()
        taken = {key: at for key, at in self._taken.items() if now - at < DAY_S}
        answered = sorted((key for key in taken if _UNTIL in key), key=taken.__getitem__)
        for key in answered[: -self._most()]:
            del taken[key]
        write_whole(self._path, json.dumps(taken) + "\n", mode=0o600)
        self._taken, self._lines = taken, 1

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


def _read(path: Path) -> tuple[dict[str, float], int]:
    """The rounds, and the number of lines: `MOST_LINES` for a damaged file, to write it anew."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}, 0
    except (OSError, ValueError) as error:
        log.warning("the count of rounds is lost (%s): %s", path, error)
        return {}, MOST_LINES
    taken: dict[str, float] = {}
    count = len(lines)
    for line in lines:
        try:
            _apply(json.loads(line), taken)
        except (ValueError, AttributeError, TypeError) as error:
            log.warning("a part of the count of rounds is lost (%s): %s", path, error)
            count = MOST_LINES
    return taken, count


def _apply(changes: Changes, taken: dict[str, float]) -> None:
    for key, at in changes.items():
        if at is None:
            taken.pop(key, None)
        else:
            taken[str(key)] = float(at)
