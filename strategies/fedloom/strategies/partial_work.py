"""Partial local work: training part of a model, clipping gradients, or stopping early.

A client sends only what it trained; each coordinate is averaged over the weights that cover it.

References:
    Diao et al. 2021, HeteroFL: Computation and Communication Efficient Federated Learning for
    Heterogeneous Clients, https://arxiv.org/abs/2010.01264, section 3 (`widths`).
    Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models,
    https://arxiv.org/abs/2106.09685 (adapters, chosen by `only`).
    Caldas et al. 2018, Expanding the Reach of Federated Learning by Reducing Client Resource
    Requirements, https://arxiv.org/abs/1812.07210, section 2.2 (`tensor_share` drops whole tensors
    where federated dropout drops units).
    Li et al. 2020, Federated Optimization in Heterogeneous Networks,
    https://arxiv.org/abs/1812.06127, section 3.1 (work cut short counts: `patience`,
    `time_budget_s`).
    Pascanu et al. 2013, On the difficulty of training recurrent neural networks,
    https://arxiv.org/abs/1211.5063, algorithm 1 (`clip_norm`).

Invariant: the trained part follows from the settings, the client's name, the task's seed and the
model's tensors, so a repeated task trains the same part.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

from fedloom.strategies.checks import check_count, check_list, check_number, check_patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWork:
    """Settings of partial local work; none is set by default.

    Attributes:
        clip_norm: largest Euclidean norm of a step's gradient over all trained tensors, clipped
            before the client rule, > 0; None for any.
        only: patterns as in a shell; tensors whose names match none are frozen and not sent. Empty
            for all tensors.
        tensor_share: of the tensors that a client trains and sends in a round, drawn by the task's
            seed; 0 < share <= 1.
        widths: shares of each hidden dimension; a client always has the same one, drawn by its
            name, and trains the leading units. A width listed twice is drawn twice as often.
            Empty for whole models.
        patience: epochs in a row without a new lowest mean loss, after which a client stops; None
            for never.
        time_budget_s: seconds after which a client stops; None for none.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    clip_norm: float | None = None
    only: Sequence[str] = ()
    tensor_share: float = 1.0
    widths: Sequence[float] = ()
    patience: int | None = None
    time_budget_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "time_budget_s"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        object.__setattr__(self, "only", check_patterns("only", self.only))
        object.__setattr__(self, "widths", check_list("widths", self.widths))
        _check_part("tensor_share", self.tensor_share)
        for width in self.widths:
            _check_part("widths", width)
        if self.patience is not None:
            check_count("patience", self.patience)

    @property
    def special(self) -> tuple[str, ...]:
        """Names of the settings that differ from the defaults."""
        found = ((field.name, field.default) for field in fields(PartialWork))
        return tuple(name for name, default in found if getattr(self, name) != default)

    @property
    def uneven(self) -> str:
        """The setting that makes clients send different coordinates; empty for none."""
        if self.tensor_share < 1:
            return "tensor_share"
        return "widths" if any(width < 1 for width in self.widths) else ""

    def departures(self) -> dict[str, Any]:
        """Return these settings alone, by name."""
        return {field.name: getattr(self, field.name) for field in fields(PartialWork)}

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Return the tensors that any client may train and send.

        Raises:
            ValueError: the patterns match none.
        """
        known = sorted(names)
        if not self.only:
            return frozenset(known)
        chosen = [n for n in known if any(fnmatchcase(n, pattern) for pattern in self.only)]
        if not chosen:
            raise ValueError(
                f"Expected train.only to match tensors of the model ({', '.join(known[:8])}, …), "
                f"got {list(self.only)}, which match none."
            )
        return frozenset(chosen)

    def tensors(self, names: Iterable[str], seed: int) -> frozenset[str]:
        """Return the tensors that a client trains and sends in a round, by the task's seed.

        Raises:
            ValueError: the patterns match none.
        """
        chosen = self.matching(names)
        if self.tensor_share == 1:
            return chosen
        count = max(1, round(self.tensor_share * len(chosen)))
        return frozenset(sorted(chosen, key=lambda name: _drawn(f"{seed}\0{name}"))[:count])

    def width(self, client: str) -> float:
        """Return the share of each hidden dimension that the client of this name trains."""
        if not self.widths:
            return 1.0
        return self.widths[int.from_bytes(_drawn(client), "little") % len(self.widths)]


def _check_part(name: str, value: Any) -> None:
    check_number(name, value, above=0)
    if value > 1:
        raise ValueError(f"Expected {name} above 0 and at most 1, got {value!r}.")


def _drawn(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8, person=b"departures").digest()
