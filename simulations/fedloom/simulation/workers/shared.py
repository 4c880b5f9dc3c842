"""Arrays shared between processes: the model for workers, their sums; nothing is pickled.

The memory is multiprocessing's `RawArray`: anonymous, freed with the processes, for forked and
spawned workers.
"""

from collections.abc import Mapping
from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.partial import Partial, TensorSpec, dense_arrays

_ALIGN = 64

Sum: TypeAlias = tuple[dict[str, str], list[str], dict[str, NDArray[Any]]]
"""The header of a sum, the names of its arrays in shared memory, and its other arrays."""


class SharedArrays:
    """Named arrays in one block of shared memory."""

    def __init__(self, context: BaseContext, specs: Mapping[str, TensorSpec]) -> None:
        self._places: dict[str, tuple[int, TensorSpec]] = {}
        size = 0
        for name, spec in specs.items():
            self._places[name] = size, spec
            size += -(-spec.size * spec.dtype.itemsize // _ALIGN) * _ALIGN
        self._memory: Any = context.RawArray("b", max(size, 1))
        self._views: dict[str, NDArray[Any]] = {}  # made in each process

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Views of the memory; writable. Not before processes that share it have started."""
        if not self._views:
            self._views = {
                name: np.frombuffer(self._memory, spec.dtype, spec.size, offset).reshape(spec.shape)
                for name, (offset, spec) in self._places.items()
            }
        return self._views


class SharedSum:
    """A worker's sum, whose integers are in memory shared with the parent."""

    def __init__(self, context: BaseContext, empty: Partial) -> None:
        self._empty = empty
        flat = {
            name: TensorSpec(shape=(spec.size,), dtype=np.dtype(np.int64))
            for number, spec in enumerate(empty.specs.values())
            for name in dense_arrays(number, narrow=empty.narrow)
        }
        self._sums = SharedArrays(context, flat)

    def begin(self) -> Partial:
        """An empty sum in shared memory; called in the worker at the start of a round."""
        partial = self._empty.empty()
        partial.use_memory(self._sums.arrays())
        return partial

    def describe(self, partial: Partial) -> Sum:
        """What the parent needs beside shared memory; called in the worker."""
        arrays, header = partial.arrays()
        shared = self._sums.arrays().keys() & arrays.keys()
        return header, sorted(shared), {n: a for n, a in arrays.items() if n not in shared}

    def end(self, described: Sum) -> Partial:
        """The worker's sum; called in the parent, valid until the worker begins again."""
        header, shared, others = described
        arrays = self._sums.arrays()
        return Partial.from_arrays({**{name: arrays[name] for name in shared}, **others}, header)
