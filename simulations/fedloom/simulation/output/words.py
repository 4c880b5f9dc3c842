"""Numbers as text, for every display and report: durations, counts, shares, metrics, settings.

Pure. A value that is not finite is shown as "not finite", never as a number.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fedloom.cli.common import output
from fedloom.protocol.settings import dotted

ABSENT = "–"
RESUME = "--resume (in Python resume=True)"
ACCEPT = "--accept-changes (in Python accept_changes=True)"
"""What a user writes to resume a simulation, also with changed code or data."""

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_SHARES = ("accuracy", "precision", "recall", "f1", "auc")


def duration(seconds: float | None) -> str:
    """A length of time in at most two units; `ABSENT` for none.

    >>> duration(0.0123), duration(3.21), duration(3725), duration(200_000)
    ('12 ms', '3.2 s', '1 h 02 min', '2 d 07 h')
    """
    return ABSENT if seconds is None or not math.isfinite(seconds) else output.duration(seconds)


def count(number: int) -> str:
    """A whole number with separators of thousands.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def rate(per_second: float | None) -> str:
    """A rate per second.

    >>> rate(3.14159), rate(87.2), rate(5321.0)
    ('3.14', '87', '5,321')
    """
    if per_second is None or not math.isfinite(per_second):
        return ABSENT
    return f"{per_second:.3g}" if per_second < 10 else f"{per_second:,.0f}"


def number(value: float) -> str:
    """A number in four digits.

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
    """Whether a metric is a share of one, by its name: shown in percent, higher is better.

    >>> is_share("accuracy"), is_share("top5_accuracy"), is_share("loss")
    (True, True, False)
    """
    return metric.lower().split("_")[-1] in _SHARES


def metric(name: str, value: float | None) -> str:
    """A metric's value; a share in percent.

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


def size(num_bytes: float) -> str:
    """A number of bytes in binary units.

    >>> size(184), size(40_000_000)
    ('184 B', '38.1 MiB')
    """
    return output.size(num_bytes)


def things(number: int, singular: str) -> str:
    """A count with its noun.

    >>> things(1, "round"), things(2000, "round")
    ('1 round', '2,000 rounds')
    """
    return f"{number:,} {singular if number == 1 else singular + 's'}"


def share(value: float) -> str:
    """A share of one in percent, with at most three digits.

    >>> share(0.5), share(0.995), share(0.98123)
    ('50%', '99.5%', '98.1%')
    """
    return f"{100 * value:.3g}%"


def over_seeds(number: int) -> str:
    """What a mean over seeds is, and its ±.

    >>> over_seeds(5), over_seeds(1)
    ('mean ± sample standard deviation (n - 1) over 5 seeds', 'one seed')
    """
    return (
        f"mean ± sample standard deviation (n - 1) over {number} seeds"
        if number > 1
        else "one seed"
    )


def moment(text: object) -> str:
    """An ISO 8601 time to the minute; other text is returned unchanged.

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
    return [(n, setting(v, 10)) for n, v in dotted(table) if v is not None and v != []]


def setting(value: Any, digits: int = 4) -> str:
    """A setting's value as in TOML, fractions rounded to so many digits.

    >>> setting(0.30000000000000004), setting(512), setting(True), setting([2, 3])
    ('0.3', '512', 'true', '2, 3')
    >>> setting({"name": "fedprox", "mu": 0.1})
    'fedprox, mu 0.1'
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return ", ".join(setting(each, digits) for each in value)
    if isinstance(value, Mapping):
        parts = {name: setting(each, digits) for name, each in value.items()}
        return ", ".join(
            text if name == "name" else f"{name} {text}" for name, text in parts.items()
        )
    return str(value)


def shortened(text: str, most: int) -> str:
    """Printable text of at most so many characters.

    >>> shortened("a long name", 8)
    'a long …'
    """
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"
