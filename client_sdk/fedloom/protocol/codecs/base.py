"""Codecs: float32 values in fewer bytes and back, as named arrays of one container.

A codec is a frozen dataclass of its settings. The sender encodes a tensor's values at once;
the receiver first checks the arrays as they arrive (`Inspector`), without holding them, and later
decodes any range of values from the stored arrays (`Decoder`).

Invariants: decoded values depend on the arrays, the codec's settings, the shape and the seed alone,
and are bit-identical on every machine; an inspector passes only arrays that decode without fault,
and yields every decoded value, except zeros, for checks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.strategies.exact.lazy_arrays import Values

Floats: TypeAlias = NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]
Read: TypeAlias = Callable[[int, int], NDArray[Any]]
"""Items `start:stop` of one array; valid until the next call."""

WORK = 1 << 15
"""Values processed at a time: with their buffers they fit a 1 MiB L2 cache."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array of an encoded tensor as a container declares it.

    Attributes:
        dtype: a key of `container.DTYPES`.
        shape: as declared.
    """

    dtype: str
    shape: Shape

    @property
    def size_bytes(self) -> int:
        """Of its items."""
        return size_of(self.shape) * int(self.dtype.lstrip("BFIU")) // 8


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded tensor.

    Attributes:
        arrays: by role, in one of the orders of `Codec.forms`; an encoder gives true arrays.
        dtypes: container dtypes by role where they differ from the arrays' own.
        memory: values for the next encoding of this tensor, by name.
    """

    arrays: Mapping[str, Values]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class Inspector(Protocol):
    """Checks the arrays of one encoded tensor as they arrive, in chunks of any size."""

    def feed(self, role: str, items: NDArray[Any]) -> Iterator[Floats]:
        """Check the next items of an array; yield the values that follow from them.

        Raises:
            Refusal: they do not decode.
        """

    def finish(self) -> Iterator[Floats]:
        """Finish: yield the remaining values; default: none.

        Raises:
            Refusal: the arrays do not fit each other.
        """
        return iter(())


class Decoder(Protocol):
    """Decodes ranges of one tensor's values; fastest in order."""

    def block(self, start: int, stop: int) -> Floats:
        """Values `start:stop` in row-major order; valid until the next call."""


@dataclass(frozen=True, slots=True)
class Codec(ABC):
    """A way to encode tensors; the fields are its settings.

    Attributes:
        name: in the registry.
        forms: the possible lists of array roles of an encoded tensor, in order.
        draws: whether decoding needs the seed.
        remembers: whether encoding continues from the `memory` of the previous one.
        exact: whether decoding restores every bit.
        slow: whether checking is slow enough to need a thread.
        varies: whether the bytes of an encoded tensor depend on its values.
    """

    name: ClassVar[str]
    forms: ClassVar[tuple[tuple[str, ...], ...]]
    draws: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    @property
    def biased(self) -> bool:
        """Whether the mean of the decoded values is no multiple of the values."""
        return False

    @property
    def contracts(self) -> bool:
        """Whether the loss is smaller than the input, and what is lost is sent soon.

        Error feedback, and differences between models, converge only with such a codec.
        """
        return True

    def settings(self) -> dict[str, float]:
        """Return the settings that rebuild this codec in the registry."""
        return {item.name: float(getattr(self, item.name)) for item in fields(self)}

    def applies(self, shape: Shape) -> bool:
        """Return whether a tensor of this shape is encoded; default: if that makes it smaller."""
        return self.size_bytes(shape) < 4 * size_of(shape)

    def size_bytes(self, shape: Shape) -> int:
        """Return the bytes of `layout`."""
        return sum(info.size_bytes for info in self.layout(shape).values())

    @abstractmethod
    def layout(self, shape: Shape) -> dict[str, ArrayInfo]:
        """Return the arrays of an encoded tensor of this shape, by role, in order.

        Where the values decide their dtypes or sizes, of one possible encoding.
        """

    @abstractmethod
    def encode(
        self, values: Floats, shape: Shape, seed: int, memory: Mapping[str, NDArray[Any]]
    ) -> Encoded:
        """Encode a tensor.

        Args:
            values: float32 [size], row-major. Non-finite values decode to non-finite ones.
            shape: of the tensor.
            seed: of the randomness, from `draws.stream`.
            memory: of the last `Encoded` of this tensor, or empty.
        """

    def check(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> None:
        """Check the declared arrays, whose roles are one of `forms`; default: against `layout`.

        Raises:
            Refusal: WRONG_DTYPE or WRONG_SHAPE.
        """
        for role, info in self.layout(shape).items():
            expect(role, arrays[role], (info.dtype,), info.shape)

    @abstractmethod
    def inspector(self, shape: Shape, arrays: Mapping[str, ArrayInfo]) -> Inspector:
        """Return an inspector for arrays that passed `check`."""

    @abstractmethod
    def decoder(self, shape: Shape, seed: int, read: Mapping[str, Read]) -> Decoder:
        """Return a decoder for arrays that an inspector passed."""


def expect(role: str, found: ArrayInfo, dtypes: tuple[str, ...], shape: Shape | None) -> None:
    """Check one declared array; `shape` None means any vector.

    Raises:
        Refusal: WRONG_DTYPE or WRONG_SHAPE.
    """
    if found.dtype not in dtypes:
        raise Refusal(
            Code.WRONG_DTYPE, f"Expected {role} as {' or '.join(dtypes)}, got {found.dtype}."
        )
    if found.shape != shape and (shape is not None or len(found.shape) != 1):
        raise Refusal(
            Code.WRONG_SHAPE, f"Expected {role} of shape {shape or '(n,)'}, got {found.shape}."
        )


def malformed(expected: str, got: object) -> Refusal:
    """The refusal of arrays that no encoder writes."""
    return Refusal(Code.MALFORMED, f"Expected {expected}, got {got}.")


def size_of(shape: Shape) -> int:
    """The number of values."""
    return math.prod(shape)
