"""Settings of low-rank adapters: what of them clients send, and what is averaged.

An adapter adds scale · B A to a frozen weight W [m, n], with A [r, n] and B [m, r]. The mean of the
factors of several clients is not the factors of the mean of their products.

References:
    Hu et al. 2022, LoRA, https://arxiv.org/abs/2106.09685.
    Zhang et al. 2024, Towards Building the Federated GPT (FedIT), https://arxiv.org/abs/2305.05644
    (`factors`).
    Sun et al. 2024, Improving LoRA in Privacy-preserving Federated Learning (FFA-LoRA),
    https://arxiv.org/abs/2403.12313 (`freeze_a`).
    Bai et al. 2024, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and
    Client Resources (FlexLoRA), https://arxiv.org/abs/2402.11505 (`product`).
    Singhal et al. 2024, FedEx-LoRA, https://arxiv.org/abs/2410.09432 (`rest = "send"`).
    Wang et al. 2024, FLoRA, https://arxiv.org/abs/2409.05976 (`stack`).

Invariant: what a client trains and sends follows from these settings and the names of the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.coverage import Coverage, Full, Slice
from fedloom.strategies.exact.partial import Params, TensorSpec

AGGREGATES: Final = ("factors", "freeze_a", "product", "stack")
RESTS: Final = ("drop", "send")

A, B = (".lora_A.weight", ".lora_a"), (".lora_B.weight", ".lora_b")
"""Ends of the names of factors: peft's, and those of `fedloom.client.torch.lora`."""
REST: Final = (".lora_rest.weight", ".lora_rest")
"""Likewise of the difference to the frozen weight, [m, n], in units of B A; our own names."""
_OTHERS: Final = ("lora_embedding_", "lora_magnitude_vector")
"""peft's other tensors of adapters, whose functions are no sum of products."""


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """The tensors of one adapted layer, by name.

    Attributes:
        name: of the layer.
        a: of A, [r, n].
        b: of B, [m, r].
        rest: of the difference to the frozen weight, [m, n].
    """

    name: str
    a: str
    b: str
    rest: str


def layers(names: Iterable[str]) -> list[AdaptedLayer]:
    """Return the layers whose factors are both among these names, in the order of A."""
    known = list(names)
    there, found = set(known), []
    for each in known:
        for a, b, rest in zip(A, B, REST, strict=True):
            name = each.removesuffix(a)
            if name != each and name + b in there:
                found.append(AdaptedLayer(name, each, name + b, name + rest))
    return found


def with_rests(model: Params) -> dict[str, NDArray[Any]]:
    """Return a model with a difference to each frozen weight, all zero.

    Raises:
        ValueError: it has no adapters of matrices.
    """
    made: dict[str, NDArray[Any]] = {}
    found = [each for each in layers(model) if model[each.a].ndim == model[each.b].ndim == 2]
    if not found:
        raise ValueError(f"Expected adapters, tensors that end in {A[0]} and {B[0]}, got none.")
    rests = {each.b: each for each in found}
    for name, array in model.items():
        made[name] = array
        if (layer := rests.get(name)) is not None:
            shape = (len(array), model[layer.a].shape[1])
            made[layer.rest] = np.zeros(shape, np.float32)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Settings of low-rank adapters.

    Attributes:
        aggregate: `factors` averages A and B separately; `freeze_a` neither trains nor sends A, so
            that the mean of B is exact; `product` averages B A, and its best approximation of the
            model's rank becomes the factors; `stack` adds the mean of B A to the difference to the
            frozen weight, and clients begin a new adapter in each round.
        rest: of `product`: what the approximation loses. `drop` discards it; `send` adds it to the
            difference to the frozen weight, so that the model's function is the clients' mean.
        scale: lora_alpha / r of all devices; one with another scale, or that cannot tell its own,
            refuses the task. None: not checked.

    Raises:
        TypeError: scale is not a number.
        ValueError: a setting is out of range, or two are incompatible.
    """

    aggregate: str = AGGREGATES[0]
    rest: str = RESTS[0]
    scale: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("aggregate", AGGREGATES), ("rest", RESTS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"Expected adapters.{name} of {', '.join(known)}, got {getattr(self, name)!r}."
                )
        if self.rest == "send" and self.aggregate != "product":
            raise ValueError(
                f'Expected adapters.rest = "send" with aggregate = "product", got '
                f"{self.aggregate!r}, which has no rest to choose about. Leave it out."
            )
        if self.scale is not None:
            check_number("adapters.scale", self.scale, above=0)

    @property
    def by_products(self) -> bool:
        """Whether products are averaged; updates of lower ranks are then possible."""
        return self.aggregate in {"product", "stack"}

    @property
    def keeps_rest(self) -> bool:
        """Whether the model has a difference to each frozen weight."""
        return self.aggregate == "stack" or self.rest == "send"

    @property
    def special(self) -> tuple[str, ...]:
        """Names of settings that change plain local training, or that a client must check."""
        changes = self.aggregate == "freeze_a" or self.keeps_rest
        asked = {"adapters.aggregate": changes, "adapters.scale": self.scale is not None}
        return tuple(name for name, is_asked in asked.items() if is_asked)

    def frozen(self, names: Iterable[str]) -> frozenset[str]:
        """Return the tensors that clients neither train nor send."""
        ends = A + REST if self.aggregate == "freeze_a" else REST
        return frozenset(name for name in names if name.endswith(ends))

    def check_model(self, specs: Mapping[str, TensorSpec], sent: Iterable[str]) -> None:
        """Check a model against these settings.

        Args:
            specs: of its tensors.
            sent: tensors that clients send.

        Raises:
            ValueError: it has no adapters, or lacks tensors that the settings need.
        """
        if self.aggregate == "factors":
            return
        found, sent = layers(specs), set(sent)
        if not found:
            raise ValueError(
                f'Expected adapters with adapters.aggregate = "{self.aggregate}", tensors that end '
                f"in {A[0]} and {B[0]}, got none. Start the run from a model of adapters."
            )
        if not self.by_products:
            return
        for name in specs:
            if any(each in name for each in _OTHERS):
                raise ValueError(
                    f'Expected adapters of matrices with adapters.aggregate = "{self.aggregate}", '
                    f"got {name!r}, whose function is no product B A. Take factors, or adapters "
                    "without embeddings and DoRA."
                )
        for layer in found:
            self._check_layer(layer, specs, sent)

    def _check_layer(
        self, layer: AdaptedLayer, specs: Mapping[str, TensorSpec], sent: set[str]
    ) -> None:
        a, b = specs[layer.a], specs[layer.b]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
            raise ValueError(
                f"Expected A [r, n] and B [m, r] of {layer.name}, got {a.shape} and {b.shape}. "
                "Take factors, which averages tensors of any shape."
            )
        shape = (b.shape[0], a.shape[1])
        if a.shape[0] > min(shape):
            raise ValueError(
                f"Expected a rank of at most {min(shape)} for the {shape} of {layer.name}, got "
                f"{a.shape[0]}. Lower the rank of the run's model."
            )
        if not {layer.a, layer.b} <= sent:
            raise ValueError(
                f"Expected both factors of {layer.name} with adapters.aggregate = "
                f'"{self.aggregate}", got one that train.only leaves out. Name both, or take '
                "freeze_a."
            )
        if not self.keeps_rest:
            return
        rest = specs.get(layer.rest)
        if rest is None or rest.shape != shape:
            got = "none" if rest is None else f"{rest.shape}"
            raise ValueError(
                f"Expected {layer.rest!r} of shape {shape}, the difference to the frozen weight, "
                f"got {got}. Make the initial model with `fedloom model init --adapter-rest`."
            )
        if any(specs[n].dtype != np.float32 for n in (layer.a, layer.b, layer.rest)):
            raise ValueError(
                f"Expected float32 for {layer.name}, so that its difference to the frozen weight "
                "is exact, got another dtype. Start the run from a model of float32."
            )

    def check_update(
        self, covered: Mapping[str, Coverage | None], specs: Mapping[str, TensorSpec]
    ) -> None:
        """Check the ranks of an update.

        Args:
            covered: what it covers of each tensor; None or a mask for a mask.
            specs: of the model's tensors.

        Raises:
            ValueError: it covers other parts of the adapters than the leading ranks, or other
                ranks than these settings average.
        """
        for layer in layers(specs):
            ranks = [
                _rank(name, covered[name], specs[name].shape, axis)
                for name, axis in ((layer.a, 0), (layer.b, 1))
                if name in covered
            ]
            if self.by_products and ranks and (len(ranks) < 2 or ranks[0] != ranks[1]):
                raise ValueError(
                    f"Expected both factors of {layer.name} with one rank, got "
                    f"{' and '.join(map(str, ranks))}. Send both factors."
                )
            whole = specs[layer.a].shape[0]
            if not self.by_products and any(rank != whole for rank in ranks):
                raise ValueError(
                    f"Expected rank {whole} in {layer.name}, as adapters.aggregate = "
                    f'"{self.aggregate}" averages factors of one rank, got {min(ranks)}. Set the '
                    f"device's rank to {whole}, or run with product or stack."
                )


def _rank(name: str, covered: Coverage | None, shape: tuple[int, ...], axis: int) -> int:
    """The number of leading ranks that an update covers."""
    if isinstance(covered, Full):
        return shape[axis]
    if isinstance(covered, Slice):
        wanted = list(shape)
        wanted[axis] = covered.ranges[axis][1]
        if wanted[axis] and covered.ranges == tuple((0, size) for size in wanted):
            return wanted[axis]
    got = f"{covered.ranges}" if isinstance(covered, Slice) else "a mask"
    raise ValueError(
        f"Expected the leading ranks of {name!r}, whole in the other dimension, got {got}. Send "
        "the tensor, or a slice of its first ranks."
    )
