"""Checkpoints of a site's training, which rank 0 keeps for all ranks.

Parameters, buffers and the optimizer's state are equal on all ranks and saved once. The state of
the random generators and the metrics are saved for each rank.

Invariant: either every rank starts over, or every rank resumes from the same step.
"""

import io
from typing import Any, BinaryIO

import torch
from torch import nn

from fedloom.client.torch.group import Group
from fedloom.client.torch.training_state import Saving
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext


class SiteSaving(Saving):
    """As `Saving`, on all ranks together, with rank 0's files and the site's number of examples."""

    def __init__(  # noqa: PLR0917 - as `Saving`
        self,
        group: Group,
        checkpoints: Checkpoints,
        module: nn.Module,
        local: RuleContext,
        device: torch.device,
        num_examples: int,
    ) -> None:
        self._group = group
        self._ranks: list[dict[str, Any]] = []
        self.num_ranks = group.size
        super().__init__(checkpoints, module, local, device, num_examples)

    def _read(self) -> dict[str, Any] | None:
        """Rank 0's checkpoint if it matches, on every rank."""
        data = self._group.shared(self._group.together(self._found_here))
        return _unpacked(data) if data else None

    def _found_here(self) -> bytes:
        if self._group.rank or super()._read() is None:
            return b""
        path = self._checkpoints.saved()
        return b"" if path is None else path.read_bytes()

    def _restore(self, found: dict[str, Any]) -> None:
        own = found["ranks"][self._group.rank]
        parts = {**found["parts"], "totals": own["totals"]}
        super()._restore({**found, "random": own["random"], "parts": parts})

    def _is_due(self) -> bool:
        return self._group.says(super()._is_due())

    def save(self) -> None:
        """Save the state between two steps; all ranks call it after the same step."""
        state = self._state()
        own = {"random": state["random"], "totals": state["parts"]["totals"]}
        self._ranks = [_unpacked(data) for data in self._group.gathered(_packed(own))]
        self._group.together(self._keep)
        self._ranks = []

    def _keep(self) -> None:
        if self._group.rank == 0:
            super().save()

    def _write(self, file: BinaryIO) -> None:
        torch.save({**self._state(), "ranks": self._ranks}, file)


def _packed(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _unpacked(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return found
