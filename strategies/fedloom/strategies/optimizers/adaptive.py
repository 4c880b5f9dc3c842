"""Server optimizers that use the mean delta as a pseudo-gradient.

Legend: Δ mean delta, x parameters, m momentum, v variance, η server learning rate, β decay rates,
τ adaptivity.

    FedAvgM     m ← β·m + Δ;               x ← x + η·m
    adaptive    m ← β1·m + (1 - β1)·Δ;     x ← x + η·m / (√v + τ),  with v started at τ² and
      FedAdagrad    v ← v + Δ²
      FedAdam       v ← β2·v + (1 - β2)·Δ²
      FedYogi       v ← v - (1 - β2)·Δ²·sign(v - Δ²)

There is no bias correction: the paper's algorithm has none.

References:
    Reddi et al. 2021, Adaptive Federated Optimization, https://arxiv.org/abs/2003.00295,
    Algorithm 2.
    Hsu, Qi, Brown 2019, Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification, https://arxiv.org/abs/1909.06335, section 4.2.
"""

from dataclasses import dataclass

import numpy as np

from fedloom.strategies.base import ServerOptimizer
from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.partial import Floats
from fedloom.strategies.optimizers.blockwise import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """Federated averaging with server momentum (Hsu et al. 2019).

    Attributes:
        momentum: β in [0, 1).
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        ServerOptimizer.__post_init__(self)
        check_number("momentum", self.momentum, at_least=0, below=1)

    def initial(self) -> dict[str, float]:
        """Return the initial m."""
        return {"momentum": 0.0}

    def change(self, block: Block) -> Floats:
        """Return η·m."""
        m = block.slots["momentum"]
        m *= self.momentum
        m += block.delta
        return self.server_learning_rate * m


@dataclass(frozen=True, slots=True, kw_only=True)
class _Adaptive(ServerOptimizer):
    """Base of the three adaptive optimizers, which differ in the update of v.

    Attributes:
        beta_1: decay of the momentum, in [0, 1).
        tau: adaptivity τ > 0, the size of |Δ| under which steps stop growing relative to it.
    """

    server_learning_rate: float = 0.1
    beta_1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        ServerOptimizer.__post_init__(self)
        check_number("beta_1", self.beta_1, at_least=0, below=1)
        check_number("tau", self.tau, above=0)

    def initial(self) -> dict[str, float]:
        """Return the initial m and v."""
        return {"momentum": 0.0, "variance": self.tau**2}

    def change(self, block: Block) -> Floats:
        """Return η·m / (√v + τ)."""
        m, v = block.slots["momentum"], block.slots["variance"]
        m *= self.beta_1
        m += (1 - self.beta_1) * block.delta
        self._follow(v, np.square(block.delta))
        return self.server_learning_rate * m / (np.sqrt(v) + self.tau)

    def _follow(self, v: Floats, square: Floats) -> None:
        """Update v in place with Δ²."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """Adagrad on the server (Reddi et al. 2021); without momentum by default, as in the paper."""

    beta_1: float = 0.0

    def _follow(self, v: Floats, square: Floats) -> None:
        v += square


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAdam(_Adaptive):
    """Adam on the server (Reddi et al. 2021).

    Attributes:
        beta_2: decay of the variance, in [0, 1).
    """

    beta_2: float = 0.99

    def __post_init__(self) -> None:
        _Adaptive.__post_init__(self)
        check_number("beta_2", self.beta_2, at_least=0, below=1)

    def _follow(self, v: Floats, square: Floats) -> None:
        v *= self.beta_2
        v += (1 - self.beta_2) * square


@dataclass(frozen=True, slots=True, kw_only=True)
class FedYogi(_Adaptive):
    """Yogi on the server (Reddi et al. 2021): v moves by a share of Δ², whatever its own size.

    Attributes:
        beta_2: 1 - the share, in [0, 1).
    """

    beta_2: float = 0.99

    def __post_init__(self) -> None:
        _Adaptive.__post_init__(self)
        check_number("beta_2", self.beta_2, at_least=0, below=1)

    def _follow(self, v: Floats, square: Floats) -> None:
        v -= (1 - self.beta_2) * square * np.sign(v - square)
