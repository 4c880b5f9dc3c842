"""A client rule over the gradients of a module, in little memory beside them.

What a rule receives and remembers is as large as the model, and so is what it makes of gradients.
An elementwise rule looks at some rows of a large tensor at a time: what it makes goes into the
gradient's place, and what rests in files of this device is read from them at every step, from the
system's cache as a rule. For SCAFFOLD over 40 MB, on one core, a step of the rule then takes 14 to
19 ms; with whole tensors in memory, 24 to 33.

Invariant: gradients get the bits that the rule makes of whole tensors.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.client.torch.steps import Correction
from fedloom.client.training.client_rule import RuleContext
from fedloom.strategies import ClientRule, TensorAtStep
from fedloom.strategies.exact.lazy_arrays import BLOCK, Pieces, Values


def corrections(
    rule: ClientRule, local: RuleContext, params: Mapping[str, nn.Parameter], module: nn.Module
) -> Correction:
    """Return what changes gradients by a rule, and nothing where it leaves them alone.

    Args:
        rule: of the round.
        local: what it has here.
        params: that it is for, with the values that the server sent.
        module: that they are of.
    """
    if type(rule).gradient is ClientRule.gradient:
        return _nothing
    whole = {p: _at(rule, local, n, p) for n, p in params.items() if not _is_cut(rule, p)}
    cut = {p: _at(rule, local, n, p) for n, p in params.items() if _is_cut(rule, p)}

    @torch.no_grad()
    def correct() -> None:
        for param, at in whole.items():
            if param.grad is not None:
                param.grad = rule.gradient(param.grad, at)
        shared = _shared(module.parameters()) if cut else set()
        for param, at in cut.items():
            if param.grad is None:
                continue
            if _storage(param.grad) in shared:
                param.grad = rule.gradient(param.grad, _rows(at, 0, len(param)))
            else:
                _change(param.grad, rule, at)

    return correct


def _nothing() -> None:
    """Leave gradients as they are."""


def _is_cut(rule: ClientRule, param: nn.Parameter) -> bool:
    """Whether a rule looks at some rows of a parameter at a time.

    On a GPU what there is stays whole, and there: to bring it at every step would take longer.
    """
    return rule.elementwise and param.device.type == "cpu" and param.numel() > BLOCK


def _at(rule: ClientRule, local: RuleContext, name: str, param: nn.Parameter) -> TensorAtStep:
    """What there is beside a parameter; where that is cut, slots may still be in their files."""
    keep = _is_cut(rule, param)
    received, memory = local.found(rule, name)
    gradient = local.full_gradient.get(name)
    return TensorAtStep(
        param=param,
        anchor=param.detach().clone() if rule.needs_anchor else None,
        received={n: _slot(values, param, keep=keep) for n, values in received.items()},
        memory={n: _slot(values, param, keep=keep) for n, values in memory.items()},
        full_gradient=None if gradient is None else torch.from_numpy(gradient).to(param),
    )


def _slot(values: Values | None, param: Tensor, *, keep: bool) -> Tensor | Pieces:
    if values is None:
        return param.new_zeros(()).expand(param.shape)  # of one number in memory
    if keep and isinstance(values, Pieces):
        return values
    return torch.from_numpy(np.array(values)).to(param)


def _change(grad: Tensor, rule: ClientRule, at: TensorAtStep) -> None:
    """Put a rule's gradient in the place of one."""
    step = max(1, BLOCK // math.prod(grad.shape[1:]))
    for start in range(0, len(grad), step):
        stop = min(start + step, len(grad))
        grad[start:stop] = rule.gradient(grad[start:stop], _rows(at, start, stop))


def _rows(at: TensorAtStep, start: int, stop: int) -> TensorAtStep:
    """The same for some rows of the tensor."""
    read = partial(_read, param=at.param, start=start, stop=stop)
    return TensorAtStep(
        param=at.param[start:stop],
        anchor=None if at.anchor is None else at.anchor[start:stop],
        received={name: read(slot) for name, slot in at.received.items()},
        memory={name: read(slot) for name, slot in at.memory.items()},
        full_gradient=None if at.full_gradient is None else at.full_gradient[start:stop],
    )


def _read(slot: Tensor | Pieces, param: Tensor, start: int, stop: int) -> Tensor:
    if isinstance(slot, Tensor):
        return slot[start:stop]
    row = math.prod(param.shape[1:])
    piece = np.require(slot.piece(start * row, stop * row), requirements="W")
    return torch.from_numpy(piece).to(param).reshape(stop - start, *param.shape[1:])


def _shared(params: Iterable[nn.Parameter]) -> set[int | None]:
    """Storages of several gradients, as those of two transposed tensors that were added are."""
    counted = Counter(_storage(param.grad) for param in params if param.grad is not None)
    return {None, *(storage for storage, count in counted.items() if count > 1)}


def _storage(grad: Tensor) -> int | None:
    """Where a gradient's values are; None of a sparse one."""
    return grad.untyped_storage().data_ptr() if grad.layout == torch.strided else None
