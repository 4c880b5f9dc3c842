"""Tables in each other as one, by dotted names: how settings are shown, compared and handed on."""

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of tables in each other, in order.

    >>> dict(dotted({"data": {"clients": 8, "by": {"label": True}}, "seed": 1}))
    {'data.clients': 8, 'data.by.label': True, 'seed': 1}

    Args:
        table: of values and tables.
        above: what the names begin with.
    """
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
