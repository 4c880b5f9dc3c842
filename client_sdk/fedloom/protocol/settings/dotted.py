"""Nested tables of settings by dotted names, such as `train.learning_rate`."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedloom.protocol.errors import UsageError


def dotted(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested tables with its dotted name, in order.

    >>> dict(dotted({"data": {"clients": 8, "by": {"label": True}}, "seed": 1}))
    {'data.clients': 8, 'data.by.label': True, 'seed': 1}
    """
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some of them replaced; the tables of `values` are copied.

    >>> merged({"train": {"epochs": 1}}, {"train.epochs": 2, "seed": 7})
    {'train': {'epochs': 2}, 'seed': 7}

    Raises:
        UsageError: a part of a dotted name is not a table.
    """
    result = {name: _copied(value) for name, value in values.items()}
    for key, value in changes.items():
        *path, last = key.split(".")
        table = result
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UsageError(f"Expected {part!r} in {key!r} to be a table, got a value.")
        table[last] = value
    return result


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return value
