"""Choose the kernel that trains a model by fixed rules, with the reason as text.

Invariant: the choice depends only on the model, loss, rule, optimizer and device, never on a
measurement. The kernel changes last bits, and results must not depend on the load of a machine.
The rules follow from the measurements in docs/kernels.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from fedloom.client.torch import loop
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.batched import Batched
from fedloom.simulation.kernels.channels_last import ChannelsLast
from fedloom.simulation.kernels.compiled import Compiled
from fedloom.simulation.kernels.fused import Fused
from fedloom.simulation.kernels.graphed import Graphed
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import ClientRule

AnyKernel: TypeAlias = (
    type[Resident]
    | type[ChannelsLast]
    | type[Fused]
    | type[Compiled]
    | type[Graphed]
    | type[Batched]
)

KERNELS: Mapping[str, AnyKernel] = {
    "resident": Resident,
    "channels-last": ChannelsLast,
    "fused": Fused,
    "compiled": Compiled,
    "graphed": Graphed,
    "batched": Batched,
}
AUTO = "auto"
_SMALL = 2_000_000
"""Parameters up to which one client leaves most of a GPU idle."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel and why it was chosen.

    Attributes:
        name: a key of `KERNELS`.
        why: one sentence without a full stop.
    """

    name: str
    why: str


def choose(  # noqa: PLR0917 - the inputs of the choice
    kernel: str,
    model: nn.Module,
    loss: loop.Loss,
    rule: ClientRule,
    optimizer: loop.MakeOptimizer | None,
    device: torch.device,
    population: Population | None = None,
    special: Sequence[str] = (),
) -> Choice:
    """Choose a kernel.

    Args:
        kernel: a key of `KERNELS`, or `auto`.
        model: not changed.
        loss: mean loss of a batch.
        rule: the run's client rule.
        optimizer: None for plain gradient descent.
        device: to train on.
        population: its data is checked too; None for no check.
        special: settings of the run that change plain local training.

    Raises:
        UsageError: the kernel does not exist, or does not support this; gives the reason.
    """

    def against(kind: AnyKernel) -> str:
        return (
            kind.misses(device)
            or kind.lacks(special)
            or kind.carries(model, loss, rule, optimizer, population)
        )

    if kernel == AUTO:
        return _auto(model, device, against)
    if kernel not in KERNELS:
        raise UsageError(f"Expected a kernel among auto, {', '.join(KERNELS)}, got {kernel!r}.")
    if reason := against(KERNELS[kernel]):
        raise UsageError(
            f"The kernel {kernel!r} cannot train this experiment: {reason}. "
            'Set engine.kernel = "auto", or "resident", which supports everything.'
        )
    return Choice(kernel, "set by engine.kernel")


def _auto(model: nn.Module, device: torch.device, against: Callable[[AnyKernel], str]) -> Choice:
    not_batched = "batching clients is faster only on GPUs"
    if device.type == "cuda":
        size = sum(param.numel() for param in model.parameters())
        not_batched = f"{size:,} parameters keep the GPU busy with one client"
        if size <= _SMALL:
            not_batched = against(Batched)
            if not not_batched:
                return Choice("batched", f"{size:,} parameters leave a GPU idle with one client")
    not_fused = against(Fused)
    if not not_fused:
        return Choice("fused", "the model is a chain of linear layers")
    on_cpu = device.type == "cpu"
    if on_cpu and not against(ChannelsLast):
        return Choice("channels-last", "convolutions are faster with channels last on a CPU")
    return Choice("resident", f"{not_fused}; {not_batched}")
