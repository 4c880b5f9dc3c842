"""Schedules of the server learning rate: warm-up, then one of four schedules.

Legend: t rounds finished, w warm-up rounds, s = t - w rounds since, T `rounds`.

    warm-up       (t + 1) / (w + 1)                    while t < w
    constant      1
    step          factor^⌊s / T⌋
    cosine        floor + (1 - floor) · (1 + cos(π · min(s / T, 1))) / 2
    inverse_sqrt  √(m / (m + s)),  m = max(w, 1)

References:
    Goyal et al. 2017, Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour,
    https://arxiv.org/abs/1706.02677, section 2.2 (gradual warm-up) and 5.1 (steps).
    Loshchilov and Hutter 2017, SGDR: Stochastic Gradient Descent with Warm Restarts,
    https://arxiv.org/abs/1608.03983, equation 5 (one cosine; no restarts).
    Vaswani et al. 2017, Attention Is All You Need, https://arxiv.org/abs/1706.03762, section 5.3.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from fedloom.strategies.checks import check_count, check_number, check_share
from fedloom.strategies.setting_checks import check_settings, hint

Shape: TypeAlias = Literal["constant", "step", "cosine", "inverse_sqrt"]

_TAKES: Final[dict[str, tuple[str, ...]]] = {
    "constant": (),
    "step": ("rounds", "factor"),
    "cosine": ("rounds", "floor"),
    "inverse_sqrt": (),
}
_FACTOR = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A factor on the server learning rate for each round.

    Attributes:
        name: of the shape after the warm-up.
        warmup_rounds: rounds before the full rate is reached, climbing in equal steps.
        rounds: `step`: between two steps; `cosine`: until the floor is reached.
        factor: `step`: of each step, in (0, 1]; default 0.1.
        floor: `cosine`: final share of the rate, 0 to 1; default 0.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range, missing, or not one of this schedule.
    """

    name: Shape = "constant"
    warmup_rounds: int = 0
    rounds: int | None = None
    factor: float | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.name not in _TAKES:
            raise ValueError(f"Expected a schedule, got {self.name!r}. {hint(self.name, _TAKES)}")
        check_count("schedule.warmup_rounds", self.warmup_rounds, at_least=0)
        for setting in ("rounds", "factor", "floor"):
            value, taken = getattr(self, setting), setting in _TAKES[self.name]
            if value is not None and not taken:
                raise ValueError(f"Expected no schedule.{setting} with {self.name}, got {value!r}.")
            if value is None and taken and setting == "rounds":
                raise ValueError(f"Expected schedule.rounds with {self.name}, got none.")
        if self.rounds is not None:
            check_count("schedule.rounds", self.rounds)
        if self.factor is not None:
            check_number("schedule.factor", self.factor, above=0)
            check_share("schedule.factor", self.factor)
        if self.floor is not None:
            check_share("schedule.floor", self.floor)

    def __repr__(self) -> str:
        """Settings other than the defaults, from which `schedule_of` rebuilds it."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        given = [f"{n}={v!r}" for n, v in parts.items() if v != getattr(_DEFAULT, n)]
        return f"Schedule({', '.join(given)})"

    def at(self, finished: int) -> float:
        """The factor after `finished` rounds, from 0 to 1.

        >>> [Schedule(name="step", rounds=2, factor=0.5).at(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]

        Args:
            finished: training rounds before it, t >= 0.
        """
        if finished < self.warmup_rounds:
            return (finished + 1) / (self.warmup_rounds + 1)
        since = finished - self.warmup_rounds
        match self.name:
            case "step":
                assert self.rounds is not None
                factor = _FACTOR if self.factor is None else self.factor
                return float(factor ** (since // self.rounds))
            case "cosine":
                assert self.rounds is not None
                low = self.floor or 0.0
                half = (1 + math.cos(math.pi * min(since / self.rounds, 1.0))) / 2
                return low + (1 - low) * half
            case "inverse_sqrt":
                climbed = max(self.warmup_rounds, 1)
                return math.sqrt(climbed / (climbed + since))
            case _:
                return 1.0


_DEFAULT: Final = Schedule()


def schedule_of(settings: Any) -> Schedule:
    """Build a schedule from settings.

    >>> schedule_of({"name": "cosine", "rounds": 100})
    Schedule(name='cosine', rounds=100)

    Raises:
        TypeError: the settings are no table, or one has the wrong type.
        ValueError: a setting is unknown, missing or out of range.
    """
    if isinstance(settings, Schedule):
        return settings
    if not isinstance(settings, dict):
        write = f' Write schedule = {{ name = "{settings}" }}.' if isinstance(settings, str) else ""
        raise TypeError(f"Expected strategy.schedule as a table, got {settings!r}.{write}")
    check_settings(Schedule, settings, table="strategy.schedule")
    return Schedule(**settings)
