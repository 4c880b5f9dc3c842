"""Formats sizes, durations, times and shares for the console's pages.

`console.js` updates times by the same rules, so that a text does not jump after loading.
"""

import json
import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def size(count: float | None) -> str:
    """A number of bytes, in powers of 1000.

    >>> size(1234567), size(12), size(None)
    ('1.23 MB', '12 B', '–')
    """
    if count is None:
        return "–"
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_BYTES) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 else max(0, 3 - len(str(int(value))))
    return f"{value:.{digits}f} {_BYTES[unit]}"


def size_down(count: int) -> str:
    """A limit in bytes as `size`, never more than it is.

    >>> size_down(1 << 40), size(1 << 40), size_down(999)
    ('1.09 TB', '1.10 TB', '999 B')
    """
    step = 10 ** max(0, len(str(count)) - 3)
    return size(count // step * step)


def count(value: float | None) -> str:
    """A whole number with its thousands separated.

    >>> count(12345), count(None)
    ('12\u202f345', '–')
    """
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def figure(value: float | None) -> str:
    """A measured value to four digits.

    >>> figure(0.123456), figure(1e-7), figure(math.nan), figure(None)
    ('0.1235', '1e-07', 'NaN', '–')
    """
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    return count(value) if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def measure(value: float | None, name: str) -> str:
    r"""A metric's value: an accuracy in per cent, others as `figure`.

    >>> measure(0.93456, "accuracy"), measure(93.5, "accuracy"), measure(0.93456, "loss")
    ('93.5\xa0%', '93.5', '0.9346')
    """
    if value is not None and "accuracy" in name.lower() and 0 <= value <= 1:
        return f"{100 * value:.1f}\u00a0%"
    return figure(value)


def span(seconds: float | None) -> str:
    """A duration in at most two units.

    >>> span(0.25), span(42), span(130), span(5400), span(200000), span(None)
    ('0.25 s', '42 s', '2 min 10 s', '1 h 30 min', '2 days', '–')
    """
    if seconds is None:
        return "–"
    if 0 < seconds < 10:
        return f"{seconds:.2g} s"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 else "")
    if whole < 2 * 86400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole < 36000 else "")
    return f"{whole // 86400} days"


def left(expected_s: float | None, range_s: Sequence[float] | None) -> str:
    """The time left: expected seconds, or a range while they are uncertain.

    >>> left(130, None), left(60, (20, 130)), left(60, (0, 130)), left(None, None)
    ('2 min 10 s', '20 s to 2 min 10 s', 'up to 2 min 10 s', '–')
    """
    if range_s is None:
        return span(expected_s)
    low, high = range_s
    return f"{span(low)} to {span(high)}" if low else f"up to {span(high)}"


def ago(at: float) -> str:
    """How long ago a time is, rounded.

    >>> ago(time.time() - 130), ago(time.time() + 7300), ago(time.time())
    ('2 min ago', 'in 2 h', 'just now')
    """
    seconds = time.time() - at
    if abs(seconds) < 5:
        return "just now"
    return f"{_rough(seconds)} ago" if seconds > 0 else f"in {_rough(-seconds)}"


def _rough(seconds: float) -> str:
    if seconds < 60:
        return f"{int(seconds // 5) * 5} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 2 * 86400:
        return f"{int(seconds // 3600)} h"
    return f"{int(seconds // 86400)} days"


def iso(at: float) -> str:
    """A time in ISO 8601.

    >>> iso(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def exact(at: float) -> str:
    """A time in full; the page converts it to the browser's time zone.

    >>> exact(0)
    '1970-01-01 00:00:00 UTC'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent.

    >>> share(1, 3), share(1, 0)
    ('33 %', '–')
    """
    return f"{100 * part / whole:.0f} %" if whole else "–"


def plain(text: str) -> str:
    """A JSON object as one line of text; digests are shortened.

    >>> plain('{"round":3,"note":"","model":"' + "ab" * 32 + '","spec":{"rounds":2}}')
    'round 3, model abababababab…, spec (rounds 2)'
    """
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return _plain(found)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        parts = (
            (k, f"({_plain(v)})" if isinstance(v, dict) else _plain(v))
            for k, v in value.items()
            if v != ""  # such as a reason that was not given
        )
        return ", ".join(f"{name} {part}" for name, part in parts)
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def slug(text: str) -> str:
    """An element id made from a text.

    >>> slug("/v1/runs/a b/curves")
    'v1-runs-a-b-curves'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


def plural(number: float, noun: str, several: str = "") -> str:
    """A number with its noun.

    >>> plural(1, "client"), plural(2, "client"), plural(0, "entry", "entries")
    ('1 client', '2 clients', '0 entries')
    """
    return f"{count(number)} {noun if number == 1 else several or noun + 's'}"
