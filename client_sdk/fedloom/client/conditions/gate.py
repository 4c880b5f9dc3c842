"""The condition gate: reads what the conditions need, and declines offers if one does not hold."""

import importlib
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fedloom.client.conditions import linux
from fedloom.client.conditions.decision import Readings, objection
from fedloom.client.conditions.settings import Conditions
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2

PROBE_S = 10.0
"""Longest time of a custom probe."""


class ConditionGate:
    """Declines offers while a condition of the device does not hold.

    Args:
        conditions: of this device.
        root: folder of /proc and /sys; the device's by default.
        clock: local time.

    Raises:
        UsageError: a custom probe does not exist.

    Attributes:
        again_s: the pause that the server is asked for, seconds.
    """

    def __init__(
        self,
        conditions: Conditions,
        root: Path | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._conditions = conditions
        self.again_s = conditions.again_s
        self._root = root or linux.ROOT
        self._clock = clock
        self._own = {name: _Probe(_find(name)) for name in conditions.probes}

    def objection(self, offer: fleet_pb2.Task) -> str | None:  # noqa: ARG002 - of the device alone
        """The reason not to start a training now; None to accept."""
        return self.lost(training=False)

    def lost(self, *, training: bool = True) -> str | None:
        """The reason not to continue now, or not to start; None if all conditions hold."""
        return objection(self._conditions, self.read(), training=training)

    def read(self) -> Readings:
        """Read only what the conditions need."""
        want, root, why = self._conditions, self._root, dict[str, str]()

        def tried(name: str, wanted: bool, probe: Callable[[], Any]) -> Any:
            if not wanted:
                return None
            try:
                return probe()
            except linux.Unreadable as error:
                why[name] = str(error)
                return None

        mains, charge = tried(
            "the power supply", want.battery_above is not None, lambda: linux.power(root)
        ) or (None, None)
        free = want.unmetered_interfaces
        return Readings(
            now=self._clock(),
            mains=mains,
            charge=charge,
            idle_cpu=tried(
                "the idle CPU", want.idle_cpu_above is not None, lambda: linux.idle_cpu(root)
            ),
            load=tried("the load", want.load_below is not None, lambda: linux.load(root)),
            temperature=tried(
                "the temperature",
                want.temperature_below is not None,
                lambda: linux.temperature(root),
            ),
            metered=tried(
                "the network", want.needs_free_network, lambda: linux.metered(free, root)
            ),
            own={
                name: tried(name, wanted=True, probe=probe.ask) for name, probe in self._own.items()
            },
            why={"the battery": "its capacity is not a percentage"} | why,
        )


def _find(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"The probe {name!r} does not exist: {error}.") from None
    if not callable(found):
        raise UsageError(f"Expected a function {name!r}, got a {type(found).__name__}.")
    probe: Callable[[], Any] = found
    return probe


class _Probe:
    """A custom probe; if it raises or hangs, its condition is unknown."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._asking: threading.Thread | None = None
        self._answer: Any = None

    def ask(self) -> bool | str | None:
        """Call the probe, unless it still runs; Unreadable if it raised or takes too long."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._call, name="probe", daemon=True)
            self._asking.start()
        self._asking.join(PROBE_S)
        if self._asking.is_alive():
            raise linux.Unreadable(f"no answer within {PROBE_S:g} s")
        if isinstance(self._answer, linux.Unreadable):
            raise self._answer
        if self._answer is None or (self._answer and isinstance(self._answer, str)):
            return self._answer
        return bool(self._answer)

    def _call(self) -> None:
        try:
            self._answer = self._function()
        except Exception as error:  # noqa: BLE001 - the owner's code
            self._answer = linux.Unreadable(f"{type(error).__name__}: {error}")
