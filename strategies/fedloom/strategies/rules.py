"""Client rules: what a device does to its gradient before it steps.

They use arithmetic operators only, so the same rule serves numpy arrays and torch tensors.

References:
    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
    Data, https://arxiv.org/abs/1602.05629.
    Li et al. 2020, Federated Optimization in Heterogeneous Networks (FedProx),
    https://arxiv.org/abs/1812.06127, equation 2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedloom.strategies.checks import check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Local training as it is (McMahan et al. 2017)."""

    name: ClassVar[str] = "plain"

    def settings(self) -> dict[str, float]:
        """Return no settings: there are none."""
        return {}

    def gradient(self, grad: Any, param: Any, anchor: Any) -> Any:  # noqa: ARG002 - the protocol's
        """Return the gradient as it came."""
        return grad


@dataclass(frozen=True, slots=True, kw_only=True)
class FedProx:
    """Local training on loss + mu/2 · |param - anchor|² (Li et al. 2020).

    Attributes:
        mu: weight of the proximal term, >= 0; 0 is plain training. The paper tries 0.001 to 1.

    Raises:
        TypeError: mu is not a number.
        ValueError: mu is out of range.
    """

    name: ClassVar[str] = "fedprox"
    mu: float

    def __post_init__(self) -> None:
        check_number("mu", self.mu, at_least=0)

    def settings(self) -> dict[str, float]:
        """Return mu."""
        return {"mu": float(self.mu)}

    def gradient(self, grad: Any, param: Any, anchor: Any) -> Any:
        """Return grad + mu · (param - anchor)."""
        return grad + self.mu * (param - anchor)
