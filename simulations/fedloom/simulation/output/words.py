"""Numbers as people read them: durations, counts, shares, metrics.

Pure. A value that is not finite is said to be so; it is never shown as a number.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fedloom.protocol.settings import dotted

ABSENT = "–"

_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_SHARES = ("accuracy", "precision", "recall", "f1", "auc")


def duration(seconds: float | None) -> str:
    """A length of time in at most two units.

    >>> duration(0.0123), duration(3.21), duration(3725), duration(200_000)
    ('12 ms', '3.2 s', '1 h 2 min', '2 d 8 h')

    Args:
        seconds: None where there is none to tell.
    """
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    for size, name, smaller, smaller_name in _UNITS:
        parts = round(seconds / smaller)
        if parts * smaller >= size:
            whole, rest = divmod(parts, size // smaller)
            return f"{whole:,} {name} {rest} {smaller_name}" if rest else f"{whole:,} {name}"
    return "1 min"


def count(number: int) -> str:
    """A whole number with its thousands set apart.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def rate(per_second: float | None) -> str:
    """How many a second.

    >>> rate(3.14159), rate(87.2), rate(5321.0)
    ('3.14', '87', '5,321')
    """
    if per_second is None or not math.isfinite(per_second):
        return ABSENT
    return f"{per_second:.3g}" if per_second < 10 else f"{per_second:,.0f}"


def number(value: float) -> str:
    """A number in about four digits.

    >>> number(0.123456), number(1234567.0), number(3.0), number(1.5e-9)
    ('0.1235', '1.235M', '3', '1.5e-09')
    """
    if not math.isfinite(value):
        return "not finite"
    for size, prefix in _PREFIXES:
        if size <= abs(value) < 1e15:
            return f"{value / size:.4g}{prefix}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


def is_share(metric: str) -> bool:
    """Whether a metric is a share of one, by its name: higher is better and percents suit it.

    >>> is_share("accuracy"), is_share("top5_accuracy"), is_share("loss")
    (True, True, False)
    """
    return metric.lower().split("_")[-1] in _SHARES


def metric(name: str, value: float | None) -> str:
    """A metric's value, in percents where it is a share.

    >>> metric("accuracy", 0.98765), metric("loss", 0.04321), metric("loss", float("nan"))
    ('98.77%', '0.0432', 'not finite')
    """
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "not finite"
    if is_share(name) and 0 <= value <= 1:
        return f"{value:.2%}"
    return f"{value:.3f}" if 1 <= abs(value) < 1000 else f"{value:.3g}"


def things(number: int, singular: str, plural: str = "") -> str:
    """So many of something.

    >>> things(1, "round"), things(2000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def share(value: float) -> str:
    """A share of one in percents, with no more digits than it has, three at most.

    >>> share(0.5), share(0.995), share(0.98123)
    ('50%', '99.5%', '98.1%')
    """
    return f"{100 * value:.3g}%"


def moment(text: object) -> str:
    """An ISO 8601 time to the minute; what is none comes back as it is.

    >>> moment("2026-02-03T04:05:06+00:00")
    '2026-02-03 04:05 UTC'
    """
    try:
        time = datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return str(text)
    return f"{time:%Y-%m-%d %H:%M} UTC"


def flat(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested settings as lines of dotted names and values.

    >>> flat({"data": {"clients": 8}, "seed": 1})
    [('data.clients', '8'), ('seed', '1')]
    """
    return [(n, _told(v)) for n, v in dotted(table) if v is not None and v != []]


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value))
    return str(value)
