"""The settings of `[conditions]`."""

from dataclasses import dataclass
from typing import Literal

from fedloom.client.conditions.windows import Window
from fedloom.client.settings import setting
from fedloom.protocol.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When this device may train; all that are set must hold."""

    battery_above: float | None = setting(
        None,
        doc="without mains power, train only above this charge, in percent; 100: on mains alone",
        least=0,
        most=100,
        example=60.0,
    )
    idle_cpu_above: float | None = setting(
        None,
        doc="train only where at least so much of the processors does nothing else, in percent",
        least=0,
        most=100,
        example=70.0,
    )
    load_below: float | None = setting(
        None,
        doc="begin to train only below this load (of one minute) for each processor",
        least=0,
        example=0.5,
    )
    temperature_below: float | None = setting(
        None, doc="train only while no sensor is hotter, in °C", least=-50, most=200, example=70.0
    )
    unmetered: bool = setting(
        False, doc="train only where the network does not cost, as NetworkManager says"
    )
    unmetered_interfaces: tuple[str, ...] = setting(
        (),
        doc="the same, but by these patterns of network interfaces that do not cost",
        example=("eth*", "wl*"),
    )
    windows: tuple[str, ...] = setting(
        (),
        doc="train only at these local times, each of days, hours or both; a night belongs to the "
        "day on which it begins",
        example=("mon-fri 22:00-06:00", "sat sun"),
    )
    probes: tuple[str, ...] = setting(
        (),
        doc="functions of your own, module:function, that return True to allow, a sentence (or "
        "False) to decline, None for unknown",
        example=("my_probes:docked",),
    )
    unknown: Literal["decline", "allow"] = setting(
        "decline", doc="what to do where something that is asked for cannot be read"
    )
    when_lost: Literal["stop", "finish"] = setting(
        "stop", doc="what to do with a training under way when a condition ends"
    )
    check_s: float = setting(
        30.0, doc="between two looks at the conditions while training, seconds", least=0.01
    )
    again_s: float = setting(
        300.0, doc="after declining, ask the server for so long a rest, seconds", least=0
    )

    def __post_init__(self) -> None:
        """Check what has a form of its own."""
        for text in self.windows:
            Window.parse(text)
        for name in self.probes:
            module, colon, function = name.partition(":")
            if not module or not colon or not function.isidentifier():
                raise UsageError(f"Expected conditions.probes as module:function, got {name!r}.")

    @property
    def needs_free_network(self) -> bool:
        """Whether the network must not cost."""
        return self.unmetered or bool(self.unmetered_interfaces)

    @property
    def are_any(self) -> bool:
        """Whether anything must hold at all."""
        numbers = (
            self.battery_above,
            self.idle_cpu_above,
            self.load_below,
            self.temperature_below,
        )
        asked = any(number is not None for number in numbers)
        return asked or self.needs_free_network or bool(self.windows or self.probes)
