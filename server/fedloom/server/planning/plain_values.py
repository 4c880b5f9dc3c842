"""Values that a specification may hold: those that the ledger, JSON and the wire all represent.

TOML and Python's JSON reader accept more: infinities, integers of any length, lone surrogates,
tables nested without limit. A run with one of those could be stored but not displayed.
"""

import math
from collections.abc import Mapping
from typing import Any

from fedloom.protocol.errors import UsageError

MAX_DEPTH = 8
MAX_INTEGER = 2**63 - 1
MAX_TEXT = 100_000


def check_values(values: Mapping[str, Any], where: str = "", depth: int = MAX_DEPTH) -> None:
    """Check that every value of a table can be stored and sent.

    Args:
        values: parsed TOML or JSON.
        where: path of the table, for messages.
        depth: further levels of nesting that are allowed.

    Raises:
        UsageError: a value cannot.
    """
    for name, value in values.items():
        _check_text(name, f"the name of a setting in [{where}]" if where else "a setting's name")
        _check(value, f"{where}.{name}" if where else name, depth)


def _check(value: object, where: str, depth: int) -> None:
    if depth == 0:
        raise UsageError(f"Expected {where} with fewer levels of nested tables.")
    match value:
        case str():
            _check_text(value, where)
        case bool() | None:
            pass
        case int() if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise UsageError(f"Expected {where} as an integer of 64 bits, got a longer one.")
        case float() if not math.isfinite(value):
            raise UsageError(f"Expected a finite {where}, got {value}.")
        case Mapping():
            check_values(value, where, depth - 1)
        case list() | tuple():
            for each in value:
                _check(each, where, depth - 1)


def _check_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise UsageError(f"Expected {where} as text, got {text!r:.80}.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"Expected {where} as Unicode text, got a lone surrogate: {ascii(text)[:80]}."
        ) from None
    if size > MAX_TEXT:
        raise UsageError(f"Expected {where} of at most {MAX_TEXT} bytes, got {size}.")
