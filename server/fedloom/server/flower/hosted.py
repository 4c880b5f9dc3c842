"""A strategy of Flower in place of this server's own, for the runs that ask for it by name.

The operator names it in `server.toml`; a run says `name = "flower:NAME"`, so that nobody who may
submit runs can have the server import anything else. Each round it is a fresh copy, given the
memory that the last committed round left, so that a killed server does the same round again.

Invariants: replies are in the order of the clients' names; a round's result depends on the model,
the updates, and what memory holds of the rounds before.
"""

import copy
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

PREFIX: Final = "flower:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A strategy of Flower as a `Strategy`; `register` makes a subclass for each name.

    Attributes:
        rule: what the devices do.
        aggregation: the strategy's own; another is refused.

    Raises:
        ValueError: it is no strategy of Flower, or one that cannot work here.
    """

    rule: ClientRule = field(default_factory=Plain)
    aggregation: Any = field(default_factory=Whole)

    load: ClassVar[Callable[[], Any]]
    weightings: ClassVar[tuple[str, ...]] = ("examples", "client", "uniform")
    needs: ClassVar[Literal["sum", "each"]] = "each"

    def __post_init__(self) -> None:
        if not isinstance(self.aggregation, Whole | Mean):
            raise ValueError(  # noqa: TRY004 - a combination, not a type
                "Expected no [aggregation] with a strategy of Flower, which does it itself, got "
                f"{self.aggregation.name}. Leave one of them out."
            )
        object.__setattr__(self, "aggregation", Whole())
        rule = self.rule
        if tuple(rule.groups) != (DELTA,) or rule.scalars or rule.receives:
            raise ValueError(
                f"Expected a client rule that sends only its update with a strategy of Flower, got "
                f"{rule.name}."
            )
        type(self).load()

    def specs(self, tensors: Mapping[str, TensorSpec]) -> dict[Key, TensorSpec]:
        """Return what updates may speak about."""
        return {(DELTA, name): spec for name, spec in tensors.items()}

    def sends(self, state: State) -> dict[str, Params]:  # noqa: ARG002 - the protocol's
        """Return nothing: clients get the model alone."""
        return {}

    def init(self, model: Params, seed: int = 0) -> State:  # noqa: ARG002 - the protocol's
        """Return the state before the first round."""
        return State()

    def finish(
        self, state: State, model: Params, means: Means
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state.

        Raises:
            TooFewUpdatesError: too few updates are whole, or the strategy made nothing of them.
            ValueError: what the strategy made does not fit the model.
        """
        from fedloom.server.flower import memory, talk  # noqa: PLC0415 - flwr

        assert isinstance(means, Kept)
        round_number = state.step + 1
        fresh = type(self).load()
        strategy = copy.deepcopy(fresh)
        memory.restore(strategy, state.slots)
        names = [name for name in model if (DELTA, name) in means.specs]
        held = {name: np.array(model[name]) for name in names}
        replies = replies_of(means.updates, held)
        values = talk.aggregated(strategy, round_number, held, replies)
        if values is None:
            raise TooFewUpdatesError(
                f"Expected a model from the strategy {type(strategy).__name__}, got none from "
                f"{len(replies)} updates."
            )
        slots, lost = memory.capture(strategy, fresh)
        if lost:
            log.warning(
                "round %d: %s keeps %s only until the round ends: it is no array and no number",
                round_number, type(strategy).__name__, ", ".join(lost),
            )  # fmt: skip
        new = {name: _fitted(name, values, model[name]) for name in names}
        return {**model, **new}, State(step=round_number, slots=slots)


def _fitted(name: str, values: Params, old: NDArray[Any]) -> NDArray[Any]:
    found = values.get(name)
    if found is None or np.shape(found) != old.shape:
        got = "none" if found is None else f"shape {np.shape(found)}"
        raise ValueError(f"Expected shape {old.shape} for {name!r} from the strategy, got {got}.")
    if not np.isfinite(found).all():
        raise ValueError(f"Expected finite values for {name!r} from the strategy, got others.")
    return as_dtype(np.asarray(found), old.dtype).reshape(old.shape)


def register(codes: Mapping[str, str], folder: Path) -> None:
    """Let runs ask for strategies of Flower by name.

    Args:
        codes: name → `FILE.py:NAME` or `MODULE:NAME`, of a strategy or of what makes one.
        folder: that files are found from: the server's.
    """
    for name, code in codes.items():
        registry.STRATEGIES[PREFIX + name] = _class(name, code, folder)


def _class(name: str, code: str, folder: Path) -> type[Hosted]:
    def loaded() -> Any:
        return _loaded(code, folder)

    return type(f"Flower_{name}", (Hosted,), {"__slots__": (), "load": staticmethod(loaded)})


@cache
def _loaded(code: str, folder: Path) -> Any:
    found = find(code, folder)
    from fedloom.server.flower import talk  # noqa: PLC0415 - flwr, which has been found

    return talk.checked(found, code)
