"""The goals of [stop]: values of metrics on the test examples that end a simulation."""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, Literal, TypeAlias

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import typed
from fedloom.server.engine import mode_of
from fedloom.strategies.setting_checks import hint, nearest

Goal: TypeAlias = float | Mapping[str, float]
"""A value to reach, in the direction that the metric's name tells (`mode_of`); or
`{"at_most": value}` or `{"at_least": value}`."""
_MEASURED = ("accuracy", "loss")
_BOUNDS: Mapping[str, Literal["min", "max"]] = {"at_most": "min", "at_least": "max"}


def check_stop(stop: Mapping[str, Goal]) -> None:
    """Refuse goals that are no finite numbers, or whose direction is unknown.

    Raises:
        UsageError: names the goal.
    """
    for name, goal in stop.items():
        _, value = _read(name, goal)
        if name == "accuracy" and not 0 < value <= 1:
            raise UsageError(f"Expected 0 < stop.accuracy <= 1, such as 0.97, got {value:g}.")


def check_measured(stop: Mapping[str, Goal], metrics: Collection[str], *, evaluates: bool) -> None:
    """Refuse a goal for a metric that no test measures, before the first round.

    Args:
        stop: the goals.
        metrics: names of the experiment's own ones, which may measure several as `name/key`.
        evaluates: whether a function gives further ones, whose names are not known.

    Raises:
        UsageError: names the goal.
    """
    known = (*_MEASURED, *metrics)
    for name in stop if not evaluates else ():
        if name not in known and name.partition("/")[0] not in metrics:
            raise UsageError(
                f"[stop] needs a metric of the test, got {name!r}, which is not measured. "
                f"{hint(name, known)} Further ones are set as test.metrics."
            )


def in_words(stop: Mapping[str, Goal]) -> str:
    """The goals as text; empty without any.

    >>> in_words({"accuracy": 0.97, "perplexity": {"at_most": 20}})
    'accuracy >= 0.97 or perplexity <= 20'
    """
    goals = ((name, *_read(name, goal)) for name, goal in stop.items())
    return " or ".join(f"{n} {'<=' if mode == 'min' else '>='} {v:g}" for n, mode, v in goals)


def reaches(stop: Mapping[str, Goal], test: Mapping[str, float]) -> bool:
    """Whether metrics on the test examples reach one of the goals; NaN reaches none.

    Raises:
        UsageError: the test does not measure the metric of a goal.
    """
    unknown = sorted(stop.keys() - test.keys())
    if test and unknown:
        raise UsageError(
            f"[stop] needs a metric of the test ({', '.join(test)}), got {unknown[0]}."
        )
    return bool(test) and any(_reached(test[name], *_read(name, stop[name])) for name in stop)


def _reached(value: float, mode: Literal["min", "max"], goal: float) -> bool:
    return value <= goal if mode == "min" else value >= goal


def _read(name: str, goal: Any) -> tuple[Literal["min", "max"], float]:
    if isinstance(goal, Mapping):
        bound = next(iter(goal), "")
        if len(goal) != 1 or bound not in _BOUNDS:
            raise UsageError(
                f"Expected stop.{name} as a number, or a table of at_most or at_least, got "
                f"{dict(goal)!r}. Write {name} = {{ at_most = 20 }}, for example."
            )
        return _BOUNDS[bound], _finite(f"stop.{name}.{bound}", goal[bound])
    value, mode = _finite(f"stop.{name}", goal), mode_of(name)
    if mode is None:
        near = nearest(name, _MEASURED)
        meant = f"Did you mean {near!r}? " if near else ""
        raise UsageError(
            f"Whether less or more of {name!r} is better is unknown. {meant}Write {name} = "
            f"{{ at_least = {value:g} }} or {name} = {{ at_most = {value:g} }} in [stop]."
        )
    return mode, value


def _finite(name: str, value: Any) -> float:
    found: float = typed(name, value, float)
    if not isfinite(found):
        raise UsageError(f"Expected {name} as a finite number, got {found}.")
    return found
