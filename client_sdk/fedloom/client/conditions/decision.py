"""The decision whether a device may train: a pure function of its conditions and readings.

Invariants: without conditions there is no objection; a reading that failed has no default value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fedloom.client.conditions.settings import Conditions
from fedloom.client.conditions.windows import TimeWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of a device; None if a reading failed or was not needed.

    Attributes:
        now: local time.
        mains: whether it runs on mains power.
        charge: of its battery, percent.
        idle_cpu: share of the processors that other processes leave idle, percent.
        load: one-minute load average per processor.
        temperature: of the hottest sensor, °C.
        metered: whether the network is metered.
        own: custom probe → True, or the reason to decline.
        why: failed reading → reason.
    """

    now: datetime
    mains: bool | None = None
    charge: float | None = None
    idle_cpu: float | None = None
    load: float | None = None
    temperature: float | None = None
    metered: bool | None = None
    own: Mapping[str, bool | str | None] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


def objection(conditions: Conditions, found: Readings, *, training: bool = False) -> str | None:
    """The first condition that does not hold, as a sentence; None if all hold.

    Args:
        conditions: of this device.
        found: the readings.
        training: whether a training runs; the load is then not checked, as it is the training's.
    """
    for name, holds, sentence in _judged(conditions, found, training=training):
        if holds is False:
            return sentence
        if holds is None and conditions.unknown == "decline":
            why = found.why.get(name, "no reading")
            return (
                f"Cannot read {name}, which a condition needs: {why}. "
                'Correct that, or set conditions.unknown = "allow".'
            )
    return None


def _judged(
    want: Conditions, found: Readings, *, training: bool
) -> Iterator[tuple[str, bool | None, str]]:
    """Each condition that is set: its name, whether it holds, and the message if it does not."""
    if want.windows:
        inside = any(TimeWindow.parse(text).holds(found.now) for text in want.windows)
        windows = ", ".join(want.windows)
        yield "the time", inside, f"It is {found.now:%a %H:%M}; training is allowed in {windows}."
    if want.battery_above is not None:
        yield _power(want.battery_above, found)
    if want.needs_free_network:
        holds = None if found.metered is None else not found.metered
        yield "the network", holds, "The network is metered."
    if want.temperature_below is not None:
        hot, most = found.temperature, want.temperature_below
        holds = None if hot is None else hot < most
        yield "the temperature", holds, f"The temperature is {hot} °C; the limit is {most:g} °C."
    if want.load_below is not None and not training:
        load = found.load
        holds = None if load is None else load < want.load_below
        yield "the load", holds, f"The load is {load}; the limit is {want.load_below:g}."
    if want.idle_cpu_above is not None:
        idle, least = found.idle_cpu, want.idle_cpu_above
        holds = None if idle is None else idle >= least
        yield "the idle CPU", holds, f"{idle} % of the CPU is idle; the minimum is {least:g} %."
    for name in want.probes:
        answer = found.own.get(name)
        sentence = answer if isinstance(answer, str) else f"The probe {name} declined."
        yield name, None if answer is None else answer is True, sentence


def _power(least: float, found: Readings) -> tuple[str, bool | None, str]:
    if found.mains is None or found.mains:
        return "the power supply", found.mains, ""
    charge = found.charge
    holds = False if least >= 100 else None if charge is None else charge > least
    wanted = "mains power" if least >= 100 else f"mains power or a charge above {least:g} %"
    at = "" if charge is None else f" at {charge:g} %"
    return "the battery", holds, f"The device runs on battery{at}; it needs {wanted}."
