"""Axes: range, ticks and labels.

Pure; PNG plots and the report's charts share it. A range of more than two orders of magnitude, such
as the loss of a diverging model, has a logarithmic axis.

Source for ticks at 1, 2, 5 times powers of ten: Heckbert (1990), "Nice numbers for graph labels",
Graphics Gems.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.simulation.output import words

_LOG_RATIO = 100.0
_TINY = 1e-200
_BYTE_UNITS = (
    (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "bytes"),
)  # fmt: skip
_TIME_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """One axis.

    Attributes:
        low: value at its beginning.
        high: value at its end, above `low`.
        ticks: ascending, within the range.
        share: whether labels are percents.
        log: whether it is logarithmic.
        empty: whether no value was finite.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    share: bool = False
    log: bool = False
    empty: bool = False

    @classmethod
    def of(cls, values: Sequence[float], metric: str, *, log: bool = False) -> "AxisScale":
        """Fit an axis to a metric's values.

        Args:
            values: values that are not finite are ignored; below 1e-200 they count as 0.
            metric: its name; see `words.is_share`.
            log: whether it is logarithmic, as far as its values are positive, for any range.
        """
        rounded_off = (0.0 if abs(value) < _TINY else value for value in values)
        finite = [value for value in rounded_off if math.isfinite(value)]
        share = words.is_share(metric) and all(0 <= value <= 1 for value in finite)
        if not finite:
            return cls(low=0.0, high=1.0, ticks=(0.0, 0.5, 1.0), share=share, empty=True)
        low, high = min(finite), max(finite)
        if low > _TINY and (log or high / low > _LOG_RATIO) and not share:
            return cls._logarithmic(low, high)
        return cls._linear(low, high, share=share)

    @classmethod
    def _linear(cls, low: float, high: float, *, share: bool) -> "AxisScale":
        if high - low <= max(abs(high), abs(low), 1e-290) * 1e-9:
            spread = 0.05 if share else (abs(high) or 1.0) * 0.1
            low, high = low - spread, high + spread
        if low >= 0 and (low < 0.5 * high or (share and low < 0.6)):
            low = 0.0
        if share:
            low, high = max(low, 0.0), min(high, 1.0)
        step = nice_step((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(rounded(n * step) for n in range(first, last + 1))
        return cls(low=ticks[0], high=ticks[-1], ticks=ticks, share=share)

    @classmethod
    def _logarithmic(cls, low: float, high: float) -> "AxisScale":
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = math.ceil((last - first) / 6)
        powers = range(first, first + step * math.ceil((last - first) / step) + 1, step)
        ticks = tuple(10.0**power for power in powers)
        return cls(low=ticks[0], high=ticks[-1], ticks=ticks, log=True)

    @property
    def decimals(self) -> int:
        """Decimals of percents that show the ticks exactly."""
        percents = [100 * tick for tick in self.ticks]
        exact = (d for d in range(8) if all(abs(p - round(p, d)) < 1e-9 for p in percents))
        return next(exact, 8)

    def label(self, tick: float) -> str:
        """The label of a tick."""
        return f"{100 * tick:.{self.decimals}f}%" if self.share else words.number(tick)

    def place(self, value: float) -> float:
        """The position of a value: 0 at the beginning and 1 at the end of the axis."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def nice_step(rough: float) -> float:
    """The least of 1, 2, 2.5 or 5 times a power of ten that is not below `rough`.

    >>> nice_step(0.03), nice_step(0.2), nice_step(7)
    (0.05, 0.2, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(rounded(n * power) for n in (1, 2, 2.5, 5, 10) if n * power >= rough * (1 - 1e-9))


def whole_ticks(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    """Ticks at whole numbers, for rounds; the first round if there is room for it.

    >>> whole_ticks(1, 50)
    (1.0, 10.0, 20.0, 30.0, 40.0, 50.0)
    >>> whole_ticks(1, 3)
    (1.0, 2.0, 3.0)
    """
    step = math.ceil(nice_step(max(high - low, 1) / most))
    ticks = [float(n * step) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    if not ticks or ticks[0] - low > 0.5 * step:
        ticks.insert(0, float(math.ceil(low)))
    return tuple(ticks)


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit for times up to this one: its seconds and its name.

    >>> time_unit(90), time_unit(1000)
    ((1.0, 'seconds'), (60.0, 'minutes'))
    """
    return next(
        ((size, name) for size, name in _TIME_UNITS if longest_s >= 2 * size), _TIME_UNITS[-1]
    )


def time_ticks(high_s: float) -> tuple[float, ...]:
    """Ticks at round numbers of the unit, in seconds, from 0."""
    return _unit_ticks(high_s, time_unit(high_s)[0])


def byte_unit(most: float) -> tuple[float, str]:
    """The binary unit for sizes up to this one: its bytes and its name.

    >>> byte_unit(900), byte_unit(3 * 2**20)
    ((1.0, 'bytes'), (1048576.0, 'MiB'))
    """
    return next(((size, name) for size, name in _BYTE_UNITS if most >= 2 * size), _BYTE_UNITS[-1])


def byte_ticks(most: float) -> tuple[float, ...]:
    """Ticks at round numbers of the unit, in bytes, from 0."""
    return _unit_ticks(most, byte_unit(most)[0])


def _unit_ticks(high: float, unit: float) -> tuple[float, ...]:
    step = nice_step(max(high / unit, 1e-9) / 6)
    return tuple(n * step * unit for n in range(math.floor(high / unit / step + 1e-9) + 1))


def rounded(value: float) -> float:
    """A number without rounding errors of its calculation: 0.1, not 0.10000000000000002."""
    return float(f"{value:.12g}")
