"""Local optimizers: for which of them the formulas of a client rule hold.

Local training chooses its optimizer itself. Rules that only change the gradient of a loss accept
any: each step is one on the changed loss. Rules that read gradients back from an update must know
how they entered it:

    x_0 - x_K = η · Σ a_k · g_k,   ‖a‖₁ = Σ a_k:   (x_0 - x_K) / (η · ‖a‖₁) is their mean

Legend: η the task's learning rate, x_0 the received parameters, K steps, g_k the gradients as the
rule changed them, with weight decay as a part of the loss, a_k >= 0 their weights.

Source: Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, https://arxiv.org/abs/2007.07481, section 3.1 (the weights of local momentum and of
changing learning rates) and equation 6.
"""

from dataclasses import dataclass
from enum import IntEnum


class LocalSteps(IntEnum):
    """Kinds of local steps, each a special case of the next one."""

    CONSTANT = 0
    """Gradient descent at the task's learning rate: every a_k is 1."""
    DESCENT = 1
    """Gradient descent at any learning rates."""
    LINEAR = 2
    """Weights a that do not depend on gradients: with momentum and weight decay too."""
    ANY = 3
    """Any optimizer."""


@dataclass(frozen=True, slots=True)
class LocalOptimizer:
    """The optimizer of a client's local training.

    Attributes:
        name: for messages, with the settings that matter.
        steps: that it takes.
    """

    name: str
    steps: LocalSteps


@dataclass(slots=True)
class StepWeights:
    """‖a‖₁ of gradient descent with momentum: how far gradients of 1 would go at a rate of η = 1.

    Attributes:
        velocity: of the momentum; None before the first step.
    """

    velocity: float | None = None

    def next(
        self, rate: float, momentum: float = 0.0, dampening: float = 0.0, *, nesterov: bool = False
    ) -> float:
        """Return what a step adds to ‖a‖₁.

        Args:
            rate: learning rate of the step, divided by η.
            momentum: in [0, ∞).
            dampening: in [0, 1], of all gradients but the first.
            nesterov: whether the step looks ahead.
        """
        if not momentum:
            return rate
        first = self.velocity is None
        self.velocity = 1.0 if first else momentum * (self.velocity or 0.0) + 1 - dampening
        return rate * (1 + momentum * self.velocity if nesterov else self.velocity)
