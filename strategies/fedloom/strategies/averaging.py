"""Weighted federated averaging of whatever each client sent.

References:
    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
    Data, https://arxiv.org/abs/1602.05629, Algorithm 1.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

from fedloom.strategies.algebra import Floats, Params, Partial
from fedloom.strategies.base import DELTA, ClientRule, State, blockwise
from fedloom.strategies.checks import check_number
from fedloom.strategies.rules import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg:
    """x ← x + server_learning_rate · mean delta.

    With the default rate of 1 and clients that send whole models this is FedAvg as published;
    with `LocalTraining(steps=1, batch_size=None)` on the devices it is FedSGD.

    Attributes:
        server_learning_rate: > 0.
        rule: what the devices do.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    needs: ClassVar[Literal["sum"]] = "sum"
    groups: ClassVar[tuple[str, ...]] = (DELTA,)

    server_learning_rate: float = 1.0
    rule: ClientRule = field(default_factory=Plain)

    def __post_init__(self) -> None:
        check_number("server_learning_rate", self.server_learning_rate, above=0)

    def init(self, model: Params) -> State:  # noqa: ARG002 - nothing to remember
        """Return the state before the first round."""
        return State()

    def finish(
        self, state: State, model: Params, partial: Partial
    ) -> tuple[dict[str, NDArray[Any]], State]:
        """Return the next model and state; see `Strategy.finish`."""
        new_model, _ = blockwise(self._change, model, partial, {})
        return new_model, State(step=state.step + 1)

    def _change(self, delta: Floats, slots: dict[str, Floats]) -> Floats:  # noqa: ARG002 - has none
        return self.server_learning_rate * delta
