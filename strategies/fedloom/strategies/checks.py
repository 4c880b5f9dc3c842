"""Checks that configuration dataclasses make when they are built, with one form of message."""

import math
from collections.abc import Sequence
from typing import Any, Final

MAX_LISTED: Final = 256
"""Longest list of a setting: devices compare each pattern with each name of a tensor."""
MAX_PATTERN: Final = 256
"""Longest pattern, characters."""


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Raise unless the value is a finite number within range.

    Raises:
        TypeError: it is not an int or a float.
        ValueError: it is not finite, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"Expected {name} to be a number, got {value!r}.")
    if not (math.isfinite(value) and value > above and value >= at_least and value < below):
        bounds = {"> ": above, ">= ": at_least, "< ": below}
        stated = [sign + f"{bound:g}" for sign, bound in bounds.items() if math.isfinite(bound)]
        raise ValueError(f"Expected a finite {name} {' and '.join(stated)}, got {value!r}.")


def check_share(name: str, value: Any) -> None:
    """Raise unless the value is a number from 0 to 1.

    Raises:
        TypeError: it is not an int or a float.
        ValueError: it is out of range.
    """
    check_number(name, value, at_least=0)
    if value > 1:
        raise ValueError(f"Expected {name} from 0 to 1, got {value!r}.")


def check_count(name: str, value: Any, *, at_least: int = 1) -> None:
    """Raise unless the value is a whole number that is large enough.

    Raises:
        TypeError: it is not an int.
        ValueError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Expected {name} to be a whole number, got {value!r}.")
    if value < at_least:
        raise ValueError(f"Expected {name} >= {at_least}, got {value}.")


def check_list(name: str, value: Any) -> tuple[Any, ...]:
    """Return a list of a setting as a tuple.

    Raises:
        TypeError: it is not a list.
        ValueError: it is longer than `MAX_LISTED`.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"Expected {name} as a list, got {value!r}.")
    if len(value) > MAX_LISTED:
        raise ValueError(f"Expected at most {MAX_LISTED} entries in {name}, got {len(value)}.")
    return tuple(value)


def check_patterns(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of patterns of names, as in a shell, as a tuple.

    Raises:
        TypeError: it is not a list of strings.
        ValueError: it is longer than `MAX_LISTED`, or a pattern is empty or longer than
            `MAX_PATTERN`.
    """
    patterns = check_list(name, value)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"Expected {name} as a list of patterns of names, got {pattern!r}.")
        if not 0 < len(pattern) <= MAX_PATTERN:
            raise ValueError(
                f"Expected patterns of 1 to {MAX_PATTERN} characters in {name}, "
                f"got one of {len(pattern)}."
            )
    return patterns
