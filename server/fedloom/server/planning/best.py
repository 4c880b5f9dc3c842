"""What the committed rounds of a run say about its best model; the same on server and simulator."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fedloom.server.engine import BestModel, BestSettings, RoundKind, judged
from fedloom.server.planning.spec import RunSpec


class MeasuredRound(Protocol):
    """A committed round that was not undone."""

    @property
    def number(self) -> int: ...  # noqa: D102 - columns of the ledger
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def evaluation(self) -> Mapping[str, Any] | None: ...  # noqa: D102


def first_best(spec: RunSpec) -> BestModel | None:
    """The best model before the first round; None in a run that has no best model."""
    return None if spec.best_settings() is None else BestModel()


def best_after(
    spec: RunSpec,
    before: BestModel | None,
    number: int,
    kind: RoundKind,
    evaluation: Mapping[str, Any],
) -> BestModel | None:
    """The best model after a committed round; None stays None.

    Args:
        spec: of the run.
        before: the best model before the round.
        number: of the round.
        kind: of the round.
        evaluation: summary of the clients' metrics; see `fedloom.strategies.summarize`.
    """
    settings = spec.best_settings()
    if before is None or settings is None:
        return None
    return _after(spec, settings, before, number, kind=kind, evaluation=evaluation)


def _after(
    spec: RunSpec,
    settings: BestSettings,
    before: BestModel,
    number: int,
    *,
    kind: RoundKind,
    evaluation: Mapping[str, Any],
) -> BestModel:
    trains = kind is RoundKind.TRAIN
    return judged(
        settings,
        before,
        number,
        evaluates=not trains or spec.evaluate is True,
        trains=trains,
        values=evaluation.get("values", {}),
    )


def look_back(spec: RunSpec, rounds: Iterable[MeasuredRound]) -> BestModel | None:
    """The best model after all rounds of a run that count, in order."""
    settings = spec.best_settings()
    if settings is None:
        return None
    best = BestModel()
    for each in rounds:
        kind, evaluation = RoundKind(each.kind), each.evaluation or {}
        best = _after(spec, settings, best, each.number, kind=kind, evaluation=evaluation)
    return best


def mark(spec: RunSpec, best: BestModel | None) -> dict[str, Any] | None:
    """The ledger's note of the best model; None before the first evaluation."""
    settings = spec.best_settings()
    if settings is None or best is None or (best.round is None and not best.stale):
        return None
    return {
        "metric": settings.metric,
        "mode": settings.mode,
        "round": best.round,
        "value": best.value,
        "measured_in": best.measured_in,
        "stale": best.stale,
        "patience": settings.patience,
    }
