"""Files of numpy: mapped, not read, so that a device trains on more than it has memory for.

Source: the format of `.npy` as numpy documents it (NEP 1), and of `.npz` as a ZIP archive of such.
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
"""The head of a member in a ZIP archive: its signature, and how long its name and extras are."""


def from_npy(x: str | Path, y: str | Path, **settings: Any) -> Arrays:
    """Map two `.npy` files, inputs and targets, as `numpy.save` writes them.

    Args:
        x: file of inputs, shape (N, …).
        y: file of targets.
        settings: of `Arrays`: dtype, mean, scale, num_classes.

    Raises:
        UsageError: no such file, or no array in it, or lengths that differ.
    """
    return _arrays(_mapped(Path(x)), _mapped(Path(y)), f"{x} and {y}", settings)


def from_npz(path: str | Path, *, x: str = "x", y: str = "y", **settings: Any) -> Arrays:
    """Map two arrays of a `.npz` file; those of `numpy.savez_compressed` are read instead.

    Args:
        path: file.
        x: name of inputs in it.
        y: name of targets.
        settings: of `Arrays`: dtype, mean, scale, num_classes.

    Raises:
        UsageError: no such file or array, or lengths that differ.
    """
    try:
        with zipfile.ZipFile(Path(path).expanduser()) as archive:
            found = [_member(archive, name, Path(path)) for name in (x, y)]
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


def _mapped(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path.expanduser(), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"Expected a .npy file at {path}, got: {error}. Write it with numpy.save(file, array)."
        ) from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"Expected one array at {path}, got an archive. Use from_npz.")
    return found


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    """An array of an archive, mapped where its bytes lie there as they are."""
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
