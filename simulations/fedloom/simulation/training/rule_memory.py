"""The memories of client rules and codecs between rounds, one file per client and round.

As on a device, the memory of the client's last committed round is used, so a repeated round starts
from the same memory.
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
        """Return a client's memory of a round by "slot/tensor"; empty for round 0.

        Raises:
            UsageError: the file is missing.
        """
        if not number:
            return {}
        path = self._path(client, number)
        if not path.exists():
            raise UsageError(
                f"The memory of client {client} of round {number}, {path}, is missing. Begin the "
                "simulation again, in another folder."
            )
        return {name: np.array(array) for name, array in read_params(path).items()}

    def remember(self, client: int, number: int, arrays: Mapping[str, Values]) -> None:
        """Store a client's memory of a round."""
        path = self._path(client, number)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            write_params(file, arrays)
        temporary.replace(path)

    def keep(self, counted: Mapping[int, int]) -> None:
        """Delete all files except one round's memory of each client: client → round."""
        for path in self.folder.iterdir():
            client, _, number = path.stem.partition(".")
            if counted.get(int(client)) != int(number):
                path.unlink()

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"{client}.{number}.safetensors"
