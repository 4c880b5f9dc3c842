"""The manifest of a model: its tensors, and the dtypes of updates.

The manifest is read from the model's header. Differences are sent as float32 for floats of at most
32 bits and as float64 for others, so that a half-precision model loses nothing before the exact
sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import DTYPES, read_layout
from fedloom.strategies.exact.partial import TensorSpec

_SINGLE = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tensors of a model.

    Attributes:
        dtypes: container dtype by tensor name.
        specs: shape, and the numpy dtype that its values have in memory, by tensor name.
        size_bytes: of the whole model container.
        replaced: updates carry the values themselves, in the model's dtypes, not differences.
    """

    dtypes: Mapping[str, str]
    specs: Mapping[str, TensorSpec]
    size_bytes: int
    replaced: bool = False

    def wire_dtype(self, tensor: str) -> str:
        """Container dtype of an update of this tensor."""
        if self.replaced:
            return self.dtypes[tensor]
        return "F32" if self.dtypes[tensor] in _SINGLE else "F64"

    def is_float(self, tensor: str) -> bool:
        """Whether a tensor is of floating point: clipping and noise are of such tensors alone."""
        return self.specs[tensor].dtype.kind == "f"

    def full_update_bytes(self, groups: int = 1) -> int:
        """An upper bound on a body that covers every coordinate of every group by masks."""
        per_group = sum(
            spec.size * DTYPES[self.wire_dtype(name)].itemsize + spec.size // 8 + 1024
            for name, spec in self.specs.items()
        )
        return groups * per_group + 4096


def read_manifest(path: Path) -> Manifest:
    """The manifest of a model file.

    Raises:
        IntegrityError: not a whole safetensors file.
        UsageError: the model has a tensor that cannot be averaged.
    """
    with path.open("rb") as file:
        layout = read_layout(file)
    if not layout.tensors:
        raise UsageError(f"Expected at least one tensor in {path}, got none.")
    for info in layout.tensors.values():
        if info.dtype == "BOOL":
            raise UsageError(
                f"Expected numeric tensors in {path}, got BOOL {info.name!r}: "
                "leave it out of the shared model, it cannot be averaged."
            )
    return Manifest(
        dtypes={name: info.dtype for name, info in layout.tensors.items()},
        specs={
            name: TensorSpec(shape=info.shape, dtype=_memory_dtype(info.dtype))
            for name, info in layout.tensors.items()
        },
        size_bytes=layout.size_bytes,
    )


def _memory_dtype(dtype: str) -> "np.dtype[np.generic]":
    return np.dtype(np.float32) if dtype == "BF16" else DTYPES[dtype]
