"""Logging of a process, as text or JSON lines on standard error."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO, Any

TEXT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; values that JSON cannot hold become strings."""
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
    """Send this process's log to one stream, replacing earlier handlers.

    Args:
        style: `text` (time, level, logger, message) or `json`.
        level: `debug`, `info`, `warning` or `error`.
        stream: default: standard error.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # fedloom logs start and stop itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.captureWarnings(True)
