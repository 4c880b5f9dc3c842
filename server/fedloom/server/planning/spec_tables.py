"""Tables of a specification: what they may hold, of which types, and what stands in for none."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedloom.protocol.errors import UsageError

_DEFAULTS: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rule": {"name": "plain"},
    "aggregation": {"name": "mean"},
    "compression": {},
    "personal": {},
    "cohort": {},
    "selection": {"name": "uniform"},
    "metrics": {},
    "train": {},
    "config": {},
    "privacy": {},
}
_PRIVATE: dict[str, Any] = {"evaluate": False, "weighting": "uniform"}
"""What a run with [privacy] has by default."""

_EVALUATED: dict[str, Any] = {"rounds": 1, "train": {"epochs": 1, "learning_rate": 1.0}}
"""What a run with evaluate_only has by default; nothing is trained by it."""


def filled(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """A specification's settings, each of its type, with what stands in for those that are missing.

    Args:
        values: as parsed from TOML or JSON.
        types: of every setting that there is.

    Raises:
        UsageError: an unknown setting or a wrong type.
    """
    if unknown := sorted(set(values) - set(types)):
        raise UsageError(f"Expected settings of {', '.join(types)}, got {', '.join(unknown)}.")
    private = _PRIVATE if values.get("privacy") else {}
    evaluated = _EVALUATED if values.get("evaluate_only") else {}
    merged: dict[str, Any] = {**_DEFAULTS, **private, **evaluated, **values}
    if evaluated and not merged["train"]:
        merged["train"] = evaluated["train"]
    return {name: _typed(name, types[name], value) for name, value in merged.items()}


def settings_of(kind: type[Any], values: Mapping[str, Any], table: str) -> Mapping[str, Any]:
    """The settings of a table, if the dataclass that they are for can be built from them."""
    known = {field.name: field for field in fields(kind)}
    only(values, table, known)
    needed = {
        name
        for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    if missing := sorted(needed - set(values)):
        raise UsageError(f"Expected {table}.{missing[0]} to be set, got none.")
    return values


def only(values: Mapping[str, Any], table: str, known: Collection[str]) -> None:
    """Refuse a table that has settings which nobody knows."""
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(
            f"Expected settings of [{table}] of {', '.join(known)}, got {', '.join(unknown)}."
        )


def named(values: Mapping[str, Any], what: str) -> tuple[str, dict[str, Any]]:
    """The name that a table has, and its other settings."""
    settings = dict(values)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"Expected {what}.name, got {dict(values)!r}.")
    return name, settings


def _typed(name: str, wanted: Any, value: Any) -> Any:
    if wanted is float or wanted == float | None:
        if value is None and wanted is not float:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise UsageError(f"Expected a finite {name}, got {value}.")
            return float(value)
    elif wanted in (int, bool, str) and type(value) is wanted:
        return value
    elif wanted not in (int, bool, str) and isinstance(value, Mapping):
        return dict(value)
    expected = getattr(wanted, "__name__", "a table").replace("Mapping", "a table")
    raise UsageError(f"Expected {name} as {expected}, got {value!r}.")
