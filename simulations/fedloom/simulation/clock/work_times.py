"""How long each device works in a round, computed for those that work.

Of a hundred thousand devices a round asks a thousand. Invariant: a device's time has the same bits
whether it is computed alone, with others or with all.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .device_random import Floats

if TYPE_CHECKING:
    from .devices import Devices, Load


Of: TypeAlias = Callable[[NDArray[np.intp]], NDArray[Any]]
"""Values of clients, by their indices."""


class WorkTimes:
    """Times of each client's work in a round.

    Args:
        devices: of the population.
        load: of each of them.
        round_number: for the jitter.
    """

    def __init__(self, devices: "Devices", load: "Load", round_number: int) -> None:
        self._devices, self._load = devices, load
        self._normal = devices.normals(round_number)

    def seconds(self, place: int, *, has_files: bool = False) -> float:
        """Seconds of a client's download, training and upload together.

        Args:
            place: its index.
            has_files: whether it downloaded the files of this round before.
        """
        return float(self._of(np.array([place]), has_files=has_files)[0])

    @property
    def is_cheap(self) -> bool:
        """Whether times can be computed for clients that may not be asked."""
        return not callable(self._load.upload_bytes)  # which may train the client

    def of(self, places: NDArray[np.intp], *, has_files: bool = False) -> Floats:
        """`seconds` of clients, by their indices."""
        return np.asarray(self._of(places, has_files=has_files))

    def _of(self, places: Any, *, has_files: bool) -> Any:
        devices, load = self._devices, self._load
        factor = 1.0 if self._normal is None else np.exp(devices.jitter * self._normal[places])
        seconds = load.examples_of(places) * devices.example_s[places]
        upload = devices.upload[places]
        if callable(load.upload_bytes):
            upload_bytes = np.array([load.upload_bytes(place) for place in np.atleast_1d(places)])
            seconds = seconds * factor + upload_bytes.reshape(np.shape(places)) / upload * factor
        else:
            seconds = (seconds + _at(load.upload_bytes, places) / upload) * factor
        if has_files:
            return seconds
        return seconds + _at(load.download_bytes, places) / devices.download[places] * factor


def _at(values: Any, places: Any) -> Any:
    """Of these clients, if each has its own value."""
    return values[places] if isinstance(values, np.ndarray) else values
