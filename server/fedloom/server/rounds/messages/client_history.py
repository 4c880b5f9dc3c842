"""What a `ServerApp` was told of the connected clients, for an app that begins anew.

A file has a line for each change: the number of the lookup that saw it, who joined and who left.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.trust.private_files import private_opener

Change = tuple[int, list[str], list[str]]


class ClientHistory:
    """The clients by lookup.

    Args:
        path: of the file.

    Attributes:
        lookups: how often this process of the app has looked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lookups = 0
        self._repeated = 0  # lookups that get what they got before
        self._changes: list[Change] = []
        self._told: set[str] = set()
        self._next = 0  # of the changes, at the current lookup

    def load(self, lookups: int) -> None:
        """Read the file; so many lookups came before the app's last message.

        Raises:
            OSError: it cannot be read or written.
        """
        self._repeated = lookups
        if self._path.exists():
            lines = self._path.read_text().splitlines()
            found = [(at, joined, left) for at, joined, left in map(json.loads, lines)]
            # What was seen after the last message need not be seen again.
            self._changes = [change for change in found if change[0] < lookups]
            kept = "".join(f"{json.dumps(change)}\n" for change in self._changes)
            write_whole(self._path, kept, sync=True)

    def look(self, connected: Sequence[str]) -> tuple[list[str], Callable[[], None] | None]:
        """The clients at the next lookup, by name; and what stores a change, if there is one."""
        at, self.lookups = self.lookups, self.lookups + 1
        while self._next < len(self._changes) and self._changes[self._next][0] <= at:
            _, joined, left = self._changes[self._next]
            self._told = (self._told | set(joined)) - set(left)
            self._next += 1
        now = set(connected)
        if at < self._repeated or now == self._told:
            return sorted(self._told), None
        change = (at, sorted(now - self._told), sorted(self._told - now))
        self._told = now
        return sorted(now), lambda: self._append(change)

    def _append(self, change: Change) -> None:
        with open(self._path, "a", opener=private_opener) as file:
            file.write(f"{json.dumps(change)}\n")
            file.flush()
            os.fsync(file.fileno())
