"""Logging of a process: lines for people or JSON lines for machines, always on standard error."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO, Any

TEXT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what `extra` brought."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; whatever JSON lacks is written as its text."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {k: v for k, v in vars(record).items() if k not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return json.dumps(entry, default=str)


def set_up(style: str = "text", level: str = "info", stream: IO[str] | None = None) -> None:
    """Send this process's log to one stream, replacing what was set up before.

    Args:
        style: `text` (time, level, logger, message) or `json`.
        level: `debug`, `info`, `warning` or `error`.
        stream: standard error if left out.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its "Shutting down" and "Started server process" are ours to say.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.captureWarnings(True)
