"""The conditions as a gate: read what is asked for, decide, and say why not."""

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
"""How long a probe of one's own may take."""


class ConditionGate:
    """Objects to an offer while a condition of the device does not hold.

    Args:
        conditions: of this device.
        root: of /proc and /sys; the device's own by default.
        clock: local time.

    Raises:
        UsageError: a probe that is named is not there.

    Attributes:
        again_s: the rest that the server is asked for.
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
        """Why not to begin now."""
        return self.lost(training=False)

    def lost(self, *, training: bool = True) -> str | None:
        """Why not to go on now."""
        return objection(self._conditions, self.read(), training=training)

    def read(self) -> Readings:
        """Read what the conditions ask for, and nothing else."""
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
            why={"the battery": "its capacity says no percent"} | why,
        )


def _find(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"Expected a probe {name!r}, got none: {error}.") from None
    if not callable(found):
        raise UsageError(f"Expected a function {name!r}, got a {type(found).__name__}.")
    probe: Callable[[], Any] = found
    return probe


class _Probe:
    """A probe of one's own; where it raises or hangs, it knows nothing."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._asking: threading.Thread | None = None
        self._answer: Any = None

    def ask(self) -> bool | str | None:
        """What it says.

        Raises:
            Unreadable: it raised, or does not answer; it is not called again before it does.
        """
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
        except Exception as error:  # noqa: BLE001 - somebody's code
            self._answer = linux.Unreadable(f"{type(error).__name__}: {error}")
