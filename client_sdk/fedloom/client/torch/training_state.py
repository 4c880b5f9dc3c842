"""Checkpoints of a training, which resume it with the same bits.

A checkpoint holds the parameters and buffers, the states of the optimizer and of the random
generators, the number of batches so far, the metrics so far, and the counters of rules and early
stopping. Values that follow from the task (the order of the examples, the rule's anchors) are
computed again.

Invariant: a training that is resumed at any step ends with the bits of an uninterrupted one.
"""

import logging
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol, TypeGuard

import torch
from torch import nn

from fedloom.client.torch.random_state import random_state, set_random_state
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext

log = logging.getLogger(__name__)


class Stateful(Protocol):
    """An object with a state, such as a torch.optim.Optimizer."""

    def state_dict(self) -> dict[str, Any]:
        """The state: tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore a state."""


class Saving:
    """Saves and restores one training's state.

    Args:
        checkpoints: the files.
        module: that is trained.
        local: has the rule's counter of steps.
        device: whose random generator is saved.
        num_examples: for training; checkpoints with another number are dropped.

    Attributes:
        num_ranks: that train together; checkpoints with another number are dropped.
    """

    num_ranks = 1

    def __init__(
        self,
        checkpoints: Checkpoints,
        module: nn.Module,
        local: RuleContext,
        device: torch.device,
        num_examples: int,
    ) -> None:
        self._checkpoints = checkpoints
        self._module, self._local, self._device = module, local, device
        self._num_examples = num_examples
        self._parts: Mapping[str, Stateful] = {}
        self._stage = 0
        self._steps = 0
        self._epoch = 1
        self._found = self._read()

    def _read(self) -> dict[str, Any] | None:
        path = self._checkpoints.saved()
        if path is None:
            return None
        try:
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            self._check(found)
        except Exception as error:  # noqa: BLE001 - any error of torch.load for an invalid file
            log.warning("a checkpoint does not match, so training starts over: %s", error)
            self._checkpoints.drop()
            return None
        return found

    def _check(self, found: dict[str, Any]) -> None:
        if found["num_examples"] != self._num_examples:
            raise ValueError(f"it has {found['num_examples']} examples")
        if found["num_ranks"] != self.num_ranks:
            raise ValueError(f"it has {found['num_ranks']} ranks")
        shapes = {name: tensor.shape for name, tensor in _tensors(self._module).items()}
        if {name: tensor.shape for name, tensor in found["tensors"].items()} != shapes:
            raise ValueError("it has other tensors")

    def is_past(self, stage: int) -> bool:
        """Whether a stage had ended before the checkpoint."""
        return self._found is not None and self._found["stage"] > stage

    def begin(self, stage: int, epoch: int, parts: Mapping[str, Stateful]) -> int:
        """Begin or resume a stage; returns the number of its completed steps.

        Args:
            stage: its number, in order.
            epoch: steps per epoch.
            parts: objects whose state is saved.
        """
        self._stage, self._epoch, self._parts, self._steps = stage, epoch, parts, 0
        if self._found is not None and self._found["stage"] == stage:
            if parts.keys() <= self._found["parts"].keys():
                self._restore(self._found)
            else:
                log.warning("a checkpoint is of another version, so training starts over")
            self._found = None
        return self._steps

    def _restore(self, found: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in _tensors(self._module).items():
                tensor.copy_(found["tensors"][name])
        for name, part in self._parts.items():
            part.load_state_dict(found["parts"][name])
        set_random_state(found["random"], self._device)
        self._local.steps = found["local_steps"]
        self._steps = found["steps"]
        log.info("training resumes after step %d", self._steps)

    def stepped(self) -> None:
        """Count a step; at the end of an epoch save, if the last checkpoint is old enough."""
        self._steps += 1
        if self._steps % self._epoch == 0 and self._is_due():
            self.save()

    def _is_due(self) -> bool:
        return self._checkpoints.due()

    def save(self) -> None:
        """Save the state between two steps."""
        self._checkpoints.save(self._write)

    def _write(self, file: BinaryIO) -> None:
        torch.save(self._state(), file)

    def _state(self) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "steps": self._steps,
            "num_examples": self._num_examples,
            "num_ranks": self.num_ranks,
            "tensors": _tensors(self._module),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "random": random_state(self._device),
            "local_steps": self._local.steps,
        }


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers, also those that a state_dict omits."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items()}


def can_save(optimizer: object) -> TypeGuard[Stateful]:
    """Whether an optimizer can save its state."""
    return hasattr(optimizer, "state_dict") and hasattr(optimizer, "load_state_dict")
