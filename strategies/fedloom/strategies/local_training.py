"""The settings of local training: its length, its batches, its learning rate.

Settings have their meaning of data-parallel training: `global_batch_size` is the number of examples
per step of all clients of a round together, and `steps` the number of steps between two averages.

References:
    Goyal et al. 2017, Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour,
    https://arxiv.org/abs/1706.02677, sections 2.1 (linear scaling) and 2.2 (gradual warm-up).
    Here a round corresponds to their iteration, and the examples of all clients in a step
    to their minibatch.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from fedloom.strategies.checks import check_count, check_number
from fedloom.strategies.partial_work import PartialWork

Scaling: TypeAlias = Literal["none", "linear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings(PartialWork):
    """The settings of local training in one round, with those of `PartialWork`.

    Attributes:
        epochs: passes over the local examples, or None if `steps` is set.
        steps: optimizer steps, or None if `epochs` is set.
        batch_size: examples in a step; 0 for all.
        learning_rate: already warmed up and scaled.
    """

    epochs: int | None
    steps: int | None
    batch_size: int
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining(PartialWork):
    """The settings of local training over a whole run, with those of `PartialWork`.

    `steps=1, batch_size=None` makes FedAvg FedSGD.

    Attributes:
        epochs: passes over the local examples; exactly one of epochs and steps is set.
        steps: optimizer steps.
        batch_size: examples in a step; None for all.
        global_batch_size: examples in a step of all clients of a round, divided equally; replaces
            batch_size.
        learning_rate: the base rate, > 0, before warm-up and scaling.
        warmup_rounds: rounds before the full rate is reached, climbing in equal steps. With
            linear scaling they climb from the base rate, as in the paper; without it from
            learning_rate / (warmup_rounds + 1).
        scaling: "linear" multiplies the rate by batch_size · cohort / base_batch_size.
        base_batch_size: the batch size of the base rate; with linear scaling only.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range, or two are incompatible.
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    learning_rate: float
    warmup_rounds: int = 0
    scaling: Scaling = "none"
    base_batch_size: int | None = None

    def __post_init__(self) -> None:
        PartialWork.__post_init__(self)
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"Expected either epochs or steps, got epochs={self.epochs}, steps={self.steps}."
            )
        for name in ("epochs", "steps", "batch_size", "global_batch_size", "base_batch_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if None not in (self.batch_size, self.global_batch_size):
            raise ValueError(
                "Expected either batch_size or global_batch_size, got "
                f"{self.batch_size} and {self.global_batch_size}."
            )
        check_number("learning_rate", self.learning_rate, above=0)
        check_count("warmup_rounds", self.warmup_rounds, at_least=0)
        if self.scaling not in get_args(Scaling):
            raise ValueError(
                f"Expected a scaling, got {self.scaling!r}; known: {', '.join(get_args(Scaling))}."
            )
        batch_size = self.batch_size or self.global_batch_size
        linear, batches = self.scaling == "linear", (batch_size, self.base_batch_size)
        if (linear and None in batches) or (not linear and self.base_batch_size is not None):
            raise ValueError(
                "Expected batch_size and base_batch_size with linear scaling, and no "
                f"base_batch_size without it, got {batches} with {self.scaling}."
            )

    def at(self, round: int, cohort: int) -> RoundSettings:  # noqa: A002 - the field's word
        """Return the settings of one round.

        Args:
            round: the round's number; the first is 1.
            cohort: number of updates that the round is to average, >= 1.

        Raises:
            TypeError: an argument is not a whole number.
            ValueError: an argument is below 1, or the global batch cannot be split.
        """
        check_count("round", round)
        check_count("cohort", cohort)
        return RoundSettings(
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self._batch_size(cohort),
            learning_rate=self._learning_rate(round - 1, cohort),
            **self.departures(),
        )

    def _batch_size(self, cohort: int) -> int:
        if self.global_batch_size is None:
            return self.batch_size or 0
        share, rest = divmod(self.global_batch_size, cohort)
        if rest or not share:
            fitting = max(1, share) * cohort
            raise ValueError(
                f"Expected global_batch_size as a multiple of the cohort's goal of {cohort}, got "
                f"{self.global_batch_size}. Set it to {fitting}, or change cohort.goal."
            )
        return share

    def _learning_rate(self, rounds_done: int, cohort: int) -> float:
        full = start = self.learning_rate
        if self.scaling == "linear":
            assert self.base_batch_size is not None
            full *= self._batch_size(cohort) * cohort / self.base_batch_size
            start = min(start, full)
        else:
            start /= self.warmup_rounds + 1
        if rounds_done >= self.warmup_rounds:
            return full
        return start + (full - start) * rounds_done / self.warmup_rounds
