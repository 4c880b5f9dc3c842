"""The top level of a specification: its settings, their types and their defaults."""

from collections.abc import Mapping
from typing import Any

from fedloom.protocol.settings import checked
from fedloom.server.engine import RoundConfig
from fedloom.strategies import LocalTraining, Privacy, registry, setting_checks
from fedloom.strategies.masking.settings import USUAL_MIN_GROUP
from fedloom.strategies.personal.settings import NAMES as PERSONAL_NAMES
from fedloom.strategies.setting_checks import nearest, spelled

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
    "best": {},
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


INNER: Mapping[str, str] = {
    name: f"{table}.{name}"
    for table, kind in {"train": LocalTraining, "cohort": RoundConfig, "privacy": Privacy}.items()
    for name in setting_checks.parameters(kind)
}
"""Settings in tables by their last part, proposed for an unknown one at the top level."""


def filled(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification's settings in their types, with defaults for missing tables.

    Args:
        values: as parsed from TOML or JSON.
        types: annotation of every setting.

    Raises:
        UsageError: a setting is unknown or of the wrong type.
    """
    given = _with_names(checked(values, types, INNER))
    private = _PRIVATE if values.get("privacy") else {}
    if str(given.get("strategy", {}).get("name", "")).startswith(registry.HOSTED):
        private = {**_HOSTED, **private}
    evaluated = _EVALUATED if values.get("evaluate_only") else {}
    if values.get("flower"):
        evaluated = _MESSAGES
    merged: dict[str, Any] = {**_DEFAULTS, **private, **evaluated, **given}
    if isinstance(masking := merged.get("masking"), Mapping):
        merged["cohort"] = _with_quorum(merged["cohort"], masking)
    if evaluated and not merged["train"]:
        merged["train"] = evaluated["train"]
    return merged


def _with_quorum(cohort: Mapping[str, Any], masking: Mapping[str, Any]) -> Mapping[str, Any]:
    """[cohort] with the quorum of a masked run: fewer updates than `min_group` are no session.

    At most the goal, so that the parts are refused together, in words.
    """
    least, goal = masking.get("min_group", USUAL_MIN_GROUP), cohort.get("goal")
    if "quorum" in cohort or not (isinstance(least, int) and isinstance(goal, int)):
        return cohort
    return {**cohort, "quorum": min(least, goal)}


_NAMED: Mapping[str, Mapping[str, Any]] = {
    "strategy": registry.STRATEGIES,
    "rule": registry.CLIENT_RULES,
    "aggregation": registry.AGGREGATIONS,
    "selection": registry.SELECTIONS,
    "personal": dict.fromkeys(PERSONAL_NAMES),
}


def _with_names(given: dict[str, Any]) -> dict[str, Any]:
    """Settings with the registries' spelling of names; [strategy] without a name is FedAvg."""
    if "strategy" in given and not any(nearest(n, ("name",)) for n in given["strategy"]):
        given["strategy"] = {**_DEFAULTS["strategy"], **given["strategy"]}
    for table in _NAMED.keys() & given.keys():
        if isinstance(name := given[table].get("name"), str):
            given[table] = {**given[table], "name": spelled(name, _NAMED[table])}
    return given
