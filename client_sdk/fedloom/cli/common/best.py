"""The best model of a run: in words, and as a metric of an export."""

from collections.abc import Mapping
from typing import Any

from fedloom.cli.common import output

NAME = "best/"
"""How the names of its scalars begin."""


def best_point(best: Mapping[str, Any] | None) -> tuple[int, dict[str, float]] | None:
    """The step and scalar of the model that [best] marks; None if it marks none.

    Args:
        best: the mark, of `fedloom.server.planning.best.mark` or of the API.

    Returns:
        The round that made the model, and its value as `best/METRIC`.
    """
    if best is None or best["round"] is None:
        return None
    return best["round"], {f"{NAME}{best['metric']}": float(best["value"])}


def short_best(best: dict[str, Any] | None) -> str:
    """The best model's metric and round, for a column; empty without one."""
    if best is None or best["round"] is None:
        return ""
    return output.harmless(f"{best['metric']} {best['value']:.4g} (round {best['round']})")


def best_line(best: dict[str, Any]) -> str:
    """The best model so far, and how long it has been the best."""
    if best["round"] is None:
        line = f"best model: none, {best['metric']} was missing or not finite"
    else:
        line = (
            f"best model: {best['metric']} {best['value']:.4g}, {(best['model'] or '')[:12]} of "
            f"round {best['round']}"
        )
    if best["stale"]:
        limit = f" of {best['patience']}" if best["patience"] else ""
        plural = "" if best["stale"] == 1 and not limit else "s"
        line += f" · {best['stale']}{limit} evaluation{plural} without an improvement"
    return output.harmless(line)
