"""Data sets of the package `datasets`: their splits, and which columns are meant."""

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.strategies.setting_checks import hint

_PIECE = 4096
"""Rows of a data set that are in memory at once when it is converted."""
_MODES = ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "1")
_LABELS = ("label", "labels", "target", "targets", "y")


def is_dataset(data: Any) -> bool:
    """Whether it is a `datasets.Dataset`."""
    return hasattr(data, "column_names") and hasattr(data, "features") and hasattr(data, "select")


def splits_of(data: Any) -> tuple[Any, Any] | None:
    """The splits `train` and `test` of a `datasets.DatasetDict`; None for other data.

    Raises:
        UsageError: it has no split `train`.
    """
    if not isinstance(data, Mapping) or not data or not hasattr(data, "column_names"):
        return None
    if "train" not in data:
        raise UsageError(
            f"Expected data with a split 'train', got {', '.join(map(str, data))}. Give one split."
        )
    return data["train"], data.get("test")


def pieces(data: Any, where: str) -> Iterator[tuple[Any, str]]:
    """A data set in pieces of some rows, with the place of each for errors.

    Files are mapped anew for each piece, and unmapped after it: pages of a mapping that were read
    stay resident.
    """
    size = len(data)
    if size <= _PIECE:
        yield data, where
        return
    sent = pickle.dumps(data) if getattr(data, "cache_files", None) else None
    for start in range(0, size, _PIECE):
        rows = range(start, min(start + _PIECE, size))
        mapped = data if sent is None else pickle.loads(sent)  # noqa: S301 - made above
        yield mapped.select(rows), f"rows {rows.start + 1:,} to {rows.stop:,} of {where}"


def target_of(data: Any, where: str) -> str:
    """The column of targets.

    Raises:
        UsageError: there is none, or more than one.
    """
    labelled = [n for n, kind in data.features.items() if type(kind).__name__ == "ClassLabel"]
    found = labelled or [name for name in data.column_names if name.lower() in _LABELS]
    if len(found) != 1:
        raise UsageError(
            f"Expected one column of targets in {where}, got {', '.join(found) or 'none'} of "
            f"{', '.join(data.column_names)}. Set target."
        )
    return str(found[0])


def inputs_of(data: Any, where: str, others: set[str | None]) -> str:
    """The only column that is none of others.

    Raises:
        UsageError: there is none, or more than one.
    """
    found = [name for name in data.column_names if name not in others]
    if len(found) != 1:
        raise UsageError(
            f"Expected one column of inputs in {where}, got {', '.join(found) or 'none'}. "
            "Set inputs to a column or a list of columns, or text to a column of texts."
        )
    return str(found[0])


def column(split: Any, name: str) -> NDArray[Any]:
    """A column of a `datasets.Dataset`, stacked.

    Raises:
        UsageError: there is no such column, or its values differ in shape.
    """
    if name not in split.column_names:
        raise UsageError(f"Expected a column {name!r}. {hint(name, split.column_names)}")
    if getattr(split, "format", {"type": "custom"})["type"] != "custom":
        split = split.with_format(None)  # numpy's format has channels last, torch's first
    if not len(split):
        raise UsageError(f"Expected rows in column {name!r}, got none.")
    try:
        found = np.stack([_channels_first(value) for value in split[name]])
    except ValueError as error:
        raise UsageError(
            f"Expected values of one shape in column {name!r}, got: {error}. Resize them first."
        ) from error
    kind = _dtype_of((getattr(split, "features", None) or {}).get(name))
    # Lists of bytes come as whole numbers, and those of float32 as float64.
    narrower = (found.dtype.kind, kind) in {("i", "uint8"), ("f", "float32"), ("f", "float16")}
    return found.astype(kind) if narrower else found


def _channels_first(value: Any) -> NDArray[Any]:
    """An image as Pillow or NumPy has it; other values as they are."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim not in (2, 3):
        return np.asarray(pixels(value))
    return value[np.newaxis] if value.ndim == 2 else value.transpose(2, 0, 1)


def _dtype_of(kind: Any) -> Any:
    """The dtype of a column's values, by its declared type."""
    while (inner := getattr(kind, "feature", None)) is not None:
        kind = inner
    return getattr(kind, "dtype", None)


def pixels(value: Any) -> Any:
    """An image of Pillow as bytes of shape (channels, height, width); other values as they are.

    Raises:
        UsageError: its pixels are no bytes, or places in a palette.
    """
    if not hasattr(value, "getbands"):
        return value
    if value.mode not in _MODES:
        raise UsageError(
            f"Expected images of the mode {', '.join(_MODES)}, got {value.mode}. Convert them "
            'first, such as by image.convert("RGB").'
        )
    found = np.asarray(value.convert("L") if value.mode == "1" else value)
    return found[np.newaxis] if found.ndim == 2 else found.transpose(2, 0, 1)
