"""The file of a study: Optuna's journal, one operation per line.

It has the format of Optuna's `JournalFileBackend`, so `optuna-dashboard` reads it. A journal takes
a tenth of the processor time of a database. Only one process works in a sweep's folder, so the
journal needs no lock; an incomplete last line of a killed process is cut off.
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
        path: made if missing.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        self._lines = content[:whole].splitlines()

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Operations from this number on."""
        for line in self._lines[log_number_from:]:
            yield json.loads(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add operations."""
        lines = [json.dumps(log, separators=(",", ":")).encode() for log in logs]
        self._file.write(b"".join(line + b"\n" for line in lines))
        self._file.flush()
        self._lines += lines

    def sync(self) -> None:
        """Write everything to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
