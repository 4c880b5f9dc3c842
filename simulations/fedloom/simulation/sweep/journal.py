"""The file that a study lies in: Optuna's journal, one operation a line.

It is the format of Optuna's own `JournalFileBackend`, so `optuna-dashboard` reads it; a journal
takes a tenth of the processor time of a database, which sweeps of small models would feel. Only one
process works in a sweep's folder, so there is no lock to be left behind by one that was killed, and
half a line that such a one wrote last is cut off.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend


class TrialJournal(BaseJournalBackend):
    """Operations on a study, in order.

    Args:
        path: made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        self._lines = content[:whole].splitlines()

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Operations from a number on."""
        for line in self._lines[log_number_from:]:
            yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add operations."""
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        self._lines += lines

    def sync(self) -> None:
        """Wait until the disk has everything."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
