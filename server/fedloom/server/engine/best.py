"""The best model of a run by a metric of its evaluations, and the end of a run that stalls.

An evaluation belongs to the model that it measured: the one from which its round started. It
improves if its metric is finite and better than the best so far by more than `min_delta`. Ties
keep the earlier model; a metric that is missing or not finite is no improvement.

Sources: Prechelt 1998, "Early Stopping - But When?"; the semantics of `min_delta` and `patience`
are those of Keras' `EarlyStopping`.

Invariant: the best of a run follows from its committed rounds in order, without undone ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from fedloom.protocol.errors import UsageError

Mode = Literal["min", "max"]
_FALLING = ("loss", "error", "perplexity", "mse", "mae", "rmse", "nll")
_RISING = ("accuracy", "precision", "recall", "f1", "auc", "auroc")


def mode_of(metric: str) -> Mode | None:
    """Whether less or more of a metric is better, by the end of its name; None if unknown.

    >>> mode_of("test.perplexity"), mode_of("macro_f1"), mode_of("accuracy/gap")
    ('min', 'max', None)
    """
    name = metric.lower()
    if name.endswith(_FALLING):
        return "min"
    return "max" if name.endswith(_RISING) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSettings:
    """The [best] table of a run.

    Attributes:
        metric: of the clients' evaluations; its mean over clients counts.
        mode: whether less or more is better; None for that of `mode_of`.
        min_delta: an improvement is larger than this; at least 0.
        patience: evaluations in a row without an improvement after which the run ends; 0 for
            never.

    Raises:
        UsageError: a value is out of its range.
    """

    metric: str = "loss"
    mode: Mode | None = None
    min_delta: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        if not self.metric:
            raise UsageError("Expected best.metric as the name of a metric, got an empty text.")
        if self.mode is None:
            mode = mode_of(self.metric)
            if mode is None:
                raise UsageError(
                    f'Expected best.mode with best.metric = "{self.metric}", got none: set "min" '
                    'if less is better, or "max" if more is.'
                )
            object.__setattr__(self, "mode", mode)
        if not 0 <= self.min_delta < math.inf:
            raise UsageError(f"Expected best.min_delta >= 0 and finite, got {self.min_delta:g}.")
        if self.patience < 0:
            raise UsageError(f"Expected best.patience >= 0 evaluations, got {self.patience}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestModel:
    """The best model of a run so far.

    Attributes:
        newest: round of the run's newest model, which the next round starts from; 0: the initial.
        round: of the best model; None before the first finite metric.
        value: its metric.
        measured_in: the round whose clients evaluated it.
        stale: evaluations since then, none of which was an improvement.
    """

    newest: int = 0
    round: int | None = None
    value: float | None = None
    measured_in: int | None = None
    stale: int = 0


def judged(
    settings: BestSettings,
    before: BestModel,
    number: int,
    *,
    evaluates: bool,
    trains: bool,
    values: Mapping[str, Any],
) -> BestModel:
    """Return the best model after a committed round.

    Args:
        settings: of the run.
        before: the best model before the round.
        number: of the round.
        evaluates: whether its clients evaluated the model from which it started.
        trains: whether it made a new model.
        values: what they measured, by metric.
    """
    after = before
    if evaluates:
        value = values.get(settings.metric)
        if _improves(settings, before.value, value):
            after = replace(before, round=before.newest, value=value, measured_in=number, stale=0)
        else:
            after = replace(before, stale=before.stale + 1)
    return replace(after, newest=number) if trains else after


def stalled(settings: BestSettings, best: BestModel) -> str:
    """Why a run ends for its metric; empty if it continues."""
    if not settings.patience or best.stale < settings.patience:
        return ""
    evaluations = "1 evaluation" if best.stale == 1 else f"{best.stale} evaluations"
    if best.round is None:
        return f"{settings.metric} was missing or not finite in {evaluations}"
    by = f" by more than {settings.min_delta:g}" if settings.min_delta else ""
    return (
        f"{settings.metric} has not improved{by} on {best.value:.4g} (round {best.round}) in "
        f"{evaluations}"
    )


def _improves(settings: BestSettings, best: float | None, value: Any) -> bool:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if best is None:
        return True
    gain = Fraction(value) - Fraction(best)  # float differences would round, and may overflow
    return (gain if settings.mode == "max" else -gain) > Fraction(settings.min_delta)
