"""Codecs by name, for settings from text or from the wire."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fedloom.protocol.codecs.base import Codec
from fedloom.strategies.lazy_imports import Registry
from fedloom.strategies.setting_checks import annotations, check_settings, lookup

CODECS: Final[Mapping[str, Callable[..., Codec]]] = Registry("fedloom.protocol.codecs", "codec")


def codec(name: str, settings: Mapping[str, object] | None = None, *, table: str = "") -> Codec:
    """Return the codec of this name.

    >>> codec("top_k", {"fraction": 0.01})
    TopK(fraction=0.01)

    Args:
        name: a key of `CODECS`.
        settings: its dataclass's fields; whole numbers may be floats, as on the wire.
        table: of the settings, for messages.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range.
    """
    build: Any = lookup("a codec", name, CODECS)
    hints = annotations(build)
    given = {n: _typed(hints.get(n), value) for n, value in (settings or {}).items()}
    check_settings(build, given, owner=name, table=table)
    made: Codec = build(**given)
    return made


def _typed(wanted: Any, value: object) -> object:
    """Return a number from the wire as the whole number or boolean that it represents."""
    if wanted in (int, bool) and isinstance(value, float) and value.is_integer():
        return int(value) if wanted is int or value not in (0, 1) else bool(value)
    return value
