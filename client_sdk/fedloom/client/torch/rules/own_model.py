"""Training of a client's personal model after each batch of the shared one: Ditto, APFL.

The module itself computes it, with other tensors in place of its own. Its random numbers come from
a separate stream.

Invariant: the shared model's training gives the same bits as without a personal model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.client.torch import loop, modules
from fedloom.client.torch.random_state import random_state, set_random_state
from fedloom.client.torch.training_state import can_save
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.strategies import RoundSettings
from fedloom.strategies.personal.settings import MIX, OWN, OWN_BUFFERS

_STREAM = 1 << 61
"""Changes the seed for the personal model's random numbers."""


class Mine:
    """A client's personal model in one round.

    Args:
        module: with the received values of the shared model.
        loss: mean loss of a batch.
        optimizer: creates the optimizer, with the round's learning rate.
        settings: of the round.
        local: has the personal settings and the model from earlier rounds.
        seed: of the task.
    """

    def __init__(  # noqa: PLR0917 - all parts of a training
        self,
        module: nn.Module,
        loss: loop.Loss,
        optimizer: loop.MakeOptimizer,
        settings: RoundSettings,
        local: RuleContext,
        seed: int,
    ) -> None:
        method = local.personal.own_model
        assert method is not None
        self._method = method
        self._module, self._loss = module, loss
        self._shared = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._received = {n: p.detach().clone() for n, p in self._shared.items()}
        self._own = {n: nn.Parameter(_recalled(local, OWN, n, p)) for n, p in self._shared.items()}
        self._buffers = {n: _recalled(local, OWN_BUFFERS, n, b) for n, b in module.named_buffers()}
        self._mix = local.mix
        self._optimizer = optimizer(self._own.values(), lr=settings.learning_rate)
        self._clip_norm = settings.clip_norm
        self._device = loop.device_of(module)
        with loop.seeded(seed ^ _STREAM, self._device):
            self._random = random_state(self._device)

    def step(self, x: Any, y: Tensor) -> None:
        """Take one step on a batch."""
        point = {
            n: self._method.point(own.detach(), self._shared[n].detach(), self._mix)
            .detach()
            .requires_grad_()
            for n, own in self._own.items()
        }
        with self._stream():
            _, _, value = loop.forward(
                lambda x: functional_call(self._module, {**point, **self._buffers}, (x,)),
                x,
                y,
                self._loss,
                self._device,
            )
            value.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
        loop.clipping(point.values(), self._clip_norm)()
        self._move({n: tensor.grad for n, tensor in point.items()})

    @torch.no_grad()
    def _move(self, grads: dict[str, Tensor | None]) -> None:
        """Change the model and its share in the mixture, by the gradients at the point."""
        slope = 0.0
        for name, own in self._own.items():
            grad = grads[name]
            if grad is None:
                own.grad = None
                continue
            between = (own - self._shared[name]).double()
            slope += float((between * grad.double()).sum())
            own.grad = self._method.gradient(grad, own, self._received[name], self._mix)
        self._optimizer.step()
        self._mix = self._method.next_mix(self._mix, slope)

    def state_dict(self) -> dict[str, Any]:
        """The state that the rest of the training depends on."""
        optimizer = self._optimizer
        return {
            "own": {n: p.detach() for n, p in self._own.items()},
            "buffers": dict(self._buffers),
            "mix": self._mix,
            "optimizer": optimizer.state_dict() if can_save(optimizer) else {},
            "random": self._random,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        for name, own in self._own.items():
            own.copy_(state["own"][name])
        for name, buffer in self._buffers.items():
            buffer.copy_(state["buffers"][name])
        self._mix, self._random = state["mix"], state["random"]
        if can_save(self._optimizer):
            self._optimizer.load_state_dict(state["optimizer"])

    def slots(self) -> dict[str, dict[str, NDArray[Any]]]:
        """The tensors to keep for later rounds, by slot."""
        names = self._module.state_dict().keys()
        return {
            OWN: {n: np.array(modules.array_of(p)) for n, p in self._own.items()},
            OWN_BUFFERS: {
                n: np.array(modules.array_of(b)) for n, b in self._buffers.items() if n in names
            },
            MIX: {MIX: np.array(self._mix)},
        }

    @contextmanager
    def _stream(self) -> Iterator[None]:
        before = random_state(self._device)
        set_random_state(self._random, self._device)
        try:
            yield
        finally:
            self._random = random_state(self._device)
            set_random_state(before, self._device)


def _recalled(local: RuleContext, slot: str, name: str, here: Tensor) -> Tensor:
    """A copy of the remembered tensor, or of the received one if none is remembered."""
    found = local.memory.get(slot, {}).get(name)
    if found is None:
        return here.detach().clone()
    if found.shape != tuple(here.shape):
        raise UsageError(
            f"Expected shape {tuple(here.shape)} for {name!r} of the personal model, got "
            f"{found.shape}. The model must not change within a run."
        )
    return torch.from_numpy(np.array(found)).to(here, copy=True)
