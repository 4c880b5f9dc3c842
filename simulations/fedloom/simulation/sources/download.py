"""Known data sets: their files, their folders, and how they are downloaded on request.

Sources of the addresses and checksums: Fashion-MNIST, CIFAR and the mirror of MNIST as recorded by
TensorFlow Datasets (`url_checksums`); tinyshakespeare was checked against a copy.

Invariants: nothing is downloaded unless requested; a file gets its name only when it is complete
and its SHA-256 is correct.
"""

import hashlib
import os
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from fedloom.protocol.errors import UnavailableError, UsageError

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """One file of a known set.

    Attributes:
        name: in the folder.
        url: its address.
        size_bytes: its length.
        sha256: of its bytes, in hexadecimal.
    """

    name: str
    url: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSet:
    """A set that can be downloaded.

    Attributes:
        name: of the set, and of its folder in the cache.
        files: all its files.
    """

    name: str
    files: tuple[KnownFile, ...]


def _files(address: str, sizes_and_sums: dict[str, tuple[int, str]]) -> tuple[KnownFile, ...]:
    return tuple(
        KnownFile(name=name, url=f"{address}/{name}", size_bytes=size, sha256=digest)
        for name, (size, digest) in sizes_and_sums.items()
    )


MNIST = KnownSet(
    name="mnist",
    files=_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {
            "train-images-idx3-ubyte.gz": (
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            "train-labels-idx1-ubyte.gz": (
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            "t10k-images-idx3-ubyte.gz": (
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        },
    ),
)
FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": (
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            "train-labels-idx1-ubyte.gz": (
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            "t10k-images-idx3-ubyte.gz": (
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        },
    ),
)
CIFAR10 = KnownSet(
    name="cifar10",
    files=_files(
        "https://www.cs.toronto.edu/~kriz",
        {
            "cifar-10-binary.tar.gz": (
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            )
        },
    ),
)
CIFAR100 = KnownSet(
    name="cifar100",
    files=_files(
        "https://www.cs.toronto.edu/~kriz",
        {
            "cifar-100-binary.tar.gz": (
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            )
        },
    ),
)
SHAKESPEARE = KnownSet(
    name="shakespeare",
    files=(
        KnownFile(
            name="tinyshakespeare.txt",
            url=(
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                "tinyshakespeare/input.txt"
            ),
            size_bytes=1_115_394,
            sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        ),
    ),
)


def data_folder() -> Path:
    """The folder of downloaded sets: $FEDLOOM_DATA, or in the user's cache."""
    if chosen := os.environ.get("FEDLOOM_DATA"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "fedloom" / "data"


def locate(
    known: KnownSet,
    *,
    folder: str | None,
    download: bool,
    present: Callable[[Path, KnownFile], bool] = lambda folder, file: (
        folder / file.name
    ).is_file(),
) -> Path:
    """Find the folder of a known set, and download missing files if requested.

    Args:
        known: the set.
        folder: of its files; default: a folder of its name in `data_folder`.
        download: whether to download missing files.
        present: whether a folder has a file or its unpacked content; default: by its name.

    Raises:
        UsageError: files are missing and `download` is false, or a checksum is wrong.
        UnavailableError: the download failed.
    """
    where = Path(folder).expanduser() if folder else data_folder() / known.name
    missing = [file for file in known.files if not present(where, file)]
    if missing and not download:
        size = sum(file.size_bytes for file in missing) / 1e6
        host = missing[0].url.split("/")[2]
        raise UsageError(
            f"The data set {known.name!r} is not in {where}: no "
            f"{' and no '.join(file.name for file in missing)}. Set folder to the folder of the "
            f"files, or download = true to download {size:.3g} MB from {host} into it."
        )
    for file in missing:
        fetch(file, where)
    return where


def fetch(file: KnownFile, folder: Path) -> Path:
    """Download one file and check it, with a progress bar on a terminal.

    Returns:
        The path of the file.

    Raises:
        UsageError: it is not the expected file; it is deleted.
        UnavailableError: the download failed; nothing is kept.
    """
    if not file.url.startswith(("https://", "http://")):
        raise UsageError(f"Expected an address over https or http, got {file.url}.")
    target = folder / file.name
    partial = folder / f"{file.name}.{os.getpid()}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            size, digest = _copy(file, out)
        if (size, digest) != (file.size_bytes, file.sha256):
            raise UsageError(
                f"Expected {file.url} to be {file.size_bytes} bytes with SHA-256 {file.sha256}, "
                f"got {size} with {digest}; it was deleted. Download it elsewhere, check it, and "
                "set folder to its folder."
            )
        partial.replace(target)
    except (OSError, HTTPException) as error:
        raise UnavailableError(
            f"The download of {file.url} into {folder} failed: {error}. Try again, or download it "
            "elsewhere and set folder to its folder."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def _copy(file: KnownFile, out: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    # The scheme was checked; the content is checked by its SHA-256.
    with (
        urllib.request.urlopen(file.url, timeout=_TIMEOUT_S) as answer,  # noqa: S310
        _progress(file) as advance,
    ):
        # One byte beyond the length shows that the file is too long.
        while size <= file.size_bytes and (chunk := answer.read(_CHUNK_BYTES)):
            digest.update(chunk)
            out.write(chunk)
            size += len(chunk)
            advance(len(chunk))
    return size, digest.hexdigest()


@contextmanager
def _progress(file: KnownFile) -> Iterator[Callable[[float], None]]:
    # Imported here: only needed for downloads.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(file.name, total=file.size_bytes)
        yield lambda size: bar.advance(task, size)
