"""Device models: speed, bandwidth, availability and failures of each client's device.

One table for the whole population, one row per client, drawn once from distributions or read from
traces. Jitter, drop-out and failure are drawn for each round by a counter-based generator, so that
they do not depend on the order of clients.

Invariant: speeds have no default. A missing timing is an error, never zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import check_names, subtable
from fedloom.strategies import RoundSettings

from .availability import Availability, from_windows, periodic
from .device_random import Floats, Normals, Source, Uniforms, draw, number
from .traces import TRAINING_FACTOR, read_behaviour, read_capacity
from .work_times import Of, WorkTimes

_BYTES_PER_MBIT = 1e6 / 8
_KEYS = {
    "availability",
    "compute_examples_per_s",
    "compute_s_per_example",
    "download_mbit_s",
    "drop_out",
    "failure",
    "jitter",
    "trace",
    "upload_mbit_s",
}
_TRACE_KEYS = {"behaviour", "capacity", "shuffle", "training_factor"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """The work of a round on each client's device; see `fedloom.server.planning.costs`.

    Attributes:
        trained: examples to train on, with repetitions; those of a narrow model count its share of
            the model's values; shape (clients,).
        evaluated: examples to evaluate; each costs a third of a trained example.
        download_bytes: of the files that a client lacks: one number, or shape (clients,).
        upload_bytes: of the update: one number, shape (clients,), or a function of the client's
            index.
    """

    trained: NDArray[np.int64] | Floats
    evaluated: NDArray[np.int64] | None = None
    download_bytes: int | NDArray[np.int64]
    upload_bytes: float | Floats | Callable[[int], int]

    @property
    def examples(self) -> Floats:
        """Cost in trained examples, shape (clients,)."""
        return np.asarray(self.examples_of(slice(None)))

    def examples_of(self, places: Any) -> Any:
        """Cost in trained examples of the clients with these indices, or of one."""
        trained = self.trained[places].astype(np.float64)
        if self.evaluated is None:
            return trained
        return trained + self.evaluated[places] / TRAINING_FACTOR


def steps_in_time(
    sizes: NDArray[np.int64], settings: RoundSettings, example_s: Floats
) -> NDArray[np.int64]:
    """Number of steps of each client within the time budget, without jitter; at least one.

    Args:
        sizes: examples of each client, at least 1, shape (clients,).
        settings: with a `time_budget_s`.
        example_s: seconds of each client to train on one example of a step, shape (clients,).
    """
    assert settings.time_budget_s is not None
    batch = np.minimum(settings.batch_size or sizes, sizes)
    epochs = (settings.epochs or 0) * -(-sizes // batch)
    planned = epochs if settings.steps is None else np.full_like(sizes, settings.steps)
    fitting = np.floor(settings.time_budget_s / (batch * example_s))
    return np.asarray(np.clip(fitting, 1, planned), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Devices:
    """The devices of a population; every array has shape (clients,).

    Attributes:
        seed: of random numbers of rounds.
        example_s: seconds to train on one example, > 0.
        download: bytes/s, > 0.
        upload: bytes/s, > 0.
        drop_out: probability that a device declines an offer.
        failure: probability that a device fails during its work, at a uniform time.
        jitter: standard deviation of the logarithm of a factor on the time of the work, drawn for
            each client and round, with median 1; at least 0.
        availability: of devices; None for always.
    """

    seed: int
    example_s: Floats
    download: Floats
    upload: Floats
    drop_out: Floats
    failure: Floats
    jitter: float = 0.0
    availability: Availability | None = None

    def __post_init__(self) -> None:
        for name in ("example_s", "download", "upload"):
            values = getattr(self, name)
            if not values.min(initial=inf) > 0:
                raise UsageError(f"Expected {name} > 0 of every device, got {values.min():g}.")

    def __len__(self) -> int:
        return len(self.example_s)

    @classmethod
    def build(
        cls, table: Mapping[str, Any], num_clients: int, seed: int, folder: Path = Path()
    ) -> "Devices":
        """Devices of a table of settings, see docs/devices.md.

        Args:
            table: `[devices]` of an experiment.
            num_clients: in the population.
            seed: of the experiment.
            folder: that paths of traces are relative to.

        Raises:
            UsageError: a timing is missing or given twice, a setting is unknown or out of range,
                or a trace is invalid.
        """
        check_names(table, _KEYS, "devices")
        settings = _Settings(table, num_clients, seed, folder)
        example_s, download, upload = settings.speeds()
        jitter = number("devices.jitter", table.get("jitter", 0.0))
        if jitter < 0:
            raise UsageError(f"Expected devices.jitter={jitter} >= 0.")
        return cls(
            seed=seed,
            example_s=example_s,
            download=download,
            upload=upload,
            drop_out=settings.probability("drop_out"),
            failure=settings.probability("failure"),
            jitter=jitter,
            availability=settings.availability(),
        )

    def work_times(self, load: Load, round_number: int) -> WorkTimes:
        """Times of each client's work in a round.

        Raises:
            UsageError: the load is of another population.
        """
        if len(load.trained) != len(self):
            raise UsageError(f"Expected a load of {len(self)} clients, got {len(load.trained)}.")
        return WorkTimes(self, load, round_number)

    def normals(self, round_number: int) -> Normals | None:
        """The normal number of each client's jitter in a round; None without jitter."""
        if not self.jitter:
            return None
        return Normals(Source(self.seed, "device jitter", round_number), len(self))

    def declines(self, round_number: int) -> Of | None:
        """Whether clients decline in this round, by their indices; None for no client."""
        if not self.drop_out.any():
            return None
        numbers = Uniforms(Source(self.seed, "device drop-out", round_number), len(self))
        return lambda places: np.asarray(numbers[places] < self.drop_out[places])

    def fails_at(self, round_number: int) -> Of | None:
        """The share of their work after which clients fail, or infinity; None for no client."""
        if not self.failure.any():
            return None
        source = Source(self.seed, "device failure", round_number)
        numbers, shares = Uniforms(source, len(self)), Uniforms(source, len(self), "when")
        return lambda places: np.where(numbers[places] < self.failure[places], shares[places], inf)

    def turns(self, round_number: int) -> Floats:
        """Order of clients that arrive at the same time, ascending, shape (clients,)."""
        return Source(self.seed, "device turn", round_number).uniforms(len(self))


class _Settings:
    def __init__(self, table: Mapping[str, Any], clients: int, seed: int, folder: Path) -> None:
        self._table, self._clients, self._seed, self._folder = table, clients, seed, folder
        self._trace = subtable(table, "trace", "devices")
        check_names(self._trace, _TRACE_KEYS, "devices.trace")

    def speeds(self) -> tuple[Floats, Floats, Floats]:
        """Seconds per example, and bytes/s down and up."""
        given = self._table.keys() & _KEYS
        if "capacity" in self._trace:
            doubled = sorted(key for key in given if key.startswith(("compute", "down", "up")))
            if doubled:
                raise UsageError(
                    f"devices.trace.capacity already sets the speeds. Remove it, or remove "
                    f"{', '.join(doubled)}."
                )
            return self._traced_speeds()
        if {"compute_examples_per_s", "compute_s_per_example"} <= given:
            raise UsageError(
                "Give devices.compute_examples_per_s or devices.compute_s_per_example, not both."
            )
        if "compute_s_per_example" in given:
            example_s = self._positive("compute_s_per_example")
        else:
            example_s = 1.0 / self._positive("compute_examples_per_s")
        return (
            example_s,
            self._positive("download_mbit_s") * _BYTES_PER_MBIT,
            self._positive("upload_mbit_s") * _BYTES_PER_MBIT,
        )

    def _traced_speeds(self) -> tuple[Floats, Floats, Floats]:
        devices = read_capacity(self._path("capacity"))
        factor = number(
            "devices.trace.training_factor", self._trace.get("training_factor", TRAINING_FACTOR)
        )
        if factor <= 0:
            raise UsageError(f"Expected devices.trace.training_factor={factor} > 0.")
        own = self._shared_out(len(devices), "capacity")
        inference_s = np.array([device.inference_s for device in devices])[own]
        bytes_per_s = np.array([device.bytes_per_s for device in devices])[own]
        return inference_s * factor, bytes_per_s, bytes_per_s

    def probability(self, name: str) -> Floats:
        """A probability of each client; default 0."""
        values = self._draw(name, self._table.get(name, 0.0))
        if values.min() < 0 or values.max() > 1:
            raise UsageError(
                f"Expected devices.{name} from 0 to 1 for every client, got {values.min():g} to "
                f"{values.max():g}. Set min and max of the distribution."
            )
        return values

    def availability(self) -> Availability | None:
        """The availability of devices; None for always."""
        table = self._table.get("availability")
        if "behaviour" in self._trace:
            if table is not None:
                raise UsageError("Give devices.availability or devices.trace.behaviour, not both.")
            devices = read_behaviour(self._path("behaviour"))
            return from_windows(
                [device.windows for device in devices],
                [device.cycle_s for device in devices],
                self._shared_out(len(devices), "behaviour"),
            )
        if table is None:
            return None
        if isinstance(table, Mapping):
            check_names(table, ("on_s", "off_s"), "devices.availability")
        if not isinstance(table, Mapping) or len(table) != 2:
            raise UsageError(
                f"Expected devices.availability with on_s and off_s, got {table!r}. Omit it "
                "for devices that are always available."
            )
        on_s = self._above_zero("availability.on_s", self._draw("availability.on_s", table["on_s"]))
        off_s = self._draw("availability.off_s", table["off_s"])
        self._above_zero("availability.off_s", off_s)
        phase = Source(self._seed, "device availability.phase").uniforms(self._clients)
        return periodic(on_s, off_s, phase)

    def _path(self, name: str) -> Path:
        value = self._trace[name]
        if not isinstance(value, str | Path):
            raise UsageError(f"Expected devices.trace.{name} as a path, got {value!r}.")
        return self._folder / value

    def _shared_out(self, devices: int, name: str) -> NDArray[np.int64]:
        """The device in a trace of each client: in the file's order, repeated."""
        order = np.arange(devices, dtype=np.int64)
        shuffle = self._trace.get("shuffle", False)
        if not isinstance(shuffle, bool):
            raise UsageError(f"Expected devices.trace.shuffle as true or false, got {shuffle!r}.")
        if shuffle:
            order = np.argsort(Source(self._seed, f"trace {name}").uniforms(devices), kind="stable")
        return np.resize(order, self._clients)

    def _positive(self, name: str) -> Floats:
        if name not in self._table:
            raise UsageError(
                f"devices.{name} is missing. A virtual clock needs every timing as a number or a "
                "distribution; omit [devices] for rounds without time."
            )
        return self._above_zero(name, self._draw(name, self._table[name]))

    def _above_zero(self, name: str, values: Floats) -> Floats:
        if values.min() <= 0:
            raise UsageError(
                f"Expected devices.{name} > 0 for every client, got {values.min():g}. "
                "Set min of the distribution."
            )
        return values

    def _draw(self, name: str, setting: object) -> Floats:
        source = Source(self._seed, f"device {name}")
        return draw(f"devices.{name}", setting, self._clients, source)
