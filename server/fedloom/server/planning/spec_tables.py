"""The top level of a specification: its settings, their types and their defaults."""

from collections.abc import Mapping
from typing import Any

from fedloom.protocol.settings import checked
from fedloom.strategies import registry

_DEFAULTS: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rule": {"name": "plain"},
    "aggregation": {"name": "mean"},
    "compression": {},
    "personal": {},
    "adapters": {},
    "cohort": {},
    "selection": {"name": "uniform"},
    "metrics": {},
    "train": {},
    "config": {},
    "privacy": {},
    "flower": {},
}
_PRIVATE: dict[str, Any] = {"evaluate": False, "weighting": "uniform"}
"""Defaults of a run with [privacy]."""

_HOSTED: dict[str, Any] = {"evaluate": "after"}
"""Defaults of a run with a strategy of Flower, which evaluates after each training."""

_EVALUATED: dict[str, Any] = {"rounds": 1, "train": {"epochs": 1, "learning_rate": 1.0}}
"""Defaults of a run with evaluate_only, which trains nothing."""


_MESSAGES: dict[str, Any] = {**_EVALUATED, "evaluate": False, "weighting": "uniform"}
"""Defaults of a run with [flower], whose rounds carry messages."""


def filled(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification's settings in their types, with defaults for missing tables.

    Args:
        values: as parsed from TOML or JSON.
        types: annotation of every setting.

    Raises:
        UsageError: a setting is unknown or of the wrong type.
    """
    given = checked(values, types)
    private = _PRIVATE if values.get("privacy") else {}
    if str(given.get("strategy", {}).get("name", "")).startswith(registry.HOSTED):
        private = {**_HOSTED, **private}
    evaluated = _EVALUATED if values.get("evaluate_only") else {}
    if values.get("flower"):
        evaluated = _MESSAGES
    merged: dict[str, Any] = {**_DEFAULTS, **private, **evaluated, **given}
    if evaluated and not merged["train"]:
        merged["train"] = evaluated["train"]
    return merged
