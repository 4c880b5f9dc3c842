"""Own models of clients beside the shared one: Ditto and APFL.

They use arithmetic operators only, so the same code serves numpy arrays and torch tensors.

Legend: v the client's own parameters, w the shared ones as this client trains them, w₀ as the
server sent them, α the share of v in the model that is evaluated.

References:
    Li et al. 2021, Ditto: Fair and Robust Federated Learning Through Personalization,
    https://arxiv.org/abs/2012.04221, Algorithm 1.
    Deng et al. 2020, Adaptive Personalized Federated Learning (APFL),
    https://arxiv.org/abs/2003.13461, Algorithm 1 and equation 10.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from fedloom.strategies.checks import check_number, check_share


class OwnModel(Protocol):
    """Trains and evaluates a client's own model: `own` is v, `shared` w, `received` w₀, `mix` α."""

    @property
    def start(self) -> float:
        """The initial α of a client."""

    def point(self, own: Any, shared: Any, mix: float) -> Any:
        """Return the parameters for evaluation and for gradients."""

    def gradient(self, grad: Any, own: Any, received: Any, mix: float) -> Any:
        """Return the gradient for v from that of the loss at the point."""

    def next_mix(self, mix: float, slope: float) -> float:
        """Return the α of the next step.

        The slope is that of the loss over α: the inner product of v - w and the gradient at the
        point.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ditto:
    """v minimises the client's own loss + pull/2 · |v - w₀|² (Li et al. 2021).

    Attributes:
        pull: λ >= 0; 0 trains without the shared model, a larger value keeps v closer to it.
    """

    pull: float

    def __post_init__(self) -> None:
        check_number("personal.pull", self.pull, at_least=0)

    @property
    def start(self) -> float:
        """1: v alone is evaluated."""
        return 1.0

    def point(self, own: Any, shared: Any, mix: float) -> Any:  # noqa: ARG002 - only v is used
        """Return v."""
        return own

    def gradient(self, grad: Any, own: Any, received: Any, mix: float) -> Any:  # noqa: ARG002
        """Return g + λ(v - w₀)."""
        return grad + self.pull * (own - received)

    def next_mix(self, mix: float, slope: float) -> float:  # noqa: ARG002
        """Return α unchanged."""
        return mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Apfl:
    """α·v + (1 - α)·w minimises the client's own loss by v, and by α too (Deng et al. 2020).

    Attributes:
        mix: initial α, from 0 (the shared model alone) to 1.
        mix_learning_rate: of α, >= 0; 0 keeps it constant.
    """

    mix: float
    mix_learning_rate: float

    def __post_init__(self) -> None:
        check_share("personal.mix", self.mix)
        check_number("personal.mix_learning_rate", self.mix_learning_rate, at_least=0)

    @property
    def start(self) -> float:
        """As set."""
        return self.mix

    def point(self, own: Any, shared: Any, mix: float) -> Any:
        """Return α·v + (1 - α)·w."""
        return mix * own + (1 - mix) * shared

    def gradient(self, grad: Any, own: Any, received: Any, mix: float) -> Any:  # noqa: ARG002
        """Return α·g."""
        return mix * grad

    def next_mix(self, mix: float, slope: float) -> float:
        """Return α minus its learning rate times the slope, clipped to 0 to 1."""
        return min(1.0, max(0.0, mix - self.mix_learning_rate * slope))
