"""Tensors that never leave the device and carry over from round to round.

A task may have to be done twice, when the process died before its update was acknowledged. So the
memory holds what the tensors were when the task began beside what they were when it ended, and a
repeat starts from the former: the same task gives the same bits however often it is done.

Invariant: a run begins from the tensors that the server sends, whatever earlier runs left here.
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
    """What stays here of one run.

    Args:
        path: where to keep it over restarts, a safetensors file; None: in this process only.

    Raises:
        IntegrityError: when the file is there but is not a safetensors file.
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
        """What to start from: empty when this run left nothing here.

        Args:
            run: the task's run.
            round_: the round about to be trained, or None to evaluate what was learnt so far.
        """
        if run != self._run:
            return {}
        return self._before if round_ == self._round else self._after

    def remember(self, run: str, round_: int, before: Params, after: Params) -> None:
        """Keep what the tensors were when a task began and when it ended; the arrays are ours."""
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
        # Copied out of the mapping: the file is about to be replaced round after round.
        arrays = {name: np.array(value) for name, value in container.read_params(path).items()}
        self._run = arrays.pop(_RUN).tobytes().decode()
        self._round = int(arrays.pop(_ROUND))
        self._before = _named(arrays, _BEFORE)
        self._after = _named(arrays, _AFTER)


def _named(arrays: Params, prefix: str) -> Params:
    return {n.removeprefix(prefix): value for n, value in arrays.items() if n.startswith(prefix)}
