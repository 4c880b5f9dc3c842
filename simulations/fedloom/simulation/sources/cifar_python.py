"""The python version of CIFAR-10 and CIFAR-100: pickles, read without running what they say.

Source: the description beside the files: a dictionary with `data`, bytes of shape (N, 3072),
channel by channel and row by row, and `labels` or `fine_labels`. They were written by Python 2.

Invariant: nothing but arrays of numbers and plain containers is made of a file; a pickle that names
any other class or function is refused before it is called.
"""

import pickle
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples

_PIXELS = 3072
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # bytes of Python 3 in pickles of protocol 2
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not read")
        return super().find_class(module, name)


def present(folder: Path, classes: int) -> bool:
    """Whether a folder holds the archive or its unpacked files."""
    return _unpacked(folder, classes) is not None or _archive(folder, classes).is_file()


def read(folder: Path, classes: int) -> tuple[Examples, Examples]:
    """Training and test examples.

    Args:
        folder: with `cifar-10-python.tar.gz`, `cifar-100-python.tar.gz` or their files.
        classes: 10 or 100.

    Raises:
        UsageError: a file is missing or damaged, or holds something else.
    """
    train, test = _names(classes)
    found = _unpacked(folder, classes)
    batches = dict(
        _from_archive(_archive(folder, classes), [*train, test], classes)
        if found is None
        else _from_folder(found, [*train, test], classes)
    )
    missing = [name for name in (*train, test) if name not in batches]
    if missing:
        raise UsageError(f"Expected {', '.join(missing)} in {_archive(folder, classes)}.")
    xs, ys = zip(*(batches[name] for name in train), strict=True)
    whole = Examples(x=np.concatenate(xs), y=np.concatenate(ys))
    return whole, Examples(x=batches[test][0], y=batches[test][1])


def _names(classes: int) -> tuple[list[str], str]:
    if classes == 100:
        return ["train"], "test"
    return [f"data_batch_{number}" for number in range(1, 6)], "test_batch"


def _archive(folder: Path, classes: int) -> Path:
    return folder / f"cifar-{classes}-python.tar.gz"


def _unpacked(folder: Path, classes: int) -> Path | None:
    train, test = _names(classes)
    for candidate in (folder, folder / "cifar-10-batches-py", folder / "cifar-100-python"):
        if all((candidate / name).is_file() for name in (*train, test)):
            return candidate
    return None


Batch = tuple[str, tuple[NDArray[Any], NDArray[Any]]]


def _from_folder(folder: Path, names: Sequence[str], classes: int) -> Iterator[Batch]:
    for name in names:
        with (folder / name).open("rb") as opened:
            yield name, _batch(opened, str(folder / name), classes)


def _from_archive(archive: Path, names: Sequence[str], classes: int) -> Iterator[Batch]:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rsplit("/", 1)[-1]
                if name in names and (opened := tar.extractfile(member)):
                    yield name, _batch(opened, f"{name} of {archive}", classes)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UsageError(f"{archive} cannot be read: {error}. Download it again.") from error


def _batch(opened: IO[bytes], where: str, classes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        held = _Plain(opened, encoding="bytes").load()
    except Exception as error:
        raise UsageError(
            f"Expected the python version of CIFAR-{classes} at {where}, got: {error}."
        ) from error
    named = {
        key.decode("latin1") if isinstance(key, bytes) else key: value
        for key, value in (held.items() if isinstance(held, dict) else ())
    }
    key = "labels" if classes == 10 else "fine_labels"
    pixels: Any = named.get("data")
    labels: Any = named.get(key)
    fits = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2
    if not fits or pixels.shape[1] != _PIXELS or not isinstance(labels, list | np.ndarray):
        raise UsageError(
            f"Expected data as bytes of shape (N, {_PIXELS}) and {key} in {where}, got "
            f"{', '.join(map(str, named)) or type(held).__name__}."
        )
    y = np.asarray(labels)
    whole = y.dtype.kind in "iu" and y.shape == (len(pixels),)
    if not whole or not len(y) or y.min() < 0 or y.max() >= classes:
        raise UsageError(
            f"Expected {len(pixels)} labels from 0 to {classes - 1} in {where}, got {y.dtype} of "
            f"shape {y.shape}" + (f", {y.min()} to {y.max()}." if whole and len(y) else ".")
        )
    x = np.empty((len(pixels), 3, 32, 32), np.float32)
    np.divide(pixels.reshape(-1, 3, 32, 32), np.float32(255), out=x, dtype=np.float32)
    return x, y.astype(np.int64)
