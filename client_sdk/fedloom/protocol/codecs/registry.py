"""Codecs by name, for settings that arrive as text or over the wire."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any, Final

from fedloom.protocol.codecs.base import Codec
from fedloom.strategies.lazy_imports import Registry

CODECS: Final[Mapping[str, Callable[..., Codec]]] = Registry(
    "fedloom.protocol.codecs",
    {
        "fp16": "Fp16",
        "bf16": "Bf16",
        "int8": "Int8",
        "int4": "Int4",
        "top_k": "TopK",
        "random_k": "RandomK",
        "low_rank": "LowRank",
        "lossless": "Lossless",
    },
)


def codec(name: str, settings: Mapping[str, object] | None = None) -> Codec:
    """Return the codec of this name.

    >>> codec("top_k", {"fraction": 0.01})
    TopK(fraction=0.01)

    Args:
        name: a key of `CODECS`.
        settings: its dataclass's fields; whole numbers may come as floats, as on the wire.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range.
    """
    if name not in CODECS:
        raise ValueError(f"Expected a codec, got {name!r}; {_hint(name, CODECS)}.")
    build: Any = CODECS[name]
    known = {field.name: field for field in fields(build)}
    given = dict(settings or {})
    for setting, value in given.items():
        if setting not in known:
            raise ValueError(
                f"Expected a setting of {name}, got {setting!r}; {_hint(setting, known)}."
            )
        given[setting] = _typed(known[setting].type, value)
    for setting, field in known.items():
        if field.default is MISSING and setting not in given:
            raise ValueError(f"Expected {name} to have the setting {setting}, got none.")
    made: Codec = build(**given)
    return made


def _typed(wanted: Any, value: object) -> object:
    """A number from the wire as the whole number or boolean that it stands for."""
    if wanted in (int, bool) and isinstance(value, float) and value.is_integer():
        return int(value) if wanted is int or value not in (0, 1) else bool(value)
    return value


def _hint(name: object, known: Mapping[str, object]) -> str:
    names = sorted(known)
    nearest = get_close_matches(str(name), names, n=1)
    listed = f"known: {', '.join(names) or 'none'}"
    return f"did you mean {nearest[0]!r}? {listed}" if nearest else listed
