"""The noise of the banded mechanism: integers that are correlated with those of earlier rounds.

    w_t = z_t - R_t,   R_t = ⌊c_1 w_(t-1) + … + c_(p-1) w_(t-p+1) + 1/2⌋,   release x_t + w_t

x_t is a round's sum on its grid, z_t an independent discrete Gaussian. So C w = z but for rounding.

Proof of the claim for these integers. Let all earlier releases r be fixed. Then w_s = r_s - x_s,
and r_t is a discrete Gaussian around the integer x_t - R_t. Without a client's updates δ that
centre moves by Σ c_k δ_(t-k), and by less than one unit a coordinate because R_t is rounded; it
does not move where none of the last p rounds has an update of the client. The squares of these
distances, summed over all rounds, are what a discrete Gaussian costs, also if later updates depend
on earlier releases (Canonne et al. 2020, Theorem 14). `Factor.rounding` is the rounding's share.

Rejected: C⁻¹ z in floating point, or exactly on a finer grid. The fractions of such a sum tell the
noise of earlier rounds, and with it the sums that it hides.

The noise of the last p - 1 rounds is kept, 4 bytes a coordinate, under a key stream: with it the
history of a model would show the sums of rounds. Its names are `noise/ROUND/TENSOR`; `note/ROUND`
is the digest of all sums up to that round, from which its noise follows.

Invariants: a round's noise follows from the key and the sums so far, so a crash replays it; after
another sum, as with a restored backup, noise and key stream are others, never the same twice.

Sources: as `banded`, and Canonne, Kamath, Steinke 2020, https://arxiv.org/abs/2004.00010.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.fixed_point import Ints
from fedloom.strategies.exact.partial import TensorSpec
from fedloom.strategies.privacy.banded import COEFFICIENT_BITS, Factor
from fedloom.strategies.privacy.discrete import BLOCK, Sampler
from fedloom.strategies.privacy.streams import ALIGNMENT, Stream

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

NOISE: Final = "noise"
_NOTE: Final = "note"
_DIGEST_BYTES: Final = 32
_HALF: Final = 1 << (COEFFICIENT_BITS - 1)
_LARGEST: Final = 2**31 - 1
_WORD_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """The noise of one round, as it is kept: under a key stream.

    Attributes:
        number: of the round.
        digest: of the sums of all rounds up to it.
        arrays: int32 by tensor, 1-D.
        stream: of the run.
    """

    number: int
    digest: str
    arrays: Arrays
    stream: Stream = field(repr=False)

    def block(self, name: str, start: int, stop: int) -> Ints:
        """Return the noise of a tensor's coordinates `start:stop`, int64."""
        first = start - start % (ALIGNMENT // _WORD_BYTES)
        pad = self._pad(name, first, stop)[start - first :]
        words = self.arrays[name][start:stop].view(np.uint32) ^ pad
        return words.view(np.int32).astype(np.int64)

    def sealed(self, name: str, start: int, values: Ints) -> NDArray[np.int32]:
        """Return the values of coordinates from `start`, a multiple of 4, as they are kept.

        Raises:
            OverflowError: one does not fit; its probability is below 2^-10000.
        """
        if max(int(values.max(initial=0)), -int(values.min(initial=0))) > _LARGEST:
            raise OverflowError("Expected noise below 2^31 units of the grid, got more.")
        pad = self._pad(name, start, start + values.size)
        return (values.astype(np.int32).view(np.uint32) ^ pad).view(np.int32)

    def _pad(self, name: str, start: int, stop: int) -> NDArray[np.uint32]:
        purpose = f"kept/{self.digest}/{name}"
        data = self.stream(purpose, self.number, start * _WORD_BYTES, (stop - start) * _WORD_BYTES)
        return np.frombuffer(data, "<u4")


def add_round(
    memory: Arrays,
    factor: Factor,
    sampler: Sampler,
    specs: Mapping[str, TensorSpec],
    *,
    round: int,  # noqa: A002 - the field's word
    digest: str,
    stream: Stream,
) -> tuple[RoundNoise, dict[str, NDArray[Any]]]:
    """Draw the noise of a round; return it, and the memory after it.

    Args:
        memory: before the round.
        factor: the matrix C.
        sampler: of z.
        specs: of the model's tensors.
        round: its number, above that of every earlier one.
        digest: of its sum.
        stream: of the run.
    """
    past = _read(memory, stream)
    chain = _chained(past[0].digest if past else "", digest)
    arrays = {name: np.empty(spec.size, np.int32) for name, spec in specs.items()}
    kept = RoundNoise(round, chain, arrays, stream)
    for name, array in arrays.items():
        for start in range(0, array.size, BLOCK):
            stop = min(start + BLOCK, array.size)
            total = np.full(stop - start, _HALF, np.int64)
            for coefficient, earlier in zip(factor.coefficients[1:], past, strict=False):
                total += coefficient * earlier.block(name, start, stop)
            fresh = sampler.draw(_source(kept, name), start, stop)
            array[start:stop] = kept.sealed(name, start, fresh - (total >> COEFFICIENT_BITS))
    return kept, _written([kept, *past[: max(factor.bands - 2, 0)]], factor.bands)


def _source(kept: RoundNoise, name: str) -> Any:
    def source(position: int, num_bytes: int) -> bytes:
        return kept.stream(f"fresh/{kept.digest}/{name}", kept.number, position, num_bytes)

    return source


def _chained(before: str, digest: str) -> str:
    return blake2b(f"{before}/{digest}".encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _read(memory: Arrays, stream: Stream) -> list[RoundNoise]:
    """The kept rounds, the newest first."""
    arrays = noise_by_round(memory)
    notes = {
        int(name.removeprefix(f"{_NOTE}/")): note.tobytes().hex()
        for name, note in memory.items()
        if name.startswith(f"{_NOTE}/")
    }
    return [RoundNoise(n, notes[n], arrays.get(n, {}), stream) for n in sorted(notes, reverse=True)]


def _written(rounds: list[RoundNoise], bands: int) -> dict[str, NDArray[Any]]:
    memory: dict[str, NDArray[Any]] = {}
    for kept in rounds:
        memory[f"{_NOTE}/{kept.number}"] = np.frombuffer(bytes.fromhex(kept.digest), np.uint8)
        if bands > 1:
            for name, array in kept.arrays.items():
                memory[noise_name(kept.number, name)] = array
    return memory


def noise_name(number: int, tensor: str) -> str:
    """Return the name of a round's noise in the memory."""
    return f"{NOISE}/{number}/{tensor}"


def noise_by_round(memory: Arrays) -> dict[int, dict[str, NDArray[Any]]]:
    """Return the kept noise of each round, by tensor: it does not change while it is kept."""
    found: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in memory.items():
        kind, _, rest = name.partition("/")
        if kind == NOISE:
            number, _, tensor = rest.partition("/")
            found.setdefault(int(number), {})[tensor] = array
    return found
