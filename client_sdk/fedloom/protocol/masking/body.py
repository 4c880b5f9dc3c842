"""The body of a masked update: integers of the sum, then words.

    values   integers mod 2^b, b/8 bytes each, little-endian
    zeros    up to a multiple of 8 bytes, never masked
    words    integers mod 2^64, 8 bytes each, little-endian: weights, metrics

A negative integer is its two's complement. Bodies are added place by place, so a sum has the same
form; it is exact where the true sum fits into b bits, which is checked before a run starts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import Code, Refusal
from fedloom.strategies.exact.grid import SUM_BITS

BLOCK: Final = 48 * 1024
"""Bytes that are worked on at a time: whole words of every width, and whole blocks of AES."""
SPARE: Final = 16
"""Bytes that a buffer has after its words: those of 3 bytes are read as 4."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLayout:
    """The form of a body.

    Attributes:
        sum_bits: b, of `SUM_BITS`.
        num_values: integers of b bits.
        num_words: integers of 64 bits.

    Raises:
        ValueError: another width, or a negative number.
    """

    sum_bits: int
    num_values: int
    num_words: int

    def __post_init__(self) -> None:
        if self.sum_bits not in SUM_BITS:
            raise ValueError(f"Expected sum_bits of {SUM_BITS}, got {self.sum_bits}.")
        if min(self.num_values, self.num_words) < 0:
            raise ValueError(f"Expected numbers of values and words >= 0, got {self}.")

    @property
    def values_bytes(self) -> int:
        """Bytes of all values, without the zeros after them."""
        return self.num_values * self.sum_bits // 8

    @property
    def words_start(self) -> int:
        """Offset of the words in bytes, a multiple of 8."""
        return -(-self.values_bytes // 8) * 8

    @property
    def size_bytes(self) -> int:
        """Bytes of the body."""
        return self.words_start + 8 * self.num_words

    def check(self, body: Bytes) -> None:
        """Check the length of a body, and the zeros in it.

        Raises:
            Refusal: TRUNCATED, OVERLONG or MALFORMED.
        """
        if len(body) != self.size_bytes:
            code = Code.TRUNCATED if len(body) < self.size_bytes else Code.OVERLONG
            raise Refusal(code, f"Expected a body of {self.size_bytes} bytes, got {len(body)}.")
        if body[self.values_bytes : self.words_start].any():
            raise Refusal(Code.MALFORMED, "Expected zeros between values and words, got others.")

    def regions(self, body: Bytes) -> Iterator[tuple[int, int, Bytes]]:
        """Offset in bytes, bytes of a word, and the bytes of the values, then of the words."""
        yield 0, self.sum_bits // 8, body[: self.values_bytes]
        yield self.words_start, 8, body[self.words_start :]


def write_body(
    layout: BodyLayout, values: Iterable[NDArray[np.int64]], words: Sequence[int]
) -> Bytes:
    """Write the body of an update before it is masked.

    Args:
        layout: of the body.
        values: int64 arrays that give `layout.num_values` integers in the order of groups, then
            tensors, both sorted by name, then rows.
        words: integers in [−2^63, 2^63).

    Raises:
        ValueError: an integer does not fit into its word, or there are more or fewer of them.
    """
    body = np.zeros(layout.size_bytes, np.uint8)
    width, most = layout.sum_bits // 8, 2 ** (layout.sum_bits - 1)
    start = 0
    for array in values:
        flat = array.reshape(-1)
        if flat.size and not (-most <= int(flat.min()) and int(flat.max()) < most):
            raise ValueError(
                f"Expected integers of {layout.sum_bits} bits, got {int(flat.min())} to "
                f"{int(flat.max())}."
            )
        stop = start + flat.size * width
        if stop > layout.values_bytes:
            raise ValueError(f"Expected {layout.num_values} values, got more.")
        low = flat.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
        body[start:stop] = low.reshape(-1)
        start = stop
    if start != layout.values_bytes or len(words) != layout.num_words:
        raise ValueError(
            f"Expected {layout.num_values} values and {layout.num_words} words, got "
            f"{start // width} and {len(words)}."
        )
    body[layout.words_start :] = np.array(words, "<i8").view(np.uint8)
    return body


def read_values(layout: BodyLayout, body: Bytes, start: int, stop: int) -> NDArray[np.int64]:
    """The values from `start` to `stop` of a body, signed."""
    width = layout.sum_bits // 8
    raw = body[start * width : stop * width].reshape(-1, width)
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, 8 - width :] = raw
    signed: NDArray[np.int64] = wide.reshape(-1).view("<i8") >> (64 - layout.sum_bits)
    return signed


def read_words(layout: BodyLayout, body: Bytes) -> list[int]:
    """The words of a body, signed."""
    found: list[int] = body[layout.words_start :].copy().view("<i8").tolist()
    return found


def add_body(total: Bytes, layout: BodyLayout, body: Bytes) -> None:
    """Add one body to a total, in place.

    Args:
        total: of `layout`; zeros at first.
        layout: of both.
        body: read block by block, so it may be a mapped file.

    Raises:
        Refusal: TRUNCATED, OVERLONG or MALFORMED, `BodyLayout.check`.
    """
    layout.check(body)
    buffer = np.empty(BLOCK + SPARE, np.uint8)
    both = zip(layout.regions(total), layout.regions(body), strict=True)
    for (_, width, into), (_, _, added) in both:
        for start in range(0, len(into), BLOCK):
            chunk = into[start : start + BLOCK]
            buffer[: len(chunk)] = added[start : start + BLOCK]
            words = load(chunk, width)
            words += as_words(buffer, len(chunk), width)
            store(words, chunk, width)


def as_words(buffer: Bytes, length: int, width: int) -> NDArray[Any]:
    """The first `length` bytes of a buffer as words of `width` bytes, without a copy.

    Of words of 3 bytes the highest of 4 is another's: sums of them are right mod 2^24.
    """
    if width == 3:
        return np.ndarray((length // 3,), "<u4", buffer, strides=(3,))
    return buffer[:length].view(f"<u{width}")


def load(chunk: Bytes, width: int) -> NDArray[Any]:
    """The words of a chunk to add to: a view, or a copy of words of 3 bytes."""
    if width == 3:
        buffer = np.append(chunk, np.uint8(0))
        return as_words(buffer, len(chunk), width).copy()
    return chunk.view(f"<u{width}")


def store(words: NDArray[Any], chunk: Bytes, width: int) -> None:
    """Write the words of `load` back."""
    if width == 3:
        raw = words.view(np.uint8)
        for place in range(3):  # four times as fast as rows of three bytes
            chunk[place::3] = raw[place::4]
