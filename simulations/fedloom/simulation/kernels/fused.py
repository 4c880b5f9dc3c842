"""Explicit gradient descent for networks of linear layers: gradient and step in one GEMM.

For a layer with input h and the gradient d of its output, plain gradient descent is
W ← W − (η/B) dᵀh, so `addmm` on W makes the step without storing a gradient. The loss's gradient at
the scores is softmax − target. The scores of an epoch are kept, [examples, classes], so that loss
and accuracy take two calls an epoch. Measured 4 times the speed of autograd on a 784-200-200-10
network with batches of 10, one thread.

Legend: x inputs, t one-hot targets, h layers' outputs, d gradients at them, B examples in a batch.

Sources: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1; Li et al. 2020
(FedProx), https://arxiv.org/abs/1812.06127, equation 2, whose pull W ← (1 − ημ) W + ημ W₀ − … goes
into the same GEMM's β.

Invariant: the examples of every step are those of `fedloom.client.torch.batches`; results differ
from `resident` only by rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedloom.client.torch import batches, loop
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.training.length import num_steps
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels import chain
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.simulation.kernels.losses import is_cross_entropy
from fedloom.simulation.kernels.one_by_one import Fitted, OneByOne
from fedloom.strategies import ClientRule, FedProx, Plain, RoundSettings

_aten = torch.ops.aten
_APPLY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
}


class Fused(OneByOne):
    """Trains chains of linear layers by cross-entropy and plain gradient descent."""

    def prepare(self) -> None:
        """Take the layers of the chain."""
        self._layers = [_Layer.of(link) for link in chain.links(self.model)]
        last = self._layers[-1].weight
        self._one_hot = torch.eye(len(last), dtype=last.dtype, device=self.device)

    @staticmethod
    def carries(
        model: nn.Module,
        loss: loop.Loss,
        rule: ClientRule,
        optimizer: loop.MakeOptimizer | None,
        population: Population | None = None,
    ) -> str:
        """See `OnModel.carries`."""
        if optimizer not in (None, loop.SGD):
            return "fused supports only plain gradient descent"
        if type(rule) not in (Plain, FedProx):
            return f"fused supports only the client rules plain and fedprox, not {rule.name!r}"
        if not is_cross_entropy(loss):
            return "fused supports only the loss cross_entropy"
        try:
            links = chain.links(model)
        except chain.NotAChainError as error:
            return str(error)
        return "" if population is None else _fits(links, population)

    @torch.no_grad()
    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:  # noqa: ARG002 - these rules have none
        """Train without autograd."""
        settings, size = task.settings, len(self.holdings.shard(job.client))
        pull = settings.learning_rate * (task.rule.mu if isinstance(task.rule, FedProx) else 0.0)
        for layer in self._layers:
            layer.start(pull)
        steps = num_steps(size, settings)
        totals = loop.MetricSums()
        x, y = self.holdings.train(job.client, torch.arange(0))
        for epoch, order in enumerate(_orders(size, steps, settings.batch_size, job.seed)):
            if order is not None or not len(y):
                x, y = self.holdings.train(job.client, order)
            inputs = self.holdings.augmented(job.client, x, (job.seed, epoch), order)
            scores = self._pass(inputs.flatten(1), y, settings, 1 - pull)
            totals.add(cross_entropy(scores, y), scores, y)
        return totals, self.state.parts()

    def _pass(self, x: Tensor, y: Tensor, settings: RoundSettings, keep: float) -> Tensor:
        """One step for each batch in order; returns the scores of each example before its step."""
        targets = self._one_hot.index_select(0, y)
        scores = torch.empty_like(targets)
        size = 0
        spaces: list[_Space] = []
        cut = (
            torch.split(tensor, settings.batch_size or len(y)) for tensor in (x, targets, scores)
        )
        for inputs, target, out in zip(*cut, strict=True):
            if len(inputs) != size:
                size, spaces = len(inputs), self._spaces(len(inputs))
            self._step(spaces, (inputs, target, out), -settings.learning_rate / size, keep)
        return scores

    def _spaces(self, batch: int) -> "list[_Space]":
        return [layer.space(batch) for layer in self._layers]

    def _step(
        self,
        spaces: "list[_Space]",
        batch: tuple[Tensor, Tensor, Tensor],
        alpha: float,
        keep: float,
    ) -> None:
        """One step on inputs, one-hot targets and a buffer for the scores; α is −η/B."""
        h, target, scores = batch
        below: list[Tensor] = []
        for layer, space in zip(self._layers, spaces, strict=True):
            below.append(h)
            h = layer.forward(h, scores if space is spaces[-1] else space.output)
        torch.softmax(scores, 1, out=spaces[-1].gradient).sub_(target)
        for number in range(len(spaces) - 1, -1, -1):
            layer, space = self._layers[number], spaces[number]
            if number:
                torch.mm(space.gradient, layer.weight, out=spaces[number - 1].gradient)
                self._layers[number - 1].backward(spaces[number - 1])
            layer.step(space, below[number], alpha, keep)


@dataclass(slots=True)
class _Space:
    """A layer's buffers for a batch.

    Attributes:
        output: h [B, out].
        gradient: d at the output before the activation, [B, out].
        gradient_t: its transpose, a view.
        ones: [B].
    """

    output: Tensor
    gradient: Tensor
    gradient_t: Tensor
    ones: Tensor


@dataclass(slots=True)
class _Layer:
    """A linear layer and its activation.

    Attributes:
        weight: shared with the model, [out, in].
        bias: shared with the model, [out].
        activation: a key of `_APPLY`, or empty.
    """

    weight: Tensor
    bias: Tensor | None
    activation: str
    weight_t: Tensor
    pull: float = 0.0
    anchors: Sequence[Tensor] = ()
    spaces: dict[int, _Space] = field(default_factory=dict)

    @classmethod
    def of(cls, link: chain.Link) -> "_Layer":
        weight = link.linear.weight.detach()
        bias = None if link.linear.bias is None else link.linear.bias.detach()
        return cls(weight, bias, link.activation, weight.t())

    def start(self, pull: float) -> None:
        """Begin a client's training, with the pull ημ towards the initial weights."""
        self.pull = pull
        held = (self.weight,) if self.bias is None else (self.weight, self.bias)
        self.anchors = tuple(tensor.clone() for tensor in held) if pull else ()

    def space(self, batch: int) -> _Space:
        """Buffers for a batch of this size; at most three sizes are kept."""
        if (found := self.spaces.get(batch)) is None:
            if len(self.spaces) > 2:
                self.spaces.clear()
            output, gradient = (self.weight.new_empty(batch, len(self.weight)) for _ in range(2))
            ones = self.weight.new_ones(batch)
            found = self.spaces[batch] = _Space(output, gradient, gradient.t(), ones)
        return found

    def forward(self, h: Tensor, out: Tensor) -> Tensor:
        if self.bias is None:
            torch.mm(h, self.weight_t, out=out)
        else:
            torch.addmm(self.bias, h, self.weight_t, out=out)
        return _APPLY[self.activation](out) if self.activation else out

    def backward(self, space: _Space) -> None:
        """The gradient after the activation becomes the one before it, in place."""
        d, h = space.gradient, space.output
        match self.activation:
            case "relu":
                _aten.threshold_backward.grad_input(d, h, 0, grad_input=d)
            case "tanh":
                _aten.tanh_backward.grad_input(d, h, grad_input=d)
            case "sigmoid":
                _aten.sigmoid_backward.grad_input(d, h, grad_input=d)

    def step(self, space: _Space, h: Tensor, alpha: float, keep: float) -> None:
        self.weight.addmm_(space.gradient_t, h, beta=keep, alpha=alpha)
        if self.bias is not None:
            self.bias.addmv_(space.gradient_t, space.ones, beta=keep, alpha=alpha)
        if self.pull:
            self.weight.add_(self.anchors[0], alpha=self.pull)
            if self.bias is not None:
                self.bias.add_(self.anchors[1], alpha=self.pull)


def _orders(num_examples: int, steps: int, batch_size: int, seed: int) -> Iterator[Tensor | None]:
    """The order of examples in each epoch, up to the last step; None for full batches."""
    if not batch_size:
        for _ in range(steps):
            yield None
        return
    per_epoch = -(-num_examples // batch_size)
    whole, rest = divmod(steps, per_epoch)
    orders = batches.orders(num_examples, seed)
    yield from islice(orders, whole)
    if rest:
        yield next(orders)[: rest * batch_size]


def _fits(links: Sequence[chain.Link], population: Population) -> str:
    """Why the data does not fit the chain; empty if it does."""
    x, y = population.examples.x, population.examples.y
    shape = population.input_shape
    wide, classes = links[0].linear.in_features, links[-1].linear.out_features
    if np.prod(shape) != wide or (len(shape) != 1 and not links[0].flattened):
        return f"inputs have shape {shape} and the first layer takes ({wide},)"
    dtype = str(links[0].linear.weight.dtype).removeprefix("torch.")
    if x.dtype.name != dtype:
        return f"inputs are {x.dtype} and the model is {dtype}"
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        return "fused needs one class number for each example"
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < classes):
        return f"fused needs class numbers from 0 to {classes - 1}"
    return ""
