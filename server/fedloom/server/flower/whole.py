"""A round's updates as whole models in memory, as Flower's strategies need them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies import DELTA, Key, Params, TensorSpec, TooFewUpdatesError, Updates
from fedloom.strategies.exact.partial import Floats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Whole:
    """Passes the updates to the strategy unaggregated."""

    name: ClassVar[str] = "flower"
    needs: ClassVar[Literal["sum", "each"]] = "each"
    remembers: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    min_updates: ClassVar[int] = 1

    def settings(self) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def reduce(self, updates: Updates, last: Params) -> "Kept":  # noqa: ARG002 - the protocol's
        """Return the updates themselves."""
        return Kept(updates)


class Kept:
    """A round's updates in place of their means."""

    def __init__(self, updates: Updates) -> None:
        self.updates = updates
        self.count = len(updates.clients)
        self.note = ""

    @property
    def specs(self) -> Mapping[Key, TensorSpec]:
        """The tensors of updates."""
        return self.updates.specs

    def covered(self, key: Key) -> bool:
        """Return whether any update covers this tensor."""
        return self.updates.covered(key)

    def mean_block(self, key: Key, start: int, stop: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Unsupported: there are no means."""
        raise NotImplementedError

    def release(self, key: Key) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One client's reply: the model that it trained, with weight and metrics."""

    client: str
    weight: float
    metrics: dict[str, float]
    arrays: dict[str, NDArray[Any]]


def replies_of(updates: Updates, model: Params) -> list[Reply]:
    """The updates that cover the whole model, as trained models."""
    size = sum(value.nbytes for value in model.values())
    log.info(
        "a Flower strategy holds %d updates in memory, %.1f MB each",
        len(updates.clients), size / 1e6,
    )  # fmt: skip
    told = getattr(updates, "metrics", None) or [{} for _ in updates.clients]
    replies = [
        Reply(client=client, weight=float(weight), metrics=dict(metrics), arrays={})
        for client, weight, metrics in zip(updates.clients, updates.weights, told, strict=True)
    ]
    partial = set[int]()
    for name, value in model.items():
        made = [np.empty(value.size, value.dtype) for _ in replies]
        flat = value.reshape(-1).astype(np.float64)
        for start, stop in updates.ranges((DELTA, name)):
            deltas, covered = updates.block((DELTA, name), start, stop)
            for number in range(len(replies)):
                if covered is not True and not covered[number].all():
                    partial.add(number)
                made[number][start:stop] = as_dtype(flat[start:stop] + deltas[number], value.dtype)
        for number, reply in enumerate(replies):
            reply.arrays[name] = made[number].reshape(value.shape)
    if partial:
        names = ", ".join(replies[number].client for number in sorted(partial))
        log.warning("left out, because a Flower strategy needs whole models: %s", names)
    kept = [reply for number, reply in enumerate(replies) if number not in partial]
    if not kept:
        raise TooFewUpdatesError("Expected updates of the whole model, got none.")
    return kept


def as_dtype(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in a tensor's dtype, rounded for integers.

    >>> as_dtype(np.array([0.5, 1.5, 2.7]), np.dtype("int64")).tolist()
    [0, 2, 3]
    """
    return (np.rint(values) if dtype.kind in "iub" else values).astype(dtype)
