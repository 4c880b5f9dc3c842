"""Transforms in order, and functions of one example as transforms.

Invariants: torch's, NumPy's and Python's global random states are as before after each call; what
draws from another state, such as a generator of its own, is refused, for it would give other bits
with other workers.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedloom.client.torch.augment.draws import Draws
from fedloom.client.torch.augment.transforms import Shape, Transform
from fedloom.protocol.errors import UsageError

Step: TypeAlias = Transform | Callable[[Tensor], Tensor]
_DESCRIBED = 60
_REPEATED = 8
"""Of so many examples of a client one is transformed twice."""


class PerExample(Transform):
    """A function of one example, such as one of torchvision, with random states of its key.

    It is called in training alone; its result has the example's shape and dtype.

    Args:
        function: may draw from the global generators of torch, NumPy and Python.
    """

    moves_pixels = False

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))[:_DESCRIBED]

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """The function's results, stacked.

        Raises:
            UsageError: a result has another shape or dtype, or depends on another random state.
        """
        made = []
        with _random_states():
            for row, seed, index in zip(x.unbind(), draws.seeds(), draws.indices, strict=True):
                made.append(self._apply(row, seed))
                if index % _REPEATED == 0:
                    _check_same(made[-1], self._apply(row, seed), self)
        return torch.stack(made)

    def _apply(self, example: Tensor, seed: int) -> Tensor:
        torch.default_generator.manual_seed(seed)
        if example.is_cuda:
            torch.cuda.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the function may use it
        random.seed(seed)
        out: Any = self.function(example.clone())
        if not isinstance(out, Tensor) or (out.shape, out.dtype) != (example.shape, example.dtype):
            got = (
                f"{out.dtype} of shape {tuple(out.shape)}"
                if isinstance(out, Tensor)
                else type(out).__name__
            )
            raise UsageError(
                f"Expected the transform {self!r} to return a tensor of {example.dtype} of shape "
                f"{tuple(example.shape)}, got {got}. Subclass Transform for another shape."
            )
        return out


def _check_same(first: Tensor, again: Tensor, step: Transform) -> None:
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise UsageError(
            f"Expected the same result of the transform {step!r} for the same example and random "
            "numbers, got another one: it has a generator or a counter of its own, or changes its "
            "input. A function may draw from the global generators of torch, numpy and random; a "
            "subclass of Transform draws from its argument draws."
        )


def _trained(step: Transform, x: Tensor, draws: Draws) -> Tensor:
    """A transform's inputs in training; one that is not ours is repeated once in an epoch."""
    if isinstance(step, PerExample) or type(step).__module__ == Transform.__module__:
        return step.train(x, draws)
    with _random_states():
        made = step.train(x, draws)
        if (draws.indices == 0).any():
            _check_same(made, step.train(x, draws), step)
    return made


@contextmanager
def _random_states() -> Iterator[None]:
    devices = list(range(torch.cuda.device_count()))
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - restored below
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Transforms, applied in order.

    Attributes:
        steps: at least one.
    """

    steps: tuple[Transform, ...]

    @classmethod
    def of(cls, steps: "Sequence[Step] | Pipeline") -> "Pipeline":
        """Transforms and functions of one example.

        Raises:
            UsageError: something else is among them, or there is none.
        """
        if isinstance(steps, Pipeline):
            return steps
        if not isinstance(steps, list | tuple) or not steps:
            raise UsageError(f"Expected a list of one or more transforms, got {steps!r}.")
        made = []
        for step in steps:
            if not isinstance(step, Transform) and (isinstance(step, type) or not callable(step)):
                raise UsageError(
                    f"Expected a Transform or a function of one example, got {step!r}."
                )
            made.append(step if isinstance(step, Transform) else PerExample(step))
        return cls(tuple(made))

    def __str__(self) -> str:
        return ", ".join(map(repr, self.steps))

    def output_shape(self, shape: Sequence[int], dtype: str, target_shape: Sequence[int]) -> Shape:
        """The shape of an example after all transforms.

        Args:
            shape: of an input.
            dtype: of inputs, such as float32.
            target_shape: of a target; () for one number.

        Raises:
            UsageError: the inputs are not numbers with a fraction, such as tokens; a transform does
                not support their shape; or targets have places that a transform would not move.
        """
        if not dtype.startswith("float"):
            raise UsageError(
                f"Transforms change images and other inputs of float32, got {dtype} of shape "
                f"{tuple(shape)}, such as tokens of a text. Remove data.transform."
            )
        found: Shape = tuple(shape)
        for step in self.steps:
            found = step.output_shape(found)
            if step.moves_pixels and tuple(target_shape):
                raise UsageError(
                    f"{step!r} would move the pixels of inputs and not of targets, which have "
                    f"shape {tuple(target_shape)}. Use it with one target for each example."
                )
        return found

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Inputs of a batch in training."""
        for place, step in enumerate(self.steps):
            x = _trained(step, x, draws.at(place))
        return x

    def evaluate(self, x: Tensor) -> Tensor:
        """Inputs of a batch in evaluation."""
        for step in self.steps:
            x = step.evaluate(x)
        return x
