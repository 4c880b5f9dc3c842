"""Clients whose losses are quadratics, so that optimum and trajectory are known exactly.

Client i has the loss ½·Σ a_i·(x - c_i)², element by element. Rules, sums and server optimizers are
the real ones; only the gradient comes from the formula.
"""

from dataclasses import dataclass, field

import numpy as np

from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import (
    DELTA,
    Full,
    Partial,
    RoundSettings,
    TensorAtStep,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.exact.partial import SCALAR


@dataclass
class Quadratics:
    """A federation over one tensor, x.

    Attributes:
        a: curvatures, float64 [clients, size], > 0.
        c: the clients' own optima, float64 [clients, size].
        steps: local steps of each client.
        learning_rate: of them.
        max_abs: bound of what clients send.
    """

    a: np.ndarray
    c: np.ndarray
    steps: list[int]
    learning_rate: float
    max_abs: float = 64.0
    memory: dict[int, dict] = field(default_factory=dict)

    @property
    def optimum(self):
        """The minimum of the mean of the losses."""
        return (self.a * self.c).sum(axis=0) / self.a.sum(axis=0)

    def loss(self, client, x):
        """A client's loss."""
        return float(0.5 * (self.a[client] * (x - self.c[client]) ** 2).sum())

    def train(self, client, rule, x, received):
        """The update and memory of a client after a round from x."""
        full_gradient = self.a[client] * (x - self.c[client])
        local = RuleContext(
            received=received,
            memory=self.memory.get(client, {}),
            steps=self.steps[client],
            initial_loss=self.loss(client, x),
            full_gradient={"x": full_gradient},
        )
        got, kept = local.slots_of(rule, "x", x.shape)
        y = x.copy()
        for _ in range(self.steps[client]):
            at = TensorAtStep(
                param=y, anchor=x, received=got, memory=kept, full_gradient=full_gradient
            )
            y = y - self.learning_rate * rule.gradient(self.a[client] * (y - self.c[client]), at)
        settings = RoundSettings(
            epochs=None, steps=1, batch_size=0, learning_rate=self.learning_rate
        )
        part = TensorPart(DELTA, "x", Full(), y, x)
        return apply_rule(rule, [part], local, settings, 1)

    def round(self, strategy, state, x, cohort, weights=None):
        """The next x and state."""
        tensors = {"x": TensorSpec(shape=x.shape, dtype=x.dtype)}
        partial = Partial(strategy.specs(tensors), exponent(self.max_abs, 16.0))
        for client in cohort:
            settled = self.train(client, strategy.rule, x, strategy.sends(state))
            units = weight_units(1.0 if weights is None else weights[client])
            for part in settled.parts:
                partial.add_array(
                    (part.group, "x"), Full(), units,
                    part.values if part.less is None else part.values - part.less,
                )  # fmt: skip
            for name, value in settled.scalars.items():
                partial.add_array((SCALAR, name), Full(), units, np.array(value))
            partial.count += 1
            self.memory[client] = settled.memory
        new, state = strategy.finish(state, {"x": x}, partial)
        return new["x"], state

    def run(self, strategy, rounds, cohorts=None, weights=None, start=0.0):
        """The value of x after this many rounds."""
        x = np.full(self.a.shape[1], start)
        state = strategy.init({"x": x})
        everyone = range(len(self.a))
        for number in range(rounds):
            cohort = everyone if cohorts is None else cohorts[number % len(cohorts)]
            x, state = self.round(strategy, state, x, cohort, weights)
        return x


def heterogeneous(steps=(5, 5, 5, 5), learning_rate=0.05, seed=1):
    """Four clients with different curvatures and optima."""
    rng = np.random.default_rng(seed)
    return Quadratics(
        a=rng.uniform(0.5, 4.0, (4, 3)),
        c=rng.uniform(-2.0, 2.0, (4, 3)),
        steps=list(steps),
        learning_rate=learning_rate,
    )
