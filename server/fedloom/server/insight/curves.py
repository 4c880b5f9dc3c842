"""Curves of a run in columns, for charts: metrics of its committed rounds, with quantiles.

Invariants: all columns of a run are equally long, with null for a round without a value; values
that are not finite are null, as JSON has no such numbers.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

KINDS = ("training", "evaluation")
MEDIAN = "0.5"
"""Name of the median among quantiles."""

TAIL = 12
"""Rounds in a page's live part, more than a page can miss between two."""

Curves = dict[str, Any]
"""`number`, `at` (seconds since the epoch) and `bytes` (of all rounds so far); by kind and metric
`mean`, `low` and `high`, the outermost quantiles, `median`, and `disagree`, whether mean and median
do; `epsilon` of private runs."""


class RoundMeasures(Protocol):
    """Metrics of a committed round."""

    @property
    def number(self) -> int: ...  # noqa: D102 - columns of the ledger
    @property
    def closed_at(self) -> float | None: ...  # noqa: D102
    @property
    def training(self) -> Mapping[str, Any] | None: ...  # noqa: D102
    @property
    def evaluation(self) -> Mapping[str, Any] | None: ...  # noqa: D102
    @property
    def privacy(self) -> Mapping[str, Any] | None: ...  # noqa: D102


def curves(rows: Iterable[RoundMeasures]) -> Curves:
    """The curves of a run.

    Args:
        rows: its committed rounds in order, as from `Figures.curve_rows`.
    """
    rows = list(rows)
    made: Curves = {
        "number": [row.number for row in rows],
        "at": [row.closed_at for row in rows],
        "bytes": [getattr(row, "bytes_so_far", None) for row in rows],
        "training": {},
        "evaluation": {},
        "epsilon": [_finite((row.privacy or {}).get("epsilon")) for row in rows],
    }
    for kind in KINDS:
        measured: list[Mapping[str, Any]] = [getattr(row, kind) or {} for row in rows]
        names = sorted({name for m in measured for name in m.get("values", {})}, key=_rank)
        for name in names:
            made[kind][name] = _curve(name, measured)
    if not any(value is not None for value in made["epsilon"]):
        made["epsilon"] = []
    return made


def metrics(found: Curves) -> list[str]:
    """Names of the metrics: loss and accuracy first."""
    return sorted({name for kind in KINDS for name in found[kind]}, key=_rank)


def latest(found: Curves, kind: str, name: str, column: str = "mean") -> Any:
    """The value of a curve's column in the last round that has a mean; None if it has none."""
    curve = found[kind].get(name, {})
    places = (n for n, mean in reversed(list(enumerate(curve.get("mean", ())))) if mean is not None)
    place = next(places, None)
    return None if place is None or column not in curve else curve[column][place]


def _rank(name: str) -> tuple[int, str]:
    order = ("loss", "accuracy")
    return (order.index(name) if name in order else len(order), name)


def _curve(name: str, measured: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    curve: dict[str, list[Any]] = {
        "mean": [_finite(m.get("values", {}).get(name)) for m in measured]
    }
    spread = [m.get("quantiles", {}).get(name, {}) for m in measured]
    shares = sorted({share for s in spread for share in s}, key=float)
    if len(shares) > 1:
        curve["low"] = [_finite(s.get(shares[0])) for s in spread]
        curve["high"] = [_finite(s.get(shares[-1])) for s in spread]
    if MEDIAN in shares:
        curve["median"] = [_finite(s.get(MEDIAN)) for s in spread]
        curve["disagree"] = [name in m.get("disagree", ()) for m in measured]
    return curve


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
