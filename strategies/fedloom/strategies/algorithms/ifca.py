"""IFCA: several models; each client trains the one that fits its examples best.

    device   j = argmin over the models of the mean loss on its examples; trains model j
    server   x_j ← x_j + η_g · mean of the deltas of the clients that trained model j

The first model is the run's; the others are slots that clients get beside it. All must start at
different points: a normal number, drawn by the run's seed, is added to each weight of the others.

Source: Ghosh et al. 2020, An Efficient Framework for Clustered Federated Learning,
https://arxiv.org/abs/2006.04088, Algorithm 1 (model averaging).

Invariant: a model that no client picked keeps its bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Means
from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.client_rules import ClientRule
from fedloom.strategies.exact.partial import DELTA, Floats, Key, Params, TensorSpec
from fedloom.strategies.optimizers.blockwise import Block, blockwise, slot_dtype
from fedloom.strategies.state import State

MAX_CLUSTERS = 1024
"""Most models of a run; a device holds all of them."""


def _check_clusters(count: int) -> None:
    check_count("clusters", count, at_least=2)
    if count > MAX_CLUSTERS:
        raise ValueError(f"Expected clusters from 2 to {MAX_CLUSTERS}, got {count}.")


def cluster_slot(number: int) -> str:
    """Return the name of the slot and update group of a model after the first."""
    return f"cluster_{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IfcaRule(ClientRule):
    """The device's half.

    Attributes:
        clusters: number of models.
    """

    name: ClassVar[str] = "ifca"
    picks: ClassVar[bool] = True
    clusters: int

    def __post_init__(self) -> None:
        as_sent: float = self.clusters  # numbers are floats on the wire
        if isinstance(as_sent, float) and as_sent.is_integer():
            object.__setattr__(self, "clusters", int(as_sent))
        _check_clusters(self.clusters)

    @property
    def receives(self) -> tuple[str, ...]:  # type: ignore[override] # as many as there are models
        """The models after the first."""
        return tuple(cluster_slot(number) for number in range(1, self.clusters))

    @property
    def groups(self) -> tuple[str, ...]:  # type: ignore[override]
        """A group for each model; an update has one of them."""
        return (DELTA, *self.receives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ifca(ServerOptimizer):
    """The server's half.

    Attributes:
        clusters: number of models, >= 2.
        spread: standard deviation of the noise added to each weight of the models after the first,
            > 0. Tensors of fewer than two dimensions, such as biases, start equal if the model
            has other tensors.
    """

    clusters: int
    spread: float = 0.1

    def __post_init__(self) -> None:
        _check_clusters(self.clusters)
        check_number("spread", self.spread, above=0)
        ServerOptimizer.__post_init__(self)

    @property
    def broadcasts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The models after the first."""
        return self.own_rule().receives

    def own_rule(self) -> ClientRule:
        """Return the device's half."""
        return IfcaRule(clusters=self.clusters)

    def init(self, model: Params, seed: int = 0) -> State:
        """Return models that start at different points."""
        found = enumerate(self.broadcasts, start=1)
        return State(slots={slot: self._moved(model, (abs(seed), n)) for n, slot in found})

    def change(self, block: Block) -> Floats:
        """Return η·Δ."""
        return self.server_learning_rate * block.delta

    def finish(
        self, state: State, model: Params, means: Means
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next models, each from the clients that trained it."""
        change = self.at_round(state.step).change
        new, _ = blockwise(change, model, means, {})
        slots = {}
        for slot in self.broadcasts:
            slots[slot], _ = blockwise(
                change, state.slots[slot], _Group(means, slot, means.count), {}
            )
        return new, State(step=state.step + 1, slots=slots)

    def _moved(self, model: Params, seed: tuple[int, int]) -> dict[str, NDArray[Any]]:
        generator = np.random.default_rng(seed)
        new = {name: model[name].astype(slot_dtype(model[name].dtype)) for name in sorted(model)}
        for name in _weights(model):
            noise = generator.normal(scale=self.spread, size=model[name].shape)
            new[name] = (new[name] + noise).astype(new[name].dtype)
        return new


def _weights(model: Params) -> Iterator[str]:
    """Tensors of two dimensions or more; without any, all float tensors."""
    floats = [name for name in sorted(model) if model[name].dtype.kind == "f"]
    least = min(2, max((model[name].ndim for name in floats), default=0))
    return (name for name in floats if model[name].ndim >= least)


@dataclass(slots=True)
class _Group:
    """The means of one group, as if they were deltas of the model."""

    means: Means
    group: str
    count: int

    @property
    def specs(self) -> dict[Key, TensorSpec]:
        """The tensors of the group."""
        specs = self.means.specs.items()
        return {(DELTA, name): spec for (group, name), spec in specs if group == self.group}

    def covered(self, key: Key) -> bool:
        """Return whether any client trained the tensor in this group."""
        return self.means.covered((self.group, key[1]))

    def mean_block(
        self, key: Key, start: int, stop: int
    ) -> tuple[Floats, NDArray[np.bool_] | bool]:
        """Return the means of a block; see `Means.mean_block`."""
        return self.means.mean_block((self.group, key[1]), start, stop)

    def release(self, key: Key) -> None:
        """Release a tensor's sums."""
        self.means.release((self.group, key[1]))
