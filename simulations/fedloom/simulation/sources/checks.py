"""What data of every source must hold: owners without gaps, test examples of training's form."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples


def check_owners(owners: NDArray[Any]) -> None:
    """Refuse examples without an owner, and owners of several kinds.

    Raises:
        UsageError: an owner is None, NaN or an empty text, or not of the first one's kind.
    """
    if owners.dtype.kind in "iub" or not len(owners):
        return
    listed: list[Any] = owners.tolist()
    for row, owner in enumerate(listed, 1):
        if is_missing(owner):
            raise UsageError(
                f"Expected an owner of each example, got {owner!r} in row {row}. Fill it, or drop "
                "the row."
            )
        if type(owner) is not type(listed[0]):
            raise UsageError(
                f"Expected owners of one kind, got {type(listed[0]).__name__} and "
                f"{type(owner).__name__} ({owner!r} in row {row}). Make them all texts."
            )


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or an empty text."""
    return cell is None or cell in ("", b"") or cell != cell  # noqa: PLR0124 - NaN differs from itself


def check_examples(train: Examples, test: Examples | None, num_classes: int | None) -> None:
    """Refuse inputs without values, and test examples of another form.

    Raises:
        UsageError: shapes or dtypes differ, or a test class is not below `num_classes`.
    """
    if not prod(train.x.shape[1:]):
        raise UsageError(
            f"Expected at least one value for each input, got inputs of shape {train.x.shape}."
        )
    if test is None:
        return
    for what, mine, theirs in (("inputs", test.x, train.x), ("targets", test.y, train.y)):
        if (mine.dtype, mine.shape[1:]) != (theirs.dtype, theirs.shape[1:]):
            raise UsageError(
                f"Expected test {what} of shape {theirs.shape[1:]} and {theirs.dtype}, as for "
                f"training, got {mine.shape[1:]} and {mine.dtype}."
            )
    if num_classes is not None and len(test) and test.y.max() >= num_classes:
        raise UsageError(
            f"Expected test classes from 0 to {num_classes - 1}, as for training, got "
            f"{test.y.max()}. Set num_classes, or number the classes from 0."
        )


def kind_of(array: NDArray[Any]) -> str:
    """Dtypes of one kind are read in the same way; bytes are pixels."""
    if array.dtype == np.uint8:
        return "pixels"
    return {"i": "tokens", "u": "tokens", "b": "numbers", "f": "numbers"}.get(
        array.dtype.kind, array.dtype.name
    )


def check_kinds(x: NDArray[Any], x_test: NDArray[Any]) -> None:
    """Refuse test inputs that would be scaled in another way than those of training.

    Raises:
        UsageError: one of them is pixels, tokens or numbers, and the other is not.
    """
    if kind_of(x) != kind_of(x_test):
        raise UsageError(
            f"Expected test inputs as {kind_of(x)} ({x.dtype}), as for training, got "
            f"{kind_of(x_test)} ({x_test.dtype}). Bytes are divided by 255, other numbers are not. "
            "Convert one of them."
        )


def joined(parts: Sequence[NDArray[Any]], what: str) -> NDArray[Any]:
    """Cells of several files or pieces in one array.

    Raises:
        UsageError: they are of several kinds, such as texts and numbers.
    """
    parts = [part for part in parts if len(part)] or parts[:1]  # an empty one has no kind
    for part in parts:
        if part.dtype.kind != parts[0].dtype.kind:
            raise UsageError(
                f"Expected {what} of one kind in all files, got {parts[0].dtype} and {part.dtype}. "
                "Convert them to one."
            )
    return np.concatenate(parts)


def class_numbers(values: NDArray[Any]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names of classes in ascending order, and the number of each value's class.

    Texts of whole numbers are in the order of the numbers.

    >>> class_numbers(np.array(["10", "9", "10"]))
    (('9', '10'), array([1, 0, 1]))
    """
    found, numbers = np.unique(values, return_inverse=True)
    names = list(map(str, found.tolist()))
    if found.dtype.kind == "U" and all(_is_whole(name) for name in names):
        order = np.argsort([int(name) for name in names], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return tuple(names[place] for place in order.tolist()), rank[numbers]
    return tuple(names), numbers.astype(np.int64)


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isdecimal() and len(digits) < 18 and str(int(name)) == name
