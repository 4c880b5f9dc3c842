"""A model that is reset to the server's for one client after another.

Invariant: after `reset` no parameter and no buffer has values of an earlier client.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedloom.client.torch import modules
from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.message import TensorPart
from fedloom.simulation.kernels.base import Params
from fedloom.strategies import DELTA, Full


class ModelState:
    """The tensors of a resident module.

    Args:
        model: changed in place, by this object only.

    Attributes:
        sent: names of tensors that clients send.
        params: the received ones.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        state = model.state_dict()
        self.sent = {name for name, tensor in state.items() if tensor.dtype != torch.bool}
        kept = dict(model.named_buffers())
        self._kept = [tensor for name, tensor in kept.items() if name not in self.sent]
        self._initial = [tensor.clone() for tensor in self._kept]
        tensors = itertools.chain(model.parameters(), model.buffers())
        self._tensors = [tensor.detach() for tensor in tensors]
        self._received: list[Tensor] = []
        self._is_fresh = self._is_kept = False
        self.params: Params = {}

    @torch.no_grad()
    def receive(self, params: Params) -> None:
        """Take a round's model, and reset to it.

        Raises:
            UsageError: tensors of the module are missing.
        """
        if missing := sorted(self.sent - params.keys()):
            raise UsageError(
                f"The run's model lacks {len(missing)} of the clients' tensors, such as "
                f"{missing[0]!r}. Start the run from the clients' model."
            )
        self.params = params
        self._load()
        self._is_fresh, self._is_kept = True, False
        if not all(tensor.is_cpu for tensor in self._tensors):
            self._keep()  # instead of copying from main memory again

    @torch.no_grad()
    def reset(self, own: Params | None = None) -> None:
        """Restore the received values, then load a client's own tensors.

        Groups often have one client, which needs no copy. The second reset makes a copy in the
        tensors' own layout, as more resets may follow.
        """
        if self._is_kept and not self._is_fresh:
            for tensor, received in zip(self._tensors, self._received, strict=True):
                tensor.copy_(received)
        elif not self._is_fresh:
            self._load()
            self._keep()
        self._is_fresh = False
        if own:
            modules.load(self._model, own, partial=True)

    def parts(self) -> Sequence[TensorPart]:
        """The update; in main memory its values share the module's tensors."""
        arrays = modules.parameters(self._model, self.sent.__contains__)
        return [
            TensorPart(DELTA, name, Full(), values, self.params[name])
            for name, values in arrays.items()
        ]

    def _load(self) -> None:
        for tensor, initial in zip(self._kept, self._initial, strict=True):
            tensor.copy_(initial)
        modules.load(self._model, self.params, partial=True)

    def _keep(self) -> None:
        self._received = self._received or [torch.empty_like(tensor) for tensor in self._tensors]
        for received, tensor in zip(self._received, self._tensors, strict=True):
            received.copy_(tensor)
        self._is_kept = True
