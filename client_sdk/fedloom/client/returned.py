"""What an author's code returned, looked at before anything is made of it.

Invariant: what passes here has names for its tensors and metrics, and numbers where numbers belong.
Whether the numbers are finite, and of the right shape, is asked where they are used.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from numpy.typing import NDArray

from fedloom.client.api import Update
from fedloom.protocol.errors import UsageError

MOST_EXAMPLES = 2**63 - 1
_NO_NUMBERS = frozenset("OSUMmc")
"""Kinds of numpy's dtypes that no tensor of a model has: objects, texts, times, complex numbers."""


def check_update(update: Update) -> None:
    """Is it an update in form?

    Raises:
        UsageError: says what `train` should have returned.
    """
    if not isinstance(update.params, Mapping):
        raise UsageError(
            "Expected train to return params as a mapping of names to arrays, "
            f"got {type(update.params).__name__}."
        )
    check_measured(update.num_examples, update.metrics, by="train")


def check_measured(num_examples: object, metrics: object, *, by: str) -> None:
    """Are these a number of examples and metrics?

    Args:
        num_examples: what was returned as such.
        metrics: likewise.
        by: the method that returned them.

    Raises:
        UsageError: says which is not, and what came.
    """
    if not _is_count(num_examples):
        raise UsageError(
            f"Expected num_examples from {by} as a whole number from 0 to 2^63 - 1, "
            f"got {_shown(num_examples)}."
        )
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"Expected metrics from {by} as a mapping of names to numbers ({{}} for none), "
            f"got {type(metrics).__name__}."
        )
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise UsageError(f"Expected names of metrics from {by} as text, got {_shown(name)}.")
        if _number(value) is None:
            raise UsageError(
                f"Expected metric {name!r} from {by} as one number, got {_shown(value)}."
            )


def check_dtype(name: str, values: NDArray[Any]) -> None:
    """Are these numbers that a tensor may hold?

    Raises:
        UsageError: names the tensor.
    """
    if values.dtype.kind in _NO_NUMBERS:
        raise UsageError(
            f"Expected real numbers for {name!r} from train, got an array of {values.dtype}."
        )


def _is_count(value: object) -> bool:
    number = _number(value)
    return (
        number is not None
        and isfinite(number)
        and number.is_integer()
        and 0 <= number <= MOST_EXAMPLES
    )


def _number(value: object) -> float | None:
    """A number, or what stands for one, as a tensor of one value does; None if neither."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _shown(value: object) -> str:
    return f"{value!r}"[:80]
