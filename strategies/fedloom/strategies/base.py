"""Strategies: a rule on the device, an aggregation, and an optimizer step on the server.

    client rule → updates → means → Strategy.finish → the next model

A strategy is a frozen value; its memory between rounds is a `State`, also a value.
`ServerOptimizer` is the base class: a subclass defines `change`, the step of one block.

Invariants:
    - `finish` is a pure function of its arguments: replaying a round gives the same bits.
    - A coordinate that no update covers keeps its value and its slots, bit for bit.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.aggregation import Aggregation, Mean, Means, NotedMeans, Updates
from fedloom.strategies.checks import check_number
from fedloom.strategies.client_rules import ClientRule, Plain
from fedloom.strategies.exact.partial import SCALAR, Floats, Key, Params, TensorSpec
from fedloom.strategies.optimizers.blockwise import Block, Change, Closing, Ratio, blockwise
from fedloom.strategies.optimizers.schedules import Schedule, schedule_of
from fedloom.strategies.state import State

LAST_MEANS: Final = "last_means"
"""The slot of the last round's means, kept if the aggregation reads them."""
_SCALAR_SPEC: Final = TensorSpec(shape=(), dtype=np.dtype(np.float64))


class Strategy(Protocol):
    """Computes the next model from a round's updates."""

    @property
    def needs(self) -> Literal["sum", "sessions", "each"]:
        """Whether the strategy needs only the sum of the updates, those of sessions, or each."""

    @property
    def weightings(self) -> tuple[str, ...]:
        """Weightings that are possible, of `examples`, `client` and `uniform`."""

    @property
    def rule(self) -> ClientRule:
        """The rule of local training on devices."""

    @property
    def aggregation(self) -> Aggregation:
        """The aggregation of updates into means."""

    def specs(self, tensors: Mapping[str, TensorSpec]) -> dict[Key, TensorSpec]:
        """Return the tensors that updates to a model of these tensors may hold."""

    def sends(self, state: State) -> dict[str, Params]:
        """Return the slots that clients get beside the model, by slot and tensor."""

    def asks(self, state: State) -> Mapping[str, bool | int | float | str]:
        """Return values for clients' code in the next round, in addition to the run's config."""

    def init(self, model: Params, seed: int = 0) -> State:
        """Return the state before the first round."""

    def finish(
        self, state: State, model: Params, means: Means
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state from a round's means.

        Tensors that no update covers are returned as the same arrays.

        Raises:
            OverflowError: the strategy's memory of a tensor does not fit its dtype.
            ValueError: the means and the model do not belong together.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptimizer:
    """The base of strategies: subclasses define the step of a block.

    Attributes:
        server_learning_rate: η > 0.
        schedule: of η over the rounds.
        rule: of local training on devices.
        aggregation: of their updates.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    server_learning_rate: float = 1.0
    schedule: Schedule = field(default_factory=Schedule)
    rule: ClientRule = field(default_factory=Plain)
    aggregation: Aggregation = field(default_factory=Mean)

    broadcasts: ClassVar[tuple[str, ...]] = ()
    """Slots that clients get beside the model."""
    weightings: ClassVar[tuple[str, ...]] = ("examples", "client", "uniform")
    """What updates may be weighted by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", schedule_of(self.schedule))
        check_number("server_learning_rate", self.server_learning_rate, above=0)
        own = self.own_rule()
        if own is not None:
            if self.rule not in (Plain(), own):
                raise ValueError(
                    f"Expected no client rule with {type(self).__name__}, which has its own, "
                    f"got {self.rule.name}."
                )
            object.__setattr__(self, "rule", own)
        if lacking := [slot for slot in self.rule.receives if slot not in self.broadcasts]:
            raise ValueError(
                f"Expected a strategy that sends {', '.join(lacking)}, which the client rule "
                f"{self.rule.name} needs, got {type(self).__name__}, which does not."
            )

    @property
    def needs(self) -> Literal["sum", "sessions", "each"]:
        """Whether the strategy needs only the sum of the updates, those of sessions, or each."""
        return self.aggregation.needs

    def specs(self, tensors: Mapping[str, TensorSpec]) -> dict[Key, TensorSpec]:
        """Return the tensors that updates may hold; see `Strategy.specs`."""
        specs = {
            (group, name): spec for group in self.rule.groups for name, spec in tensors.items()
        }
        return specs | {(SCALAR, name): _SCALAR_SPEC for name in self.rule.scalars}

    def sends(self, state: State) -> dict[str, Params]:
        """Return the slots that clients get beside the model; see `Strategy.sends`."""
        return {slot: state.slots.get(slot, {}) for slot in self.broadcasts}

    def asks(self, state: State) -> Mapping[str, bool | int | float | str]:  # noqa: ARG002 - the protocol's
        """Return nothing; see `Strategy.asks`."""
        return {}

    def own_rule(self) -> ClientRule | None:
        """Return the client rule of the optimizer, or None if any rule fits."""
        return None

    def initial(self) -> dict[str, float]:
        """Return the initial value of each slot, by name."""
        return {}

    def change(self, block: Block) -> Floats:
        """Return the change of a block's parameters, and update its slots in place."""
        raise NotImplementedError

    def ratio(self) -> Ratio | None:
        """Return the factor of a whole tensor's change, or None for no factor."""
        return None

    def at_round(self, finished: int) -> Self:
        """Return the optimizer with the learning rate of the round after so many."""
        factor = self.schedule.at(finished)
        if factor == 1:
            return self
        scheduled = copy(self)
        # Not checked: a schedule may end at 0, which a setting must not be.
        object.__setattr__(scheduled, "server_learning_rate", factor * self.server_learning_rate)
        return scheduled

    def init(self, model: Params, seed: int = 0) -> State:  # noqa: ARG002 - slots are made when first covered
        """Return the state before the first round."""
        return State()

    def finish(
        self, state: State, model: Params, means: Means
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state; see `Strategy.finish`."""
        initial, optimizer = self.initial(), self.at_round(state.step)
        if self.aggregation.remembers:
            initial[LAST_MEANS] = 0.0
        new_model, slots = blockwise(
            _noting(optimizer.change) if self.aggregation.remembers else optimizer.change,
            model,
            means,
            state.slots,
            initial=initial,
            groups=self.rule.groups,
            ratio=optimizer.ratio(),
            closing=_closing(state, means, self.rule.scalars),
        )
        return new_model, State(step=state.step + 1, slots=slots)


def _noting(change: Change) -> Change:
    """Return the same change; also store the means for the next round's aggregation."""

    def noted(block: Block) -> Floats:
        block.slots[LAST_MEANS][:] = block.delta
        return change(block)

    return noted


def reduced(strategy: Strategy, state: State, updates: Updates) -> NotedMeans:
    """Return the means of a round whose aggregation reads each update.

    Raises:
        TooFewUpdatesError: the aggregation needs more or other updates.
    """
    return strategy.aggregation.reduce(updates, state.slots.get(LAST_MEANS, {}))


def _closing(state: State, means: Means, scalars: tuple[str, ...]) -> Closing:
    found = {}
    for name in scalars:
        mean, covered = means.mean_block((SCALAR, name), 0, 1)
        if np.all(covered):
            found[name] = float(mean[0])
    return Closing(step=state.step, count=means.count, scalars=found)
