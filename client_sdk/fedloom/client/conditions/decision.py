"""Whether a device may train: a pure function of what it is asked for and what was read.

Invariant: without conditions there is no objection; what was not read is never taken for a value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fedloom.client.conditions.settings import Conditions
from fedloom.client.conditions.windows import TimeWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What the probes read of a device; None for what none of them could.

    Attributes:
        now: local time.
        mains: whether it runs on mains power.
        charge: of its battery, percent.
        idle_cpu: share of the processors that nobody else uses, percent.
        load: of the last minute, for each processor.
        temperature: of the hottest sensor, °C.
        metered: whether the network costs.
        own: one's own probe → True, or a sentence why not.
        why: what could not be read → why.
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
    """The first condition that does not hold, as a sentence; None where all do.

    Args:
        conditions: of this device.
        found: what was read.
        training: whether it trains already; the load is then its own.
    """
    for name, holds, sentence in _judged(conditions, found, training=training):
        if holds is False:
            return sentence
        if holds is None and conditions.unknown == "decline":
            why = found.why.get(name, "nothing tells")
            return (
                f"Expected to read {name}, as conditions ask for it, got: {why}. "
                'Mend that, or set conditions.unknown = "allow".'
            )
    return None


def _judged(
    want: Conditions, found: Readings, *, training: bool
) -> Iterator[tuple[str, bool | None, str]]:
    """Every condition that is set: its name, whether it holds, and what to say if it does not."""
    if want.windows:
        inside = any(TimeWindow.parse(text).holds(found.now) for text in want.windows)
        windows = ", ".join(want.windows)
        yield "the time", inside, f"Expected a time within {windows}, got {found.now:%a %H:%M}."
    if want.battery_above is not None:
        yield _power(want.battery_above, found)
    if want.needs_free_network:
        said = "Expected a network that does not cost, got a metered one."
        yield "the network", _not(found.metered), said
    if want.temperature_below is not None:
        hot, most = found.temperature, want.temperature_below
        holds = None if hot is None else hot < most
        yield "the temperature", holds, f"Expected less than {most:g} °C, got {hot} °C."
    if want.load_below is not None and not training:
        load = found.load
        holds = None if load is None else load < want.load_below
        yield "the load", holds, f"Expected a load below {want.load_below:g}, got {load}."
    if want.idle_cpu_above is not None:
        idle, least = found.idle_cpu, want.idle_cpu_above
        holds = None if idle is None else idle >= least
        yield "the idle CPU", holds, f"Expected {least:g} % of idle CPU, got {idle} %."
    for name in want.probes:
        answer = found.own.get(name)
        sentence = answer if isinstance(answer, str) else f"Expected {name} to allow it, got no."
        yield name, None if answer is None else answer is True, sentence


def _power(least: float, found: Readings) -> tuple[str, bool | None, str]:
    if found.mains is None or found.mains:
        return "the power supply", found.mains, ""
    charge = found.charge
    holds = False if least >= 100 else None if charge is None else charge > least
    wanted = "mains power" if least >= 100 else f"mains power or a charge above {least:g} %"
    return "the battery", holds, f"Expected {wanted}, got a battery at {_percent(charge)}."


def _percent(charge: float | None) -> str:
    return "an unknown charge" if charge is None else f"{charge:g} %"


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
