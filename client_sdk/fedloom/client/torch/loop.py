"""The loops of training and evaluation, independent of federation.

Invariant: on one thread, the same module, batches, seed and learning rate give the same bits.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.client.torch import batches, modules, steps
from fedloom.client.torch.batches import Batch
from fedloom.client.torch.group import ALONE, Group
from fedloom.client.torch.precision import FULL, Precision
from fedloom.client.torch.rules.corrections import corrections
from fedloom.client.torch.stopping import TorchStopRule
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule

Loss = Callable[[Any, Tensor], Tensor]
Correction = steps.Correction
MakeOptimizer = steps.MakeOptimizer
SGD = steps.SGD
nothing = steps.nothing
Stepper = steps.Stepper
Beside = Callable[[Any, Tensor], None]


_MOST_WAITING = 1 << 15
"""Numbers of outputs and losses that are kept before they are summed."""


class MetricSums:
    """Sums of the loss, and of the accuracy for class targets, over the examples so far.

    Sums stay on the device until they are read, so that steps do not wait for it. Several batches
    are summed at once, because the sums of one cost a tenth of a small model's step.
    """

    def __init__(self) -> None:
        self.num_examples = 0
        self._loss: Tensor | float = 0.0
        self._correct: Tensor | int = 0
        self._targets: Tensor | int = 0
        self._losses: list[Tensor] = []
        self._sizes: list[int] = []
        self._scored: list[tuple[Tensor, Tensor]] = []
        self._waiting = 0

    def add(self, loss: Tensor, output: Any, target: Tensor) -> None:
        """Add one batch.

        Args:
            loss: the mean over the batch.
            output: the module's; of shape (N, K, …) if it scores K classes.
            target: shape (N, …); class numbers, negative for positions without a class.
        """
        self.num_examples += len(target)
        self._losses.append(loss.detach())
        self._sizes.append(len(target))
        self._waiting += 1
        if isinstance(output, Tensor) and scores_classes(output, target):
            self._scored.append((output.detach(), target))
            self._waiting += output.numel()
        if self._waiting > _MOST_WAITING:
            self._sum()

    def metrics(self) -> dict[str, float]:
        """The means by name, without those over no examples."""
        self._sum()
        found = {"loss": float(self._loss) / self.num_examples} if self.num_examples else {}
        if num_targets := int(self._targets):
            found["accuracy"] = int(self._correct) / num_targets
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state; batches stay unsummed, because the bits depend on what is summed at once."""
        return {
            "num_examples": self.num_examples,
            "sums": [self._loss, self._correct, self._targets],
            "losses": self._losses,
            "sizes": self._sizes,
            "scored": self._scored,
            "waiting": self._waiting,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.num_examples, self._waiting = state["num_examples"], state["waiting"]
        self._loss, self._correct, self._targets = state["sums"]
        self._losses, self._sizes = list(state["losses"]), list(state["sizes"])
        self._scored = [(output, target) for output, target in state["scored"]]

    def merge(self, group: Group) -> None:
        """Add the sums of all ranks."""
        self._sum()
        mine = (self.num_examples, float(self._loss), int(self._correct), int(self._targets))
        num_examples, self._loss, correct, targets = group.sums(mine)
        self.num_examples, self._correct, self._targets = map(int, (num_examples, correct, targets))

    def _sum(self) -> None:
        if self._losses:
            losses = torch.stack(self._losses).double()
            self._loss = self._loss + (losses * losses.new_tensor(self._sizes)).sum()
        for output, target in _joined(self._scored):
            self._correct = self._correct + (output.argmax(dim=1) == target).sum()
            self._targets = self._targets + (target >= 0).sum()
        self._losses, self._sizes, self._scored, self._waiting = [], [], [], 0


def _joined(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    for _, alike in itertools.groupby(pairs, key=lambda pair: pair[0].shape[1:]):
        outputs, targets = zip(*alike, strict=True)
        yield torch.cat(outputs), torch.cat(targets)


def fit(
    module: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    optimizer: Stepper,
    *,
    correct: Correction,
    stopping: TorchStopRule,
    beside: Beside | None = None,
    precision: Precision = FULL,
    after: Correction | None = None,
    totals: MetricSums | None = None,
    stepped: Callable[[], None] | None = None,
) -> MetricSums:
    """Train on the batches, until they end or `stopping` ends the training.

    Args:
        module: trained in place.
        batches: inputs and targets.
        loss: mean loss of a batch, of outputs and targets.
        optimizer: over the parameters to train.
        correct: called after the gradients are computed and before the step.
        stopping: called before and after each step.
        beside: called with each batch before its step.
        precision: of the forward pass.
        after: called after each step, such as a schedule of the learning rate.
        totals: sums of earlier batches.
        stepped: called at the end of each iteration.
    """
    trained = [param for param in module.parameters() if param.requires_grad]
    totals = MetricSums() if totals is None else totals
    device = device_of(module)
    module.train()
    for x, y in batches:
        if stopping.should_stop():
            break
        if beside is not None:
            beside(x, y)
        optimizer.zero_grad()
        with precision.forward():
            output, target, value = forward(module, x, y, loss, device)
        precision.backward(value)
        precision.step(optimizer, trained, correct)
        if after is not None:
            after()
        stopping.watch(value, len(target))
        totals.add(value, output, target)
        if stepped is not None:
            stepped()
    optimizer.zero_grad()
    return totals


@torch.no_grad()
def measure(
    module: nn.Module, batches: Iterable[Batch], loss: Loss, precision: Precision = FULL
) -> MetricSums:
    """Evaluate on the batches."""
    totals = MetricSums()
    device = device_of(module)
    module.eval()
    for x, y in batches:
        with precision.forward():
            output, target, value = forward(module, x, y, loss, device)
        totals.add(value, output, target)
    return totals


def prepare(
    module: nn.Module,
    data: batches.ExampleSource,
    loss: Loss,
    rule: ClientRule,
    local: RuleContext,
    *,
    clip_norm: float | None = None,
    anchored: Collection[str] | None = None,
    group: Group = ALONE,
) -> Correction:
    """Prepare the clipping of gradients and a client rule.

    Args:
        module: with the received values, which are the rule's anchors.
        data: for training.
        loss: of that training.
        rule: of the round.
        local: the rule's values; gets the trained tensors.
        clip_norm: maximum norm of all gradients together; None for no limit.
        anchored: parameters that the rule applies to. Default: all; never the local ones.
        group: the ranks, each with its share of the data.

    Returns:
        The function that `fit` calls at each step.
    """
    named = dict(module.named_parameters())
    kept = local.personal.kept(named)
    params = {
        name: param
        for name, param in named.items()
        if param.requires_grad and name not in kept and (anchored is None or name in anchored)
    }
    local.trainable = frozenset(params)
    clip = clipping(module.parameters(), clip_norm)
    if rule.name == "plain" or rule.picks:
        return clip
    if rule.needs_loss or rule.needs_gradient:
        _survey(module, data, loss, rule, local, group)
    changed = corrections(rule, local, params, module)

    def correct() -> None:
        clip()
        changed()

    return correct


def clipping(params: Iterable[Tensor], clip_norm: float | None) -> Correction:
    """Clip the gradients of tensors to a joint norm; None for no limit."""
    return nothing if clip_norm is None else partial(_clip, list(params), clip_norm)


def _survey(  # noqa: PLR0917 - all parts of a pass
    module: nn.Module,
    data: batches.ExampleSource,
    loss: Loss,
    rule: ClientRule,
    local: RuleContext,
    group: Group,
) -> None:
    """Compute the mean loss over all examples, and its gradient if the rule needs it.

    In evaluation mode: without dropout, and with the received statistics of BatchNorm.
    """
    device, num_examples = device_of(module), len(data)
    trained = local.trainable or frozenset()

    def look() -> float:
        total = 0.0
        for x, y in batches.in_order(data, rank=group.rank, size=group.size):
            _, target, value = forward(module, x, y, loss, device)
            share = value * (len(target) / num_examples)
            if rule.needs_gradient:
                share.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
            total += float(share.detach())
        return total

    module.eval()
    module.zero_grad()
    with torch.set_grad_enabled(rule.needs_gradient):
        total = group.together(look)
    (local.initial_loss,) = group.sums([total])
    if rule.needs_gradient:
        named = {n: p for n, p in module.named_parameters() if n in trained}
        if group.size > 1:  # a rank without examples has no gradients, but takes part in the sums
            for param in named.values():
                param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        gradients = {n: p.grad for n, p in named.items() if p.grad is not None}
        group.sum_(gradients)
        local.full_gradient = {n: modules.array_of(g).copy() for n, g in gradients.items()}
    module.zero_grad()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which dropout uses, and restore them at the end."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        # Gives the numbers of torch.manual_seed, but without its overhead of 0.2 ms.
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed_all(seed)
        yield


def device_of(module: nn.Module) -> torch.device:
    """The device of the module's first tensor; the CPU for a module without tensors."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def scores_classes(output: Tensor, target: Tensor) -> bool:
    """Whether the outputs are scores, and the targets numbers, of classes along dimension 1."""
    return not target.is_floating_point() and output.ndim == target.ndim + 1 and output.ndim > 1


def forward(
    module: Callable[[Any], Any], x: Any, y: Tensor, loss: Loss, device: torch.device
) -> tuple[Any, Tensor, Tensor]:
    """A batch's outputs, targets on the device, and mean loss.

    Raises:
        UsageError: the loss is not one number.
    """
    target = y.to(device)
    output = module(_moved(x, device))
    value = loss(output, target)
    if value.ndim:
        raise UsageError(
            f"Expected the loss of a batch as one number, got shape {tuple(value.shape)}. "
            "Use reduction='mean'."
        )
    return output, target, value


def _clip(params: list[Tensor], clip_norm: float) -> None:
    """Scale all gradients together down to a norm (Pascanu et al. 2013, algorithm 1)."""
    nn.utils.clip_grad_norm_(params, clip_norm)


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {key: _moved(value, device) for key, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):  # a named one
        return type(x)(*(_moved(value, device) for value in x))
    if isinstance(x, list | tuple):
        return [_moved(value, device) for value in x]
    if is_dataclass(x) and not isinstance(x, type):
        moved = {each.name: _moved(getattr(x, each.name), device) for each in fields(x)}
        return replace(x, **moved)
    return x.to(device) if callable(getattr(x, "to", None)) else x
