"""Images: scikit-learn's digits, the sets in MNIST's layout, and CIFAR's binary version.

Sources: A. Krizhevsky (2009), "Learning multiple layers of features from tiny images", and the
description of the binary version beside the files: a record is one label byte (two in CIFAR-100:
coarse, then fine) and 3,072 bytes of 32×32 pixels, channel by channel, row by row. G. Cohen et al.
(2017), "EMNIST: extending MNIST to handwritten letters": six splits; images are stored with rows
and columns swapped; `letters` counts its labels from 1.

Invariant: inputs are float32 in [0, 1] of shape (N, channels, height, width), converted from bytes
without a second array of that size.
"""

import tarfile
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources import cifar_python, idx
from fedloom.simulation.sources.base import LoadedData, check_test, keep_for_test
from fedloom.simulation.sources.download import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    MNIST,
    KnownFile,
    KnownSet,
    data_folder,
    locate,
)

_EMNIST_CLASSES: Final = {
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}
_PIXELS = 3 * 32 * 32


def digits(*, seed: int, test: float = 0.2) -> LoadedData:
    """1,797 handwritten digits of shape (1, 8, 8), from scikit-learn.

    Args:
        seed: of the experiment.
        test: fraction of central test examples of each class.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - other sources do not need it
    except ImportError as error:
        raise UsageError(
            "The digits need scikit-learn, which is not installed. "
            "Install it with: pip install 'fedloom[sim]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    loaded = LoadedData(train=Examples(x=x, y=labels.astype(np.int64)), num_classes=10)
    return keep_for_test(loaded, test=check_test(test), seed=seed)


def idx_folder(*, folder: str) -> LoadedData:
    """A folder in MNIST's layout, with its test part.

    Args:
        folder: holds the four files, gzipped or not.
    """
    return _from_mnist_layout(Path(folder).expanduser())


def mnist(*, folder: str | None = None, download: bool = False) -> LoadedData:
    """60,000 and 10,000 handwritten digits of shape (1, 28, 28).

    Args:
        folder: of the four files; default: `mnist` in the cache.
        download: download 11.6 MB if they are missing.
    """
    return _from_mnist_layout(
        locate(MNIST, folder=folder, download=download, present=_gzipped_or_not)
    )


def fashion_mnist(*, folder: str | None = None, download: bool = False) -> LoadedData:
    """60,000 and 10,000 pictures of clothing of shape (1, 28, 28) in ten classes.

    Args:
        folder: of the four files; default: `fashion-mnist` in the cache.
        download: download 30.9 MB if they are missing.
    """
    return _from_mnist_layout(
        locate(FASHION_MNIST, folder=folder, download=download, present=_gzipped_or_not)
    )


def emnist(
    *,
    folder: str | None = None,
    variant: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced",
) -> LoadedData:
    """Handwritten letters and digits of shape (1, 28, 28); up to 697,932 of them.

    Args:
        folder: of the files of NIST's `gzip.zip`; default: `emnist` in the cache.
        variant: one of the six splits.
    """
    where = Path(folder).expanduser() if folder else data_folder() / "emnist"
    if not where.is_dir():
        raise UsageError(
            f"The folder {where} with emnist-{variant}-train-images-idx3-ubyte.gz and three more "
            "files does not exist. Unpack NIST's gzip.zip, and set folder to its folder."
        )
    parts = []
    for part in ("train", "test"):
        images, labels = idx.read_pair(where, f"emnist-{variant}-{part}")
        if variant == "letters":
            labels = labels - np.uint8(1)
        parts.append(_examples(images.swapaxes(1, 2), labels))
    return LoadedData(train=parts[0], test=parts[1], num_classes=_EMNIST_CLASSES[variant])


def cifar10(*, folder: str | None = None, download: bool = False) -> LoadedData:
    """50,000 and 10,000 colour images of shape (3, 32, 32) in ten classes.

    Args:
        folder: of `cifar-10-binary.tar.gz`, `cifar-10-python.tar.gz`, or the unpacked files of
            one of them; default: `cifar10` in the cache.
        download: download 170 MB if they are missing.
    """
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar(
        CIFAR10, folder=folder, download=download, train=train, test="test_batch.bin", classes=10
    )


def cifar100(*, folder: str | None = None, download: bool = False) -> LoadedData:
    """50,000 and 10,000 colour images of shape (3, 32, 32) in a hundred (fine) classes.

    Args:
        folder: of `cifar-100-binary.tar.gz`, `cifar-100-python.tar.gz`, or the unpacked files of
            one of them; default: `cifar100` in the cache.
        download: download 169 MB if they are missing.
    """
    return _cifar(
        CIFAR100,
        folder=folder,
        download=download,
        train=["train.bin"],
        test="test.bin",
        classes=100,
    )


def _from_mnist_layout(folder: Path) -> LoadedData:
    train, test = (_examples(*idx.read_pair(folder, part)) for part in idx.PARTS)
    num_classes = int(max(train.y.max(), test.y.max())) + 1
    return LoadedData(train=train, test=test, num_classes=num_classes)


def _examples(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Examples:
    x = np.empty((len(images), 1, *images.shape[1:]), np.float32)
    np.divide(images, np.float32(255), out=x[:, 0], dtype=np.float32)
    return Examples(x=x, y=labels.astype(np.int64))


def _gzipped_or_not(folder: Path, file: KnownFile) -> bool:
    return any((folder / name).is_file() for name in (file.name, file.name.removesuffix(".gz")))


def _cifar(
    known: KnownSet,
    *,
    folder: str | None,
    download: bool,
    train: list[str],
    test: str,
    classes: int,
) -> LoadedData:
    def unpacked(where: Path) -> Path | None:
        for candidate in (where, *where.glob("cifar-*-b*")):
            if all((candidate / name).is_file() for name in (*train, test)):
                return candidate
        return None

    def present(where: Path, file: KnownFile) -> bool:
        binary = (where / file.name).is_file() or unpacked(where) is not None
        return binary or cifar_python.present(where, classes)

    where = locate(known, folder=folder, download=download, present=present)
    if unpacked(where) is None and not (where / known.files[0].name).is_file():
        in_train, in_test = cifar_python.read(where, classes)
        return LoadedData(train=in_train, test=in_test, num_classes=classes)
    found = unpacked(where) or _unpack(where / known.files[0].name, [*train, test])
    return LoadedData(
        train=_read_cifar([found / name for name in train], classes),
        test=_read_cifar([found / test], classes),
        num_classes=classes,
    )


def _unpack(archive: Path, names: list[str]) -> Path:
    """Unpack the named files, from any folder in the archive, beside the archive."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # By file name only: paths in the archive must not decide where files are written.
                name = member.name.rsplit("/", 1)[-1]
                if name in names and (content := tar.extractfile(member)):
                    (archive.parent / name).write_bytes(content.read())
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UsageError(
            f"{archive} cannot be unpacked: {error}. Download it again, or unpack it yourself."
        ) from error
    return archive.parent


def _read_cifar(paths: list[Path], classes: int) -> Examples:
    label_bytes = 1 if classes == 10 else 2
    record = label_bytes + _PIXELS
    try:
        sizes = [path.stat().st_size for path in paths]
    except OSError as error:
        raise UsageError(f"CIFAR cannot be read: {error}.") from error
    for path, size in zip(paths, sizes, strict=True):
        if size % record or not size:
            raise UsageError(
                f"Expected {path} to hold records of {record} bytes, got {size} bytes. Use the "
                f"binary version of CIFAR-{classes}."
            )
    total = sum(sizes) // record
    x, y = np.empty((total, 3, 32, 32), np.float32), np.empty(total, np.int64)
    start = 0
    for path in paths:
        rows = np.memmap(path, np.uint8, "r").reshape(-1, record)
        stop = start + len(rows)
        pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32)
        np.divide(pixels, np.float32(255), out=x[start:stop], dtype=np.float32)
        y[start:stop] = rows[:, label_bytes - 1]
        start = stop
    if y.max() >= classes:
        raise UsageError(
            f"Expected labels below {classes} in {paths[0].parent}, got {y.max()}. Use the "
            f"binary version of CIFAR-{classes}."
        )
    return Examples(x=x, y=y)
