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

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
from fedloom.strategies import ClientRule, FedProx, Plain
from fedloom.strategies.exact.compiled import Compiled, is_available

_FEW: Final = 16
"""Largest batch for which `chain_steps` is faster than a library's matrix products."""
_FEW_IF_SMALL: Final = 64
_SMALL: Final = 1 << 15
"""Weights of a chain in which it is faster for larger batches, too."""


class Fused(OneByOne):
    """Trains chains of linear layers by cross-entropy and plain gradient descent."""

    def prepare(self) -> None:
        """Take the layers of the chain."""
        self._chain = _chain_of(chain.links(self.model))
        last = self._chain.weights[-1]
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

    @staticmethod
    def load(model: nn.Module, batch_size: int) -> None:
        """See `OnModel.load`."""
        layers = _chain_of(chain.links(model))
        if batch_size and _has_few(layers, batch_size):
            x = layers.weights[0].new_zeros(1, layers.weights[0].size(1))
            y, scores = torch.zeros(1, dtype=torch.int64), x.new_empty(1, len(layers.weights[-1]))
            _take_few(layers, layers, x, y, scores, batch_size=1, rate=0.0, pull=0.0)

    @torch.no_grad()
    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:  # noqa: ARG002 - these rules have none
        """Train without autograd."""
        settings, size = task.settings, len(self.holdings.shard(job.client))
        pull = settings.learning_rate * (task.rule.mu if isinstance(task.rule, FedProx) else 0.0)
        start = _copy(self._chain) if pull else self._chain
        steps = num_steps(size, settings)
        totals = loop.MetricSums()
        x, y = self.holdings.train(job.client, torch.arange(0))
        for epoch, order in enumerate(_orders(size, steps, settings.batch_size, job.seed)):
            if order is not None or not len(y):
                x, y = self.holdings.train(job.client, order)
            inputs = self.holdings.augmented(job.client, x, (job.seed, epoch), order).flatten(1)
            scores = inputs.new_empty(len(y), len(self._one_hot))
            together = min(settings.batch_size or len(y), len(y))
            is_few = _has_few(self._chain, together)
            take_steps = _take_few if is_few else self._take_many
            take_steps(
                *(self._chain, start, inputs, y, scores),
                batch_size=together, rate=settings.learning_rate, pull=pull,
            )  # fmt: skip
            totals.add(cross_entropy(scores, y), scores, y)
        return totals, self.state.parts()

    def _take_many(
        self, layers: "_Chain", start: "_Chain", x: Tensor, y: Tensor, scores: Tensor,
        *, batch_size: int, rate: float, pull: float,
    ) -> None:  # fmt: skip
        targets = self._one_hot.index_select(0, y)
        _compiled()(layers, start, x, targets, scores, batch_size=batch_size, rate=rate, pull=pull)


class _Chain(NamedTuple):
    """Linear layers, each with an activation; the tensors are shared with the model.

    Attributes:
        weights: of each layer, [out, in].
        biases: [out], or [0] where the layer has none.
        activations: "relu", "tanh", "sigmoid", or empty.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    activations: list[str]


def _chain_of(links: Sequence[chain.Link]) -> _Chain:
    weights = [link.linear.weight.detach() for link in links]
    biases = [
        weight.new_empty(0) if link.linear.bias is None else link.linear.bias.detach()
        for link, weight in zip(links, weights, strict=True)
    ]
    return _Chain(weights, biases, [link.activation for link in links])


def _copy(layers: _Chain) -> _Chain:
    weights, biases = ([tensor.clone() for tensor in each] for each in layers[:2])
    return _Chain(weights, biases, layers.activations)


# ---- compiled by numba --------------------------------------------------------------------------


def _has_few(layers: _Chain, batch_size: int) -> bool:
    """Whether `chain_steps` has the steps of a chain, and is faster for batches of this size."""
    num_weights = sum(weight.numel() for weight in layers.weights)
    return (
        layers.weights[0].is_cpu
        and batch_size <= (_FEW_IF_SMALL if num_weights <= _SMALL else _FEW)
        and all(activation == "relu" for activation in layers.activations[:-1])
        and _for_few() is not None
    )


def _take_few(
    layers: _Chain, start: _Chain, x: Tensor, y: Tensor, scores: Tensor,
    *, batch_size: int, rate: float, pull: float,
) -> None:  # fmt: skip
    """Take one step for each batch in order, as `_train`; y are the classes."""
    (weights, biases), before = _arrays(layers), _arrays(start)
    outputs, gradients = (
        tuple(np.empty((batch_size, len(weight)), weight.dtype) for weight in weights)
        for _ in range(2)
    )
    take_steps = _for_few()
    assert take_steps is not None  # else `_has_few` is false
    take_steps(
        *(weights, biases, *before, x.contiguous().numpy(), y.contiguous().numpy()),
        *(scores.numpy(), outputs, gradients, rate, pull),
    )


def _arrays(layers: _Chain) -> tuple[tuple[NDArray[Any], ...], ...]:
    """The weights and the biases, in the same memory."""
    weights, biases = (tuple(tensor.numpy() for tensor in each) for each in layers[:2])
    return weights, biases


@cache
def _for_few() -> Compiled | None:
    """`chain_steps.train`; None without numba."""
    if not is_available():
        return None
    from fedloom.simulation.kernels import chain_steps  # noqa: PLC0415 - loads a compiler

    return chain_steps.train


# ---- compiled by TorchScript, so in the part of Python that it has ------------------------------


def _train(
    layers: _Chain, start: _Chain, x: Tensor, targets: Tensor, scores: Tensor,
    *, batch_size: int, rate: float, pull: float,
) -> None:  # fmt: skip
    """Take one step for each batch in order.

    Args:
        layers: of the model.
        start: their values before the client's training; read if there is a pull.
        x: [examples, in].
        targets: one-hot, [examples, classes].
        scores: of each example before its step; written, [examples, classes].
        batch_size: examples of a step; the last one may have fewer.
        rate: η.
        pull: ημ, towards the values of `start`.
    """
    weights, last = layers.weights, len(layers.weights) - 1
    ones, outputs, gradients = _spaces(weights, 0)
    for begin in range(0, x.size(0), batch_size):
        h = x[begin : begin + batch_size]
        if h.size(0) != ones.size(0):
            ones, outputs, gradients = _spaces(weights, h.size(0))
        outputs[last] = scores[begin : begin + batch_size]
        below = [h]
        for k, out in enumerate(outputs):
            _forward(layers, k, h, out)
            h = out
            below.append(h)
        torch.softmax(h, 1, out=gradients[last])
        gradients[last].sub_(targets[begin : begin + batch_size])
        for k in range(last, -1, -1):
            d = gradients[k]
            if k > 0:
                torch.mm(d, weights[k], out=gradients[k - 1])
                _backward(layers.activations[k - 1], gradients[k - 1], below[k])
            of = rate / ones.size(0)
            _step(layers, start, k, d.t(), below[k], ones=ones, rate=of, pull=pull)


def _spaces(weights: list[Tensor], size: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """For a batch of this size: ones [B]; of each layer h and d at its output, [B, out]."""
    outputs = [weight.new_empty([size, weight.size(0)]) for weight in weights]
    return weights[0].new_ones([size]), outputs, [torch.empty_like(out) for out in outputs]


def _forward(layers: _Chain, k: int, h: Tensor, out: Tensor) -> None:
    weight, bias, activation = layers.weights[k], layers.biases[k], layers.activations[k]
    if bias.size(0) > 0:
        torch.addmm(bias, h, weight.t(), out=out)
    else:
        torch.mm(h, weight.t(), out=out)
    if activation == "relu":
        torch.relu_(out)
    elif activation == "tanh":
        torch.tanh_(out)
    elif activation == "sigmoid":
        torch.sigmoid_(out)


def _backward(activation: str, d: Tensor, h: Tensor) -> None:
    """The gradient after an activation with output h becomes the one before it, in place."""
    if activation == "relu":
        torch.ops.aten.threshold_backward(d, h, 0, grad_input=d)
    elif activation == "tanh":
        torch.ops.aten.tanh_backward(d, h, grad_input=d)
    elif activation == "sigmoid":
        torch.ops.aten.sigmoid_backward(d, h, grad_input=d)


def _step(
    layers: _Chain, start: _Chain, k: int, d_t: Tensor, h: Tensor,
    *, ones: Tensor, rate: float, pull: float,
) -> None:  # fmt: skip
    weight, bias = layers.weights[k], layers.biases[k]
    weight.addmm_(d_t, h, beta=1 - pull, alpha=-rate)
    if bias.size(0) > 0:
        bias.addmv_(d_t, ones, beta=1 - pull, alpha=-rate)
    if pull != 0.0:
        weight.add_(start.weights[k], alpha=pull)
        bias.add_(start.biases[k], alpha=pull)


@cache
def _compiled() -> Callable[..., None]:
    """`_train` without Python's interpreter, with the same bits; itself where that cannot be had.

    A step of a small network takes 16 calls of torch, and Python took a third of its time.
    TorchScript is deprecated; its successors need a C++ compiler on the machine that runs this.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            found: Callable[..., None] = torch.jit.script(_train)
        except (AttributeError, OSError, RuntimeError):  # no such compiler, or no source file
            return _train
    return found


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
