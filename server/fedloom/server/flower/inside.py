"""A strategy of this project in a `ServerApp` of Flower: Flower's rounds with exact sums.

Flower samples nodes, sends messages and evaluates. A strategy of `fedloom.strategies` computes the
next model from fixed-point sums, so the result does not depend on the order of the replies.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.strategies import (
    DELTA,
    Full,
    Mean,
    Means,
    Partial,
    Plain,
    Strategy,
    TensorSpec,
    exponent,
    reduced,
    weight_units,
)
from fedloom.strategies.robust.updates import ArrayUpdate, ArrayUpdates

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Update:
    node: int
    weight: float
    deltas: dict[str, NDArray[Any]]


class FlowerStrategy(FedAvg):
    """A Flower strategy with a server step of `fedloom.strategies`.

        FlowerStrategy(FedAdam(server_learning_rate=0.03), fraction_train=0.5)

    Args:
        strategy: of `fedloom.strategies`, with any aggregation and plain local training.
        weighted: weight replies by `weighted_by_key`; else equally.
        max_abs: maximum change of a value; a reply with a larger change is left out.
        flower: settings of Flower's `FedAvg`: sampling of nodes, keys, metrics.

    Raises:
        UsageError: the strategy needs a client rule, which Flower apps do not support.
    """

    def __init__(
        self, strategy: Strategy, *, weighted: bool = True, max_abs: float = 1024.0, **flower: Any
    ) -> None:
        super().__init__(**flower)
        if strategy.rule != Plain():
            raise UsageError(
                f"Expected a strategy with plain local training, got the client rule "
                f"{strategy.rule.name}, which Flower apps do not support."
            )
        self._strategy = strategy
        counts = strategy.aggregation.weighted and "examples" in strategy.weightings
        self._weighted = weighted and counts
        self._max_abs = max_abs
        self._model: dict[str, NDArray[Any]] = {}
        self._state: Any = None

    def summary(self) -> None:
        """Log the strategy, then Flower's summary."""
        log.info("the server step is %s", self._strategy)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Keep the model, and sample nodes like Flower."""
        self._model = {name: np.array(array.numpy()) for name, array in arrays.items()}
        if self._state is None:
            self._state = self._strategy.init(self._model)
        found: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return found

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002 - Flower's
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Compute the next model from the replies; replies that do not match it are left out."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        updates = [u for u in map(self._update, valid) if u is not None]
        if not updates:
            return None, None
        means = self._means(sorted(updates, key=lambda update: update.node))
        model, self._state = self._strategy.finish(self._state, self._model, means)
        contents = [message.content for message in valid]
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return ArrayRecord({n: Array(np.asarray(value)) for n, value in model.items()}), metrics

    def _update(self, message: Message) -> _Update | None:
        node = message.metadata.src_node_id
        arrays = next(iter(message.content.array_records.values()))
        metrics = next(iter(message.content.metric_records.values()))
        deltas = {}
        for name, old in self._model.items():
            new = arrays[name].numpy() if name in arrays else None
            if new is None or new.shape != old.shape:
                log.warning("left out node %d: its %s does not match the model", node, name)
                return None
            delta = np.asarray(new, np.float64) - old if old.dtype.kind in "fiub" else new - old
            if not np.all(np.abs(delta) <= self._max_abs):  # NaN too
                log.warning("left out node %d: its %s is not finite, or over max_abs", node, name)
                return None
            deltas[name] = delta
        weight = float(metrics[self.weighted_by_key]) if self._weighted else 1.0
        if not 0 < weight < np.inf:
            log.warning("left out node %d: its weight is %s", node, weight)
            return None
        return _Update(node, weight, deltas)

    def _means(self, updates: Sequence[_Update]) -> Means:
        specs = {
            (DELTA, name): TensorSpec(shape=value.shape, dtype=value.dtype)
            for name, value in self._model.items()
        }
        if not isinstance(self._strategy.aggregation, Mean):
            each = {
                f"{update.node:020d}": ArrayUpdate(
                    {(DELTA, n): (Full(), d) for n, d in update.deltas.items()}, update.weight
                )
                for update in updates
            }
            return reduced(self._strategy, self._state, ArrayUpdates(specs, each))
        total = sum(update.weight for update in updates)
        partial = Partial(specs, exponent(self._max_abs, total))
        for update in updates:
            units = weight_units(update.weight)
            for name, delta in update.deltas.items():
                partial.add_array((DELTA, name), Full(), units, delta)
            partial.count += 1
        return partial
