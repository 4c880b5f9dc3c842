"""Images and labels in the IDX format of MNIST and its successors.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits", section
"File formats": two zero bytes, the type of the values (8: unsigned byte), the number of
dimensions, then the size of each as a big-endian 32-bit integer, then the values in row-major
order.

Invariant: nothing is read beyond the size that the header declares, so a compressed file cannot use
more memory than that.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError

PARTS = ("train", "t10k")
_UNSIGNED_BYTE = 8
# Far above any set in this format; a header with more is damaged.
_MAX_BYTES = 1 << 32


def read_pair(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the images and labels of one part of a folder in MNIST's layout.

    Args:
        folder: holds `{part}-images-idx3-ubyte` and `{part}-labels-idx1-ubyte`, or with `.gz`.
        part: `train` or `t10k`.

    Returns:
        uint8 images of shape (num_examples, height, width) and uint8 labels (num_examples,).

    Raises:
        UsageError: a file is missing, damaged or empty, or the two do not match.
    """
    images = read(_find(folder, f"{part}-images-idx3-ubyte"), num_dimensions=3)
    labels = read(_find(folder, f"{part}-labels-idx1-ubyte"), num_dimensions=1)
    if len(images) != len(labels):
        raise UsageError(
            f"Expected as many labels as images in the {part!r} files of {folder}, "
            f"got {len(images)} images and {len(labels)} labels. Take both from one release."
        )
    if images.size == 0:
        raise UsageError(f"Expected images in the {part!r} files of {folder}, got {images.shape}.")
    return images, labels


def read(path: Path, *, num_dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes.

    Args:
        path: the file, gzipped if its name ends in `.gz`.
        num_dimensions: its expected number of dimensions.

    Returns:
        uint8, of the shape that the header gives; read-only.

    Raises:
        UsageError: it cannot be read, or its header or its length is wrong.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            return _parse(cast("IO[bytes]", file), path, num_dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"Expected to read {path} as {'gzipped ' * (path.suffix == '.gz')}IDX, got: {error}. "
            "Download it again."
        ) from error


def _parse(file: IO[bytes], path: Path, num_dimensions: int) -> NDArray[np.uint8]:
    expected = bytes([0, 0, _UNSIGNED_BYTE, num_dimensions])
    magic = file.read(4)
    if magic != expected:
        raise UsageError(
            f"Expected {path} to begin with {expected.hex(' ')} (IDX, unsigned bytes, "
            f"{num_dimensions} dimensions), got {magic.hex(' ') or 'an empty file'}. "
            "Is it another file under this name, or gzipped without .gz?"
        )
    header = file.read(4 * num_dimensions)
    if len(header) != 4 * num_dimensions:
        raise UsageError(f"Expected {num_dimensions} sizes in the header of {path}, it ends there.")
    shape = struct.unpack(f">{num_dimensions}I", header)
    size = math.prod(shape)
    if size > _MAX_BYTES:
        raise UsageError(
            f"Expected at most {_MAX_BYTES} values in {path}, its header says {shape}."
        )
    body = file.read(size)
    if len(body) != size or file.read(1):
        got = f"only {len(body)}" if len(body) != size else "more"
        raise UsageError(
            f"Expected {size} values in {path} after a header that says {shape}, got {got}. "
            "Download it again."
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise UsageError(f"The folder {folder} of IDX files does not exist.")
    raise UsageError(
        f"Expected {name} or {name}.gz in {folder}, found neither. "
        "Put the four files of MNIST, or of a set in its layout, there."
    )
