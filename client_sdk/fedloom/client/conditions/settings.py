"""The settings of `[conditions]`."""

from dataclasses import dataclass
from typing import Literal

from fedloom.client.conditions.windows import TimeWindow
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions under which this device trains; all that are set must hold."""

    battery_above: float | None = setting(
        None,
        doc="on battery power, train only above this charge, percent; 100: only on mains power",
        least=0,
        most=100,
        example=60.0,
    )
    idle_cpu_above: float | None = setting(
        None,
        doc="train only if at least this share of the processors is idle, percent",
        least=0,
        most=100,
        example=70.0,
    )
    load_below: float | None = setting(
        None,
        doc="start to train only below this one-minute load average per processor",
        least=0,
        example=0.5,
    )
    temperature_below: float | None = setting(
        None,
        doc="train only while every sensor is below this temperature, °C",
        least=-50,
        most=200,
        example=70.0,
    )
    unmetered: bool = setting(
        False, doc="train only on an unmetered network, according to NetworkManager"
    )
    unmetered_interfaces: tuple[str, ...] = setting(
        (),
        doc="train only on these network interfaces: patterns (globs) of unmetered ones",
        example=("eth*", "wl*"),
    )
    windows: tuple[str, ...] = setting(
        (),
        doc="train only at these local times, each of days, hours or both; hours past midnight "
        "belong to the day on which they begin",
        example=("mon-fri 22:00-06:00", "sat sun"),
    )
    probes: tuple[str, ...] = setting(
        (),
        doc="your own functions, module:function, that return True to allow, a reason (or False) "
        "to decline, None for unknown",
        example=("my_probes:docked",),
    )
    unknown: Literal["decline", "allow"] = setting(
        "decline", doc="what to do if a condition cannot be measured"
    )
    when_lost: Literal["stop", "finish"] = setting(
        "stop", doc="what to do with a running training when a condition no longer holds"
    )
    check_s: float = setting(
        30.0, doc="time between checks of the conditions while training, seconds", least=0.01
    )
    again_s: float = setting(
        300.0, doc="time without offers to ask the server for after declining, seconds", least=0
    )

    def __post_init__(self) -> None:
        for text in self.windows:
            TimeWindow.parse(text)
        for name in self.probes:
            module, colon, function = name.partition(":")
            if not module or not colon or not function.isidentifier():
                raise UsageError(f"Expected conditions.probes as module:function, got {name!r}.")

    @property
    def needs_free_network(self) -> bool:
        """Whether an unmetered network is needed."""
        return self.unmetered or bool(self.unmetered_interfaces)

    @property
    def are_any(self) -> bool:
        """Whether any condition is set."""
        numbers = (self.battery_above, self.idle_cpu_above, self.load_below, self.temperature_below)
        asked = any(number is not None for number in numbers)
        return asked or self.needs_free_network or bool(self.windows or self.probes)
