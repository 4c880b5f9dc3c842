"""The release of a round: from its exact sum to means with noise on the grid of the sum.

The noise is added to the integers of a `Partial` before any division. So the release is an integer
plus an exact discrete Gaussian, followed by arithmetic on that alone (post-processing).

    mean = (Σ rint(x · 2^s) + D(σ)) / (goal · 2^s),   σ = z · (C · 2^s + √d / 2)

Legend: x a clipped value, C the clip, d coordinates, z the noise multiplier, s the exponent. The
rounding of an update to the grid moves it by at most half a unit a coordinate, √d / 2 in norm;
the noise is that much larger, so the claim for real numbers holds for the integers.

The denominator is always the cohort's goal, not the number of reports, and a coordinate that a
client does not cover counts as zero: otherwise both would reveal data (McMahan et al. 2018,
section 2).

For dp_ftrl the noise of a round is the difference of the noise of two prefix sums: each is the sum
of the nodes of a binary tree that cover it (Kairouz et al. 2021, section 3; without
Honaker's refinement). For dp_bandmf it is a band of a matrix's: see `banded_noise`.

Invariants: the noise follows from the key, the round and the sum, so a crash replays it; another
sum under the same round, as after a restored backup, has other noise, never the same twice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.exact.fixed_point import Ints
from fedloom.strategies.exact.partial import BLOCK, DELTA, SCALAR, Floats, Key, Partial, TensorSpec
from fedloom.strategies.privacy.banded import Factor
from fedloom.strategies.privacy.banded_noise import RoundNoise, add_round
from fedloom.strategies.privacy.discrete import Sampler, sampler
from fedloom.strategies.privacy.settings import GRID_BITS, Privacy, count_noise, noise_of_values
from fedloom.strategies.privacy.streams import Stream

DOOR_ERROR: Final = 1e-6
"""Bound of the relative error of the norm that the server measures."""
WITHIN: Final = "within_clip"
"""The scalar that clients send for an adaptive clip: 1/2 within it, -1/2 beyond."""
_DIGEST_BYTES: Final = 32

Memory = dict[str, NDArray[Any]]
"""The memory of a mechanism between rounds, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The release of a run's sums.

    Attributes:
        settings: of the run.
        noise_multiplier: as given or calibrated.
        goal: of the cohorts, the denominator.
        specs: of the model's tensors.
        factor: matrix of the noise, for dp_bandmf.
    """

    settings: Privacy
    noise_multiplier: float
    goal: int
    specs: Mapping[str, TensorSpec]
    factor: Factor | None = None

    @property
    def size(self) -> int:
        """Coordinates of the model."""
        return sum(spec.size for spec in self.specs.values())

    @property
    def counts(self) -> dict[Key, TensorSpec]:
        """Scalars that clients send beside their updates: whether they are within the clip."""
        scalar = TensorSpec(shape=(), dtype=np.dtype(np.float64))
        return {(SCALAR, WITHIN): scalar} if self.settings.adaptive else {}

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise on the number within the clip, σ_b."""
        return count_noise(self.settings, self.noise_multiplier, self.goal)

    @property
    def value_noise(self) -> float:
        """The noise multiplier of the values; larger if the count is released as well."""
        if not self.settings.adaptive:
            return self.noise_multiplier
        return noise_of_values(self.noise_multiplier, self.count_noise)

    def init(self) -> Memory:
        """Return the memory before the first round."""
        if self.settings.adaptive:
            return {"clip": np.asarray(self.settings.clip, np.float64)}
        return {}

    def clip(self, memory: Mapping[str, NDArray[Any]]) -> float:
        """Return the clip of the next round."""
        return float(memory["clip"]) if "clip" in memory else self.settings.clip

    def means(
        self,
        partial: Partial,
        memory: Mapping[str, NDArray[Any]],
        *,
        round: int,  # noqa: A002 - the field's word
        step: int,
        stream: Stream,
    ) -> tuple["NoisyMeans", Memory]:
        """Return the public means of a round's sum, and the memory after it.

        Args:
            partial: the exact sum of clipped updates, each of weight 1.
            memory: before the round.
            round: its number, never used for another round of this key.
            step: rounds released before.
            stream: of the run.
        """
        digest = _digest(partial)
        if not self.settings.central:
            return self._noisy(partial, None), dict(memory)
        noise = sampler(self._sigma(partial, memory))
        if self.factor is not None:
            drawn, after = add_round(
                memory, self.factor, noise, self.specs, round=round, digest=digest, stream=stream
            )
            return self._noisy(partial, drawn), after
        if self.settings.mechanism == "dp_ftrl":
            assert self.settings.restart_every is not None
            nodes, after = _grow(memory, step % self.settings.restart_every, round, digest)
            return self._noisy(partial, Nodes(noise, stream, nodes)), after
        only = Nodes(noise, stream, ((1, 0, round, digest),))
        return self._noisy(partial, only), self._adapt(partial, memory, round, stream, digest)

    def _noisy(self, partial: Partial, noise: "Nodes | RoundNoise | None") -> "NoisyMeans":
        return NoisyMeans(partial=partial, goal=self.goal, noise=noise, count=self.goal)

    def _sigma(self, partial: Partial, memory: Mapping[str, NDArray[Any]]) -> float:
        units = math.ldexp(self.clip(memory) * (1 + DOOR_ERROR), partial.exponent)
        rounded = 0.5 if self.factor is None else 0.5 + self.factor.rounding()
        return self.value_noise * (units + rounded * math.sqrt(self.size))

    def _adapt(
        self,
        partial: Partial,
        memory: Mapping[str, NDArray[Any]],
        round: int,  # noqa: A002 - the field's word
        stream: Stream,
        digest: str,
    ) -> Memory:
        """Follow the quantile: C ← C · exp(-η (b - γ)), Andrew et al. 2021, Algorithm 1."""
        settings = self.settings
        if settings.clip_quantile is None:
            return {}
        unit = math.ldexp(1.0, partial.exponent)
        noise = sampler(self.count_noise * unit)
        drawn = noise.draw(_source(stream, f"within/{digest}", round), 0, 1)
        total = int(partial.sum_block((SCALAR, WITHIN), 0, 1)[0]) + int(drawn[0])
        within = 0.5 + total / unit / self.goal
        clip = self.clip(memory) * math.exp(
            -settings.clip_learning_rate * (within - settings.clip_quantile)
        )
        bounded = min(max(clip, settings.clip / CLIP_RANGE), settings.clip * CLIP_RANGE)
        return {"clip": np.asarray(bounded, np.float64)}


CLIP_RANGE: Final = 256.0
"""The largest factor between an adaptive clip and its initial value, in both directions."""

Node = tuple[int, int, int, str]
"""(sign, level, round, digest) of a source of noise."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Noise that is a sum of independent sources.

    Attributes:
        sampler: of each.
        stream: of the run.
        nodes: the sources, with their signs.
    """

    sampler: Sampler
    stream: Stream = field(repr=False)
    nodes: tuple[Node, ...]

    def block(self, name: str, start: int, stop: int) -> Ints:
        """Return the noise of a tensor's coordinates `start:stop`."""
        total = np.zeros(stop - start, np.int64)
        for sign, level, number, digest in self.nodes:
            purpose = f"noise/{level}/{digest}/{DELTA}/{name}"
            total += sign * self.sampler.draw(_source(self.stream, purpose, number), start, stop)
        return total


@dataclass(slots=True)
class NoisyMeans:
    """Means with noise on every coordinate, as `aggregation.Means` has it.

    Attributes:
        partial: the sum.
        goal: the denominator.
        noise: on the sum; None if the devices added theirs.
        count: published number of updates: the goal.
    """

    partial: Partial
    goal: int
    noise: Nodes | RoundNoise | None
    count: int

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors of the model."""
        return {key: spec for key, spec in self.partial.specs.items() if key[0] == DELTA}

    def covered(self, key: Key) -> bool:
        """Return True: the result must not reveal whether any client sent a tensor."""
        return key[0] == DELTA

    def mean_block(self, key: Key, start: int, stop: int) -> tuple[Floats, bool]:
        """Return the noisy means of the flat coordinates `start:stop`."""
        total = self.partial.sum_block(key, start, stop)
        if self.noise is not None:
            total += self.noise.block(key[1], start, stop)
        return total / (self.goal * math.ldexp(1.0, self.partial.exponent)), True

    def release(self, key: Key) -> None:
        """Release this tensor's means: they are not read again."""
        self.partial.release(key)


def _source(stream: Stream, purpose: str, number: int) -> Any:
    def source(position: int, num_bytes: int) -> bytes:
        return stream(purpose, number, position, num_bytes)

    return source


def _digest(partial: Partial) -> str:
    """The digest of a sum; equal sums have equal digests, in any order of addition."""
    digest = blake2b(str(partial.exponent).encode(), digest_size=_DIGEST_BYTES)
    for key in sorted(partial.specs):
        digest.update(repr(key).encode())
        for start in range(0, partial.specs[key].size, 16 * BLOCK):
            stop = min(start + 16 * BLOCK, partial.specs[key].size)
            digest.update(partial.sum_block(key, start, stop).data)
    return digest.hexdigest()


def _grow(
    memory: Mapping[str, NDArray[Any]],
    leaf: int,
    round: int,  # noqa: A002 - the field's word
    digest: str,
) -> tuple[tuple[Node, ...], Memory]:
    """Add a leaf to a tree: the node that it completes, minus those that the node replaces.

    The memory holds, for each level, the round and the digest of its current node.

    Args:
        memory: before the leaf.
        leaf: its index in the tree; 0 begins a tree.
        round: whose sum it is.
        digest: of that sum.
    """
    done = leaf + 1
    level = (done & -done).bit_length() - 1  # the height of the largest subtree that it completes
    kept = {} if leaf == 0 else dict(memory)
    gone = [_node(-1, lower, kept.pop(f"tree.{lower}")) for lower in range(level)]
    born: Node = (1, level, round, digest)
    kept[f"tree.{level}"] = _noted(round, digest)
    return (born, *gone), kept


def _noted(number: int, digest: str) -> NDArray[np.uint8]:
    return np.frombuffer(number.to_bytes(8, "little") + bytes.fromhex(digest), np.uint8)


def _node(sign: int, level: int, note: NDArray[Any]) -> Node:
    data = note.tobytes()
    return sign, level, int.from_bytes(data[:8], "little"), data[8:].hex()


def grid_exponent(noise: float, clip: float, most: int, bits: int = GRID_BITS) -> int:
    """Return the exponent of a run's sums: a grid fine enough for the noise, and no finer.

    A coarser grid keeps the integers of the noise small, which need fewer uniform bytes.

    Args:
        noise: the noise multiplier.
        clip: of the first round.
        most: the largest exponent without overflow of the sums.
        bits: the standard deviation of the noise is at least 2^bits, if `most` allows it.
    """
    _, power = math.frexp(noise * clip)
    return min(most, bits - power + 1)
