"""A Flower strategy in place of this server's own, for runs that name it.

The operator names the code in `server.toml`, and a run selects it by `name = "flower:NAME"`, so
users who submit runs cannot make the server import other code. Each round uses a fresh copy with
the memory of the last committed round, so a restarted server repeats a round with the same result.

Values that the strategy sends to clients in a round become part of that round's task. A strategy
may also change the config that it gets, from round to round; that is kept with its memory.

Invariants: replies are in the order of the clients' names; a round's result depends only on the
model, the updates, and the memory of earlier rounds.
"""

import copy
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.server.flower.loading import find
from fedloom.server.flower.whole import Kept, Whole, as_dtype, replies_of
from fedloom.strategies import (
    DELTA,
    ClientRule,
    Key,
    Mean,
    Means,
    Params,
    Plain,
    State,
    TensorSpec,
    TooFewUpdatesError,
    registry,
)

log = logging.getLogger(__name__)

_GIVEN: Final = "config:given"
"""The slot of the config that the strategy gets in the next round, if it differs from the run's."""
_TOLD: Final = "config:told"
"""The slot of the values that clients get in the next round."""
_VALUE: Final = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A Flower strategy as a `Strategy`; `register` makes a subclass for each name.

    Attributes:
        rule: the client rule.
        aggregation: must be the default: the Flower strategy aggregates.
        config: of the run, which the strategy gets in the first round.

    Raises:
        ValueError: it is not a Flower strategy, or is not supported.
    """

    rule: ClientRule = field(default_factory=Plain)
    aggregation: Any = field(default_factory=Whole)
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    load: ClassVar[Callable[[], Any]]
    weightings: ClassVar[tuple[str, ...]] = ("examples", "client", "uniform")
    needs: ClassVar[Literal["sum", "each"]] = "each"

    def __post_init__(self) -> None:
        if not isinstance(self.aggregation, Whole | Mean):
            raise ValueError(  # noqa: TRY004 - a combination, not a type
                "A Flower strategy aggregates itself, but [aggregation] names "
                f"{self.aggregation.name}. Remove one of them."
            )
        object.__setattr__(self, "aggregation", Whole())
        rule = self.rule
        if tuple(rule.groups) != (DELTA,) or rule.scalars or rule.receives:
            raise ValueError(
                f"A Flower strategy needs a client rule that sends only its update, got "
                f"{rule.name}."
            )
        type(self).load()

    def specs(self, tensors: Mapping[str, TensorSpec]) -> dict[Key, TensorSpec]:
        """Return the tensors of updates."""
        return {(DELTA, name): spec for name, spec in tensors.items()}

    def sends(self, state: State) -> dict[str, Params]:  # noqa: ARG002 - the protocol's
        """Return nothing: clients get only the model."""
        return {}

    def asks(self, state: State) -> Mapping[str, bool | int | float | str]:
        """Return the values that the strategy sends to clients in the next round."""
        return _read(state, _TOLD) or {}

    def init(self, model: Params, seed: int = 0) -> State:  # noqa: ARG002 - the protocol's
        """Return the state before the first round.

        Raises:
            UsageError: the strategy cannot configure its rounds, or sends what clients cannot get.
        """
        from fedloom.server.flower import talk  # noqa: PLC0415 - flwr

        fresh = type(self).load()
        talk.try_rounds(copy.deepcopy(fresh), model, self.config)
        return State(slots=self._next(fresh, 1, model, self.config))

    def _next(
        self, strategy: Any, number: int, model: Params, given: Mapping[str, Any]
    ) -> dict[str, Params]:
        """The slots of the next round's config."""
        from fedloom.server.flower import talk  # noqa: PLC0415 - flwr

        told = talk.told(copy.deepcopy(strategy), number, model, dict(given), self.config)
        slots = {_TOLD: told, _GIVEN: {} if given == self.config else given}
        return {name: {_VALUE: _written(values)} for name, values in slots.items() if values}

    def finish(
        self, state: State, model: Params, means: Means
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state.

        Raises:
            TooFewUpdatesError: too few updates cover the whole model, or the strategy returned no
                model.
            ValueError: the strategy's result does not match the model.
        """
        from fedloom.server.flower import memory, talk  # noqa: PLC0415 - flwr

        assert isinstance(means, Kept)
        round_number = state.step + 1
        fresh = type(self).load()
        strategy = copy.deepcopy(fresh)
        memory.restore(strategy, {n: s for n, s in state.slots.items() if n not in {_GIVEN, _TOLD}})
        given = dict(_read(state, _GIVEN) or self.config)
        names = [name for name in model if (DELTA, name) in means.specs]
        held = {name: np.array(model[name]) for name in names}
        replies = replies_of(means.updates, held)
        values = talk.aggregated(strategy, round_number, held, replies, given)
        if values is None:
            raise TooFewUpdatesError(
                f"The strategy {type(strategy).__name__} returned no model for {len(replies)} "
                "updates."
            )
        slots, lost = memory.capture(strategy, fresh)
        if lost:
            log.warning(
                "round %d: %s loses %s after the round: only arrays and numbers are kept",
                round_number, type(strategy).__name__, ", ".join(lost),
            )  # fmt: skip
        new = {**model, **{name: _fitted(name, values, model[name]) for name in names}}
        after = copy.deepcopy(fresh)
        memory.restore(after, slots)
        slots |= self._next(after, round_number + 1, new, given)
        return new, State(step=round_number, slots=slots)


def _written(values: Mapping[str, Any]) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(dict(values)).encode(), np.uint8)


def _read(state: State, slot: str) -> dict[str, Any]:
    found = state.slots.get(slot)
    return {} if found is None else json.loads(np.asarray(found[_VALUE], np.uint8).tobytes())


def _fitted(name: str, values: Params, old: NDArray[Any]) -> NDArray[Any]:
    found = values.get(name)
    if found is None or np.shape(found) != old.shape:
        got = "none" if found is None else f"shape {np.shape(found)}"
        raise ValueError(f"Expected shape {old.shape} for {name!r} from the strategy, got {got}.")
    if not np.isfinite(found).all():
        raise ValueError(f"Expected finite values for {name!r} from the strategy, got NaN or inf.")
    return as_dtype(np.asarray(found), old.dtype).reshape(old.shape)


def register(codes: Mapping[str, str], folder: Path) -> None:
    """Make Flower strategies available to runs by name.

    Args:
        codes: name → `FILE.py:NAME` or `MODULE:NAME` of a strategy, or of a function that makes
            one.
        folder: the server's state directory, where files are searched.
    """
    for name, code in codes.items():
        registry.STRATEGIES[registry.HOSTED + name] = _class(name, code, folder)


def _class(name: str, code: str, folder: Path) -> type[Hosted]:
    def loaded() -> Any:
        return _loaded(code, folder)

    return type(f"Flower_{name}", (Hosted,), {"__slots__": (), "load": staticmethod(loaded)})


@cache
def _loaded(code: str, folder: Path) -> Any:
    found = find(code, folder)
    from fedloom.server.flower import talk  # noqa: PLC0415 - it imports flwr

    return talk.checked(found, code)
