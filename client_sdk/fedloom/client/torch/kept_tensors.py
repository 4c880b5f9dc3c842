"""Local tensors, which never leave the device and are kept between rounds.

A task is repeated if the process ended before its update was acknowledged. So the memory holds the
tensors from before and after the task, and a repeat starts from the former: it gives the same bits.

Invariant: a run begins with the tensors that the server sends; earlier runs have no effect.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.tensors import container

Params = Mapping[str, NDArray[Any]]
_RUN, _ROUND, _BEFORE, _AFTER = "run", "round", "before/", "after/"


class LocalMemory:
    """The local tensors of one run.

    Args:
        path: a safetensors file that keeps them over restarts; None: in this process only.

    Raises:
        IntegrityError: the file exists but is not a safetensors file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._run = ""
        self._round = -1
        self._before: Params = {}
        self._after: Params = {}
        if path is not None and path.exists():
            self._read(path)

    def recall(self, run: str, round_: int | None = None) -> Params:
        """The tensors to start from; empty if this run has none yet.

        Args:
            run: the task's run.
            round_: the round to be trained; None to evaluate the latest tensors.
        """
        if run != self._run:
            return {}
        return self._before if round_ == self._round else self._after

    def remember(self, run: str, round_: int, before: Params, after: Params) -> None:
        """Keep the tensors from before and after a task; takes ownership of the arrays."""
        self._run, self._round = run, round_
        self._before, self._after = before, after
        if self._path is not None:
            self._write(self._path)

    def _write(self, path: Path) -> None:
        arrays: dict[str, NDArray[Any]] = {
            _RUN: np.frombuffer(self._run.encode(), np.uint8),
            _ROUND: np.array(self._round, np.int64),
        }
        arrays |= {_BEFORE + name: value for name, value in self._before.items()}
        arrays |= {_AFTER + name: value for name, value in self._after.items()}
        container.write_file(path, arrays)

    def _read(self, path: Path) -> None:
        # Copies, because the mapped file is replaced in each round.
        arrays = {name: np.array(value) for name, value in container.read_params(path).items()}
        self._run = arrays.pop(_RUN).tobytes().decode()
        self._round = int(arrays.pop(_ROUND))
        self._before = _named(arrays, _BEFORE)
        self._after = _named(arrays, _AFTER)


def _named(arrays: Params, prefix: str) -> Params:
    return {n.removeprefix(prefix): value for n, value in arrays.items() if n.startswith(prefix)}
