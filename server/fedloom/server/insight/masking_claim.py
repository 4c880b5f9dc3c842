"""What a server can read of a masked run, from its settings alone."""

from collections.abc import Mapping
from typing import Any

from fedloom.strategies.masking.sessions import colluders, threshold
from fedloom.strategies.masking.settings import Masking


def claim(table: Mapping[str, Any], goal: int, *, sites: bool = False) -> dict[str, Any]:
    """Return what a server can read of a masked run: plain values, for operators.

    With `sites`, it is those that read sums of sessions: the server gets each one's sum of them.

    A session has `min_group` members at least, and its sum the threshold of them, so that the
    claim holds for every class of widths and for goals that are changed later.

    Args:
        table: the [masking] table of a run, as given.
        goal: most clients of a round.
        sites: whether its clients are sites.
    """
    masking = Masking(**table)
    least, most = masking.min_group, max(masking.min_group, min(masking.group, goal))
    low = threshold(least)
    return {
        "smallest_sum": low,
        "largest_sum": most,
        "smallest_session": least,
        "largest_session": most,
        "colluders": colluders(least),
        "words": f"{'each site' if sites else 'the server'} sees sums of {low} to {most} devices",
    }
