"""Splits a table's rows over local clients: evenly, or by a column of sites."""

import re
from collections.abc import Sequence

import numpy as np

from fedloom.client.data.columns import Row
from fedloom.protocol.errors import UsageError

MOST_CLIENTS = 16
"""Processes on one machine; `fedloom simulate` runs more clients."""
FEWEST_ROWS = 5
"""Of a client, which holds a fifth of them out."""


def evenly(rows: Sequence[Row], clients: int) -> dict[str, list[Row]]:
    """Deal the rows in a random order, the same each time.

    Raises:
        UsageError: there are too few rows.
    """
    if len(rows) < clients * FEWEST_ROWS:
        raise UsageError(
            f"Expected {FEWEST_ROWS} or more rows for each of {clients} clients, got {len(rows)} "
            "in all. Use fewer --clients, or a longer table."
        )
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    return {
        f"site-{client + 1}": [rows[place] for place in sorted(order[client::clients])]
        for client in range(clients)
    }


def by_site(rows: Sequence[Row], place: int, column: str) -> dict[str, list[Row]]:
    """A client for each value of a column.

    Args:
        rows: of the table.
        place: of the column among the cells.
        column: its name.

    Raises:
        UsageError: there are too many sites, or one is too small or has no usable name.
    """
    sites: dict[str, list[Row]] = {}
    for row in rows:
        sites.setdefault(row.cells[place], []).append(row)
    if not 2 <= len(sites) <= MOST_CLIENTS:
        raise UsageError(
            f"Expected 2 to {MOST_CLIENTS} sites in column {column!r}, a process each, got "
            f"{len(sites)}. Choose another column, or split the rows evenly by --clients; "
            "`fedloom simulate` runs thousands."
        )
    names = {site: _client_name(site) for site in sites}
    for site, held in sites.items():
        if len(held) < FEWEST_ROWS:
            raise UsageError(
                f"Expected {FEWEST_ROWS} or more rows of each site, got {len(held)} of {site!r} in "
                f"column {column!r} (line {held[0].line}). Join sites, or remove these rows."
            )
        if not names[site] or list(names.values()).count(names[site]) > 1:
            raise UsageError(
                f"Expected sites in column {column!r} with different names of letters and digits, "
                f"got {site!r} (line {held[0].line}). Rename it."
            )
    return {names[site]: held for site, held in sorted(sites.items())}


def _client_name(site: str) -> str:
    """A site as the name of a client, and of its file.

    >>> _client_name("St. Mary, Ward 3")
    'st-mary-ward-3'
    """
    return re.sub(r"[^a-z0-9]+", "-", site.lower()).strip("-")[:60].strip("-")
