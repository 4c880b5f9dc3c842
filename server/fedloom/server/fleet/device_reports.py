"""The latest readings of each device whose owner lets them leave: load, memory, heat, battery.

They are kept in memory, of at most `MOST` devices, also after a disconnect; a restart forgets them.
Nothing depends on them.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.v1 import fleet_pb2

MOST = 20_000
"""Devices whose readings are kept; about 500 bytes each. Those that reported first are dropped."""

MAX_GPUS = 16
MAX_NAME = 80
"""Characters of a GPU's name."""

_PERCENT = (0.0, 100.0)
_CELSIUS = (-100.0, 300.0)
_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None for what was not read.

    Attributes:
        name: as the device reports it.
        busy: percent of the time in which it computed.
        memory_used_bytes: of its own memory.
        memory_total_bytes: of its own memory.
        temperature: degrees Celsius.
    """

    name: str
    busy: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """Readings of a device; None for what was not read.

    Attributes:
        at: when they came, seconds since the epoch.
        cpu: percent of all processors.
        memory_used_bytes: without what can be freed.
        memory_total_bytes: of the device.
        temperature: of the hottest sensor, degrees Celsius.
        battery: charge in percent.
        mains: whether it runs on mains power.
        gpus: at most `MAX_GPUS`.
    """

    at: float
    cpu: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature: float | None
    battery: float | None
    mains: bool | None
    gpus: tuple[Gpu, ...]


def read(message: fleet_pb2.DeviceReport, at: float) -> DeviceReport:
    """Read a report.

    Raises:
        Refusal: MALFORMED, a value is outside its range, or there are too many.
    """
    if len(message.gpus) > MAX_GPUS:
        raise _wrong(f"at most {MAX_GPUS} GPUs", len(message.gpus))
    used, total = _memory(message)
    return DeviceReport(
        at=at,
        cpu=_within(message, "cpu", _PERCENT),
        memory_used_bytes=used,
        memory_total_bytes=total,
        temperature=_within(message, "temperature", _CELSIUS),
        battery=_within(message, "battery", _PERCENT),
        mains=message.mains if message.HasField("mains") else None,
        gpus=tuple(_gpu(each) for each in message.gpus),
    )


def _gpu(message: fleet_pb2.Gpu) -> Gpu:
    if len(message.name) > MAX_NAME:
        raise _wrong(f"a GPU's name of at most {MAX_NAME} characters", len(message.name))
    used, total = _memory(message)
    return Gpu(
        name=printable(message.name, MAX_NAME),
        busy=_within(message, "busy", _PERCENT),
        memory_used_bytes=used,
        memory_total_bytes=total,
        temperature=_within(message, "temperature", _CELSIUS),
    )


def _within(
    message: fleet_pb2.DeviceReport | fleet_pb2.Gpu, name: str, limits: tuple[float, float]
) -> float | None:
    if not message.HasField(name):
        return None
    value: float = getattr(message, name)
    low, high = limits
    if not (math.isfinite(value) and low <= value <= high):
        raise _wrong(f"{name} from {low:g} to {high:g}", f"{value:g}")
    return value


def _memory(message: fleet_pb2.DeviceReport | fleet_pb2.Gpu) -> tuple[int | None, int | None]:
    if not message.HasField("memory"):
        return None, None
    used, total = message.memory.used_bytes, message.memory.total_bytes
    if not 0 < total <= _MAX_BYTES or used > total:
        raise _wrong("used memory of at most a total of at most 2^60 bytes", f"{used} of {total}")
    return used, total


def _wrong(expected: str, got: object) -> Refusal:
    return Refusal(Code.MALFORMED, f"Expected a device report with {expected}, got {got}.")


class DeviceReports:
    """The latest report of each device."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, DeviceReport] = OrderedDict()

    def put(self, client: str, message: fleet_pb2.DeviceReport) -> None:
        """Keep a client's report instead of its earlier one.

        Raises:
            Refusal: MALFORMED.
        """
        self._latest[client] = read(message, time.time())
        self._latest.move_to_end(client)
        if len(self._latest) > MOST:
            self._latest.popitem(last=False)

    def get(self, client: str) -> DeviceReport | None:
        """A client's latest report, if it sent one."""
        return self._latest.get(client)

    def of(self, clients: Iterable[str], since: float) -> Iterator[DeviceReport]:
        """The latest reports of those clients that sent one since then, in seconds of the epoch."""
        found = (self._latest.get(client) for client in clients)
        return (report for report in found if report is not None and report.at >= since)
