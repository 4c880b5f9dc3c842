"""Federations on quadratics with compressed updates and models, by the real codecs and strategies.

Client i has the loss ½·Σ a_i·(w - c_i)² of a matrix w; only its gradient comes from the formula.
"""

from dataclasses import dataclass, field

import numpy as np

from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.client.update.compress import compress
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors import model_differences
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

SHAPE = (12, 20)
SPECS = {"w": TensorSpec(shape=SHAPE, dtype=np.dtype(np.float32))}
MANIFEST = Manifest(dtypes={"w": "F32"}, specs=SPECS, size_bytes=960)


@dataclass
class Federation:
    """Clients that all take part in every round.

    Attributes:
        strategy: of the server, with its client rule.
        up: encoding of updates; None for none.
        down: codec of differences between models; None for none.
        spread: of the clients' own optima about their common one.
        clients: number of them.
        steps: local ones.
        learning_rate: of them.
    """

    strategy: object
    up: object = None
    down: object = None
    spread: float = 0.1
    clients: int = 3
    steps: int = 2
    learning_rate: float = 0.1
    memory: dict = field(default_factory=dict)

    def __post_init__(self):
        rng = np.random.default_rng(7)
        common = rng.normal(size=SHAPE)
        shape = (self.clients, *SHAPE)
        self.c = (common + self.spread * rng.normal(size=shape)).astype(np.float32)
        self.a = rng.uniform(0.8, 1.2, size=shape).astype(np.float32)

    def run(self, rounds):
        """The mean of the models of the last third of the rounds, which removes noise.

        Of several models (IFCA) the one that fits all clients best.
        """
        model = {"w": np.zeros(SHAPE, np.float32)}
        state, held, late = self.strategy.init(model), model, []
        for number in range(1, rounds + 1):
            new, state = self._round(number, state, model, held)
            if self.down is None:
                held = new
            else:
                seed = task_seed(0, number, "")
                held = model_differences.make(held, new, MANIFEST, self.down, seed).result
            model = new
            if number > rounds * 2 // 3:
                beside = (state.slots[slot]["w"] for slot in self.strategy.broadcasts)
                models = [model["w"], *(beside if self.strategy.rule.picks else ())]
                best = min(models, key=lambda w: sum(map(self._loss, range(self.clients), [w] * 9)))
                late.append(best.astype(np.float64))
        return np.mean(late, axis=0)

    def _round(self, number, state, model, held):
        partial = Partial(self.strategy.specs(SPECS), exponent(64.0, 16.0))
        sends = self.strategy.sends(state)
        for client in range(self.clients):
            parts, scalars = self._client(client, number, sends, held)
            for part in parts:
                values = part.coded.decode().reshape(SHAPE) if part.coded else part.sent(np.float32)
                partial.add_array((part.group, "w"), Full(), weight_units(1.0), np.asarray(values))
            for name, value in scalars.items():
                partial.add_array((SCALAR, name), Full(), weight_units(1.0), np.array(value))
            partial.count += 1
        return self.strategy.finish(state, model, partial)

    def _client(self, client, number, received, held):
        rule, memory = self.strategy.rule, self.memory.get(client, {})
        local = RuleContext(received=received, memory=memory, steps=self.steps)
        start = held["w"]
        if rule.picks:
            models = [local.model(n, held, rule)["w"] for n in range(len(rule.groups))]
            local.cluster = int(np.argmin([self._loss(client, m) for m in models]))
            start = models[local.cluster]
        if rule.needs_loss:
            local.initial_loss = self._loss(client, start)
        if rule.needs_gradient:
            local.full_gradient = {"w": self.a[client] * (start - self.c[client])}
        got, kept = local.slots_of(rule, "w", SHAPE)
        w = start.copy()
        for _ in range(self.steps):
            at = TensorAtStep(param=w, anchor=start, received=got, memory=kept)
            grad = rule.gradient(self.a[client] * (w - self.c[client]), at)
            w = (w - self.learning_rate * grad).astype(np.float32)
        settings = RoundSettings(
            epochs=None, steps=1, batch_size=0, learning_rate=self.learning_rate
        )
        made = apply_rule(rule, [TensorPart(DELTA, "w", Full(), w, held["w"])], local, settings, 1)
        after, parts = dict(made.memory), made.parts
        if self.up is not None:
            seed = task_seed(0, number, f"client-{client}")
            done = compress(self.up, parts, MANIFEST, seed, memory)
            parts, after = done.parts, after | done.memory
        self.memory[client] = after
        return parts, made.scalars

    def _loss(self, client, w):
        return float(0.5 * (self.a[client] * (w - self.c[client]) ** 2).mean())
