"""A run's settings for display: a summary, and all as TOML."""

import json
from collections.abc import Mapping
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from fedloom.server.web.words import plural


def chosen(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of a run's main settings."""
    if flower := spec.get("flower"):
        found = [("Flower", _named(flower)), ("Cohort", _named(spec["cohort"]))]
        return [(name, value) for name, value in found if value]
    cohort, train = spec["cohort"], spec["train"]
    work = (
        plural(train["epochs"], "epoch")
        if train.get("epochs")
        else plural(train.get("steps") or 0, "step")
    )
    batch = train.get("batch_size") or train.get("global_batch_size")
    found = [
        ("Strategy", _named(spec["strategy"])),
        ("Aggregation", _named(spec["aggregation"])),
        ("Client rule", _named(spec["rule"])),
        ("Cohort", f"goal {cohort['goal']}, quorum {cohort.get('quorum', 1)}"),
        ("Deadline", f"{cohort.get('deadline_s', 600):g} s"),
        ("Mode", str(cohort.get("mode", "synchronous"))),
        ("Selection", _named(spec["selection"])),
        ("Training", f"{work}, batch {batch or 'all'}, rate {train.get('learning_rate', '?')}"),
        ("Weighting", str(spec["weighting"])),
        ("Compression", ", ".join(f"{k} {_named(v)}" for k, v in spec["compression"].items() if v)),
        ("Personal", _named(spec["personal"])),
        ("Adapters", _named(spec.get("adapters", {}))),
        ("Best model", _named(spec.get("best", {}))),
        ("Privacy", _named(spec["privacy"])),
        ("Masking", _named({k: v for k, v in _masking(spec).items() if k != "metrics"})),
    ]
    return [(name, value) for name, value in found if value and value != "plain"]


def _masking(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return spec.get("masking") or {}  # None in other runs; runs of earlier versions lack it


def _named(values: Any) -> str:
    if not isinstance(values, Mapping):
        return str(values)
    rest = ", ".join(f"{k} {v}" for k, v in values.items() if k not in ("name", "mechanism"))
    name = str(values.get("name") or values.get("mechanism") or "")
    return f"{name} ({rest})" if name and rest else name or rest


def as_toml(spec: Mapping[str, Any], whole: Mapping[str, Any] | None = None) -> str:
    """A specification as TOML that can be submitted, without defaults.

    `whole` is the full specification if `spec` is a part of one.
    """
    lines, tables = [], []
    plain = _defaults(spec if whole is None else whole)
    for name, value in spec.items():
        if value is None or value == plain.get(name):
            continue
        if isinstance(value, Mapping):
            entries = [f"{k} = {_toml(v)}" for k, v in value.items() if v is not None]
            tables.append("\n".join([f"\n[{name}]", *entries]))
        else:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _defaults(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    least = {n: spec[n] for n in ("cohort", "train", "privacy") if spec.get(n)}
    try:
        known = parse(least).as_dict()
    except UsageError:
        return {}
    return {n: v for n, v in known.items() if n not in ("cohort", "train", "privacy", "name")}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
