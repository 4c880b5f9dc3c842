"""Labelled images in memory: where they come from, how some are held out, how a shard is stored.

Sources: the handwritten digits that scikit-learn carries (1,797 images of 8×8, a copy of the test
set of the UCI ML hand-written digits), and folders in MNIST's layout
(`fedloom.simulation.sources.idx`).

Invariants: images are float32 in [0, 1], channel first; labels are int64 in [0, num_classes).
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources import idx


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Examples and their labels.

    Attributes:
        x: float32, shape (num_examples, channels, height, width), values in [0, 1].
        y: int64, shape (num_examples,), values in [0, num_classes).
        num_classes: how many labels there are, whether or not each occurs.

    Raises:
        UsageError: when built from arrays that break this.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    num_classes: int

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.x.dtype != np.float32:
            raise UsageError(
                "Expected images as float32 of shape (num_examples, channels, height, width), "
                f"got {self.x.dtype} of shape {self.x.shape}."
            )
        if self.y.shape != self.x.shape[:1] or self.y.dtype != np.int64:
            raise UsageError(
                f"Expected {len(self.x)} labels as int64, one for each image, "
                f"got {self.y.dtype} of shape {self.y.shape}."
            )
        if self.y.size and not 0 <= self.y.min() <= self.y.max() < self.num_classes:
            raise UsageError(
                f"Expected labels from 0 to {self.num_classes - 1}, "
                f"got labels from {self.y.min()} to {self.y.max()}."
            )

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.y)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    def take(self, indices: NDArray[np.int64]) -> "Dataset":
        """Copy the examples at these indices, in this order."""
        return Dataset(x=self.x[indices], y=self.y[indices], num_classes=self.num_classes)


def digits() -> Dataset:
    """Load scikit-learn's handwritten digits: 1,797 images of shape (1, 8, 8) in ten classes.

    Raises:
        UsageError: when scikit-learn is not installed.
    """
    try:
        # Here, not above: a demo client reads its shard and has no use for scikit-learn.
        from sklearn.datasets import load_digits  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "The digits come with scikit-learn, which is not installed. "
            "Install it with: pip install 'fedloom[sim]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    return Dataset(x=x, y=labels.astype(np.int64), num_classes=10)


def mnist(folder: Path) -> tuple[Dataset, Dataset]:
    """Read the training and the held-out examples of a folder in MNIST's layout.

    Fashion-MNIST, KMNIST and others come in the same layout.

    Args:
        folder: holds the four IDX files under MNIST's names, gzipped or not.

    Raises:
        UsageError: when a file is missing or is not what its name says.
    """
    train, held_out = (idx.read_pair(folder, part) for part in idx.PARTS)
    num_classes = int(max(train[1].max(), held_out[1].max())) + 1
    return _from_bytes(*train, num_classes), _from_bytes(*held_out, num_classes)


def split(dataset: Dataset, *, held_out: float, seed: int) -> tuple[Dataset, Dataset]:
    """Hold out the same fraction of every class, chosen at random.

    Args:
        dataset: what to split.
        held_out: the fraction to hold out, between 0 and 1; each class is rounded to the nearest.
        seed: the same seed gives the same split.

    Returns:
        The training examples and the held-out ones; every example is in one of the two.

    Raises:
        UsageError: when `held_out` is not strictly between 0 and 1.
    """
    if not 0 < held_out < 1:
        raise UsageError(f"Expected 0 < held_out < 1, got {held_out}.")
    chosen = np.zeros(len(dataset), dtype=np.bool_)
    generator = stream(seed, "held-out")
    for label in range(dataset.num_classes):
        members = generator.permutation(np.flatnonzero(dataset.y == label))
        chosen[members[: round(held_out * len(members))]] = True
    return dataset.take(np.flatnonzero(~chosen)), dataset.take(np.flatnonzero(chosen))


def save(path: Path, **parts: Dataset) -> None:
    """Write named data sets, such as a client's `train` and `held_out`, into one `.npz` file."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, part in parts.items():
        arrays |= {f"{name}.x": part.x, f"{name}.y": part.y}
        arrays[f"{name}.num_classes"] = np.array(part.num_classes)
    np.savez(path, allow_pickle=False, **arrays)


def load(path: Path, name: str) -> Dataset:
    """Read one of the data sets that `save` wrote.

    Raises:
        UsageError: when the file is not there, is no such file, or holds no part of this name.
    """
    try:
        # Opened here: np.load leaves a file that is no archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x, y, num_classes = (arrays[f"{name}.{field}"] for field in ("x", "y", "num_classes"))
    except FileNotFoundError as error:
        raise UsageError(f"Expected a shard at {path}, found no such file.") from error
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"Expected {path} to be a shard with a part named {name!r}, got: {error}. "
            "Write it with fedloom.simulation.sources.shards.save."
        ) from error
    return Dataset(x=x, y=y, num_classes=int(num_classes))


def _from_bytes(images: NDArray[np.uint8], labels: NDArray[np.uint8], num_classes: int) -> Dataset:
    x = images[:, np.newaxis].astype(np.float32)
    x /= 255.0
    return Dataset(x=x, y=labels.astype(np.int64), num_classes=num_classes)
