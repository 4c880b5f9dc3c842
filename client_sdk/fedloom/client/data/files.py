"""Examples in files of numpy. They are memory-mapped, so that they may exceed the memory.

Sources: the format `.npy` as in numpy's documentation (NEP 1); `.npz` is a ZIP archive of such
files.
"""

import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.shard import Arrays
from fedloom.protocol.errors import UsageError

_LOCAL = struct.Struct("<4s22xHH")
"""Header of a member of a ZIP archive: signature, length of the name, length of the extra field."""


def from_npy(x: str | Path, y: str | Path, **settings: Any) -> Arrays:
    """Map two `.npy` files, inputs and targets, as `numpy.save` writes them.

    Args:
        x: file of inputs, shape (N, …).
        y: file of targets.
        settings: of `Arrays`: dtype, mean, scale, num_classes.

    Raises:
        UsageError: a file is missing or is not an array, or the lengths differ.
    """
    return _arrays(map_npy(Path(x)), map_npy(Path(y)), f"{x} and {y}", settings)


def from_npz(path: str | Path, *, x: str = "x", y: str = "y", **settings: Any) -> Arrays:
    """Map two arrays of a `.npz` file; compressed arrays are read into memory.

    Args:
        path: file.
        x: name of inputs in it.
        y: name of targets.
        settings: of `Arrays`: dtype, mean, scale, num_classes.

    Raises:
        UsageError: the file or an array is missing, or the lengths differ.
    """
    try:
        with zipfile.ZipFile(Path(path).expanduser()) as archive:
            found = [map_npz(archive, name, Path(path)) for name in (x, y)]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(
            f"Expected a .npz file at {path}, got: {error}. Write it with numpy.savez(file, x=…, "
            "y=…)."
        ) from error
    return _arrays(found[0], found[1], str(path), settings)


def _arrays(x: NDArray[Any], y: NDArray[Any], where: str, settings: dict[str, Any]) -> Arrays:
    try:
        return Arrays(x, y, **settings)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def map_npy(path: Path) -> NDArray[Any]:
    """The array of a `.npy` file, mapped.

    Raises:
        UsageError: it is missing or is not an array.
    """
    try:
        found = np.load(path.expanduser(), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"Expected a .npy file at {path}, got: {error}. Write it with numpy.save(file, array)."
        ) from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"Expected one array at {path}, got an archive. Use from_npz.")
    return found


def map_npz(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    """An array of an archive, mapped if it is not compressed.

    Raises:
        UsageError: it is missing or is not of numbers.
        ValueError: it is damaged.
    """
    held = {Path(info.filename).stem: info for info in archive.infolist()}
    if name not in held:
        raise UsageError(
            f"Expected an array {name!r} in {path}, got {', '.join(sorted(held)) or 'none'}."
        )
    info = held[name]
    with archive.open(info) as opened:
        shape, fortran, dtype = _header(opened)
        if dtype.hasobject:
            raise UsageError(f"Expected numbers in {name!r} of {path}, got Python objects.")
        if info.compress_type != zipfile.ZIP_STORED:
            opened.seek(0)
            return np.asarray(np.lib.format.read_array(opened, allow_pickle=False))
        head_bytes = opened.tell()
    with path.expanduser().open("rb") as file:
        file.seek(info.header_offset)
        _, name_bytes, extra_bytes = _LOCAL.unpack(file.read(_LOCAL.size))
    start = info.header_offset + _LOCAL.size + name_bytes + extra_bytes + head_bytes
    flat = np.memmap(path.expanduser(), dtype, "r", start, (math.prod(shape),))
    return flat.reshape(shape, order="F" if fortran else "C")


def _header(opened: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(opened)
    if version not in read:
        raise ValueError(f"a version {version} of the format .npy")
    shape, fortran, dtype = read[version](opened)
    return shape, fortran, dtype
