"""What client rules and codecs remember between rounds, one file for each client and round.

As on a device, the memory that counts is that of the client's last committed round, so a round that
is repeated starts from the same memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import read_params, write_params
from fedloom.strategies.exact.lazy_arrays import Values


class Memory:
    """A folder of memories.

    Attributes:
        folder: made if needed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def recall(self, client: int, number: int) -> dict[str, NDArray[Any]]:
        """Return what a client remembered in a round, as "slot/tensor"; empty for round 0.

        Raises:
            UsageError: the file is gone.
        """
        if not number:
            return {}
        path = self._path(client, number)
        if not path.exists():
            raise UsageError(
                f"Expected what client {client} remembers of round {number} in {path}, got no "
                "file. Begin the simulation anew, without --resume."
            )
        return {name: np.array(array) for name, array in read_params(path).items()}

    def remember(self, client: int, number: int, arrays: Mapping[str, Values]) -> None:
        """Store what a client remembers with its update in a round."""
        path = self._path(client, number)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            write_params(file, arrays)
        temporary.replace(path)

    def keep(self, counted: Mapping[int, int]) -> None:
        """Delete all files but one round's memory of each client: client → round."""
        for path in self.folder.iterdir():
            client, _, number = path.stem.partition(".")
            if counted.get(int(client)) != int(number):
                path.unlink()

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"{client}.{number}.safetensors"
