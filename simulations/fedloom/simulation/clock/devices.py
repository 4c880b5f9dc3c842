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
from .device_random import Floats, Source, draw, number
from .traces import TRAINING_FACTOR, read_behaviour, read_capacity

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
        trained = self.trained.astype(np.float64)
        return trained if self.evaluated is None else trained + self.evaluated / TRAINING_FACTOR


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

    def work_times(self, load: Load, round_number: int) -> "WorkTimes":
        """Times of each client's work in a round.

        Raises:
            UsageError: the load is of another population.
        """
        if len(load.trained) != len(self):
            raise UsageError(f"Expected a load of {len(self)} clients, got {len(load.trained)}.")
        return WorkTimes(self, load, round_number)

    def jitters(self, round_number: int) -> Floats:
        """The factor on each client's time in a round, shape (clients,)."""
        if not self.jitter:
            return np.ones(len(self))
        source = Source(self.seed, "device jitter", round_number)
        return np.asarray(np.exp(self.jitter * source.normals(len(self))))

    def declines(self, round_number: int) -> NDArray[np.bool_] | None:
        """Whether each client declines in this round, shape (clients,); None for no client."""
        if not self.drop_out.any():
            return None
        source = Source(self.seed, "device drop-out", round_number)
        return np.asarray(source.uniforms(len(self)) < self.drop_out)

    def fails_at(self, round_number: int) -> Floats | None:
        """The share of its work after which each client fails, or infinity; None for no client."""
        if not self.failure.any():
            return None
        source = Source(self.seed, "device failure", round_number)
        fails = source.uniforms(len(self)) < self.failure
        return np.where(fails, source.uniforms(len(self), "when"), inf)

    def turns(self, round_number: int) -> Floats:
        """Order of clients that arrive at the same time, ascending, shape (clients,)."""
        return Source(self.seed, "device turn", round_number).uniforms(len(self))


class WorkTimes:
    """Times of each client's work in a round.

    Args:
        devices: of the population.
        load: of each of them.
        round_number: for the jitter.
    """

    def __init__(self, devices: Devices, load: Load, round_number: int) -> None:
        self._factor = devices.jitters(round_number)
        self._upload_bytes, self._upload = load.upload_bytes, devices.upload
        self._download_s = load.download_bytes / devices.download * self._factor
        seconds = load.examples * devices.example_s
        if not callable(load.upload_bytes):
            seconds += load.upload_bytes / devices.upload
        self._rest_s = seconds * self._factor

    def seconds(self, place: int, *, has_files: bool = False) -> float:
        """Seconds of a client's download, training and upload together.

        Args:
            place: its index.
            has_files: whether it downloaded the files of this round before.
        """
        seconds: float = self._rest_s.item(place)
        if callable(self._upload_bytes):
            upload_s = self._upload_bytes(place) / self._upload.item(place)
            seconds += upload_s * self._factor.item(place)
        return seconds if has_files else seconds + self._download_s.item(place)


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
