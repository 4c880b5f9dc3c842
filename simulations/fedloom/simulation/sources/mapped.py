"""Arrays of NumPy that stay in their files.

Invariant: inputs are never in memory as a whole; targets of one number and owners are.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.files import map_npy, map_npz
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.mapped import of_memmap
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.arrays import classes_of
from fedloom.simulation.sources.base import LoadedData, as_targets, keep_for_test
from fedloom.simulation.sources.checks import check_kinds
from fedloom.simulation.sources.finite import flaws

_NAMES = ("x", "y", "x_test", "y_test", "owners")


def mapped(
    *, seed: int, file: str, num_classes: int | None = None, test: float | None = None
) -> LoadedData:
    """Arrays `x` and `y`, and optional `x_test`, `y_test` and `owners`, memory-mapped.

    Args:
        seed: of the experiment.
        file: a folder of .npy files of these names, or a .npz file of numpy.savez.
        num_classes: needed if no example has the last classes.
        test: fraction of central test examples; default: 0.2 without `x_test`, else 0.

    Raises:
        UsageError: an array is missing, compressed, of objects or in Fortran order.
    """
    where = Path(file).expanduser()
    held = _folder(where) if where.is_dir() else _archive(where)
    missing = {"x", "y"} - set(held)
    if missing:
        raise UsageError(
            f"Expected arrays x and y in {where}, got no {' and no '.join(sorted(missing))}. Write "
            "x.npy and y.npy with numpy.save, or one file with numpy.savez."
        )
    if ("x_test" in held) != ("y_test" in held):
        raise UsageError(f"Expected x_test and y_test in {where}, or neither, got one of them.")
    if num_classes is None:
        num_classes = classes_of(held["y"], held.get("y_test"))
    train, classes, found = _examples(held, "", num_classes, where)
    owners = np.array(held["owners"]) if "owners" in held else None
    if owners is not None and owners.shape != (len(train),):
        raise UsageError(
            f"Expected one owner for each of {len(train)} examples, got owners of {owners.shape}."
        )
    loaded = LoadedData(train=train, num_classes=classes, owners=owners, flaws=found)
    if "x_test" not in held:
        return keep_for_test(loaded, test=0.2 if test is None else test, seed=seed)
    if test:
        raise UsageError(f"Expected x_test or test, got both (test = {test}).")
    check_kinds(held["x"], held["x_test"])
    tested, _, more = _examples(held, "_test", classes, where)
    return LoadedData(
        train=train, test=tested, num_classes=classes, owners=owners, flaws=(*found, *more)
    )


def _folder(folder: Path) -> dict[str, NDArray[Any]]:
    return {n: map_npy(folder / f"{n}.npy") for n in _NAMES if (folder / f"{n}.npy").is_file()}


def _archive(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as archive:
            there = {Path(name).stem for name in archive.namelist()}
            return {name: map_npz(archive, name, file) for name in _NAMES if name in there}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UsageError(
            f"Expected a folder of .npy files, or a .npz file, at {file}, got: {error}."
        ) from error


def _examples(
    held: dict[str, NDArray[Any]], part: str, classes: int | None, where: Path
) -> tuple[Examples, int | None, tuple[str, ...]]:
    x, y = held[f"x{part}"], held[f"y{part}"]
    if not isinstance(x, np.memmap):
        raise UsageError(
            f"Expected x{part} of {where} without compression, which cannot be mapped. Write it "
            'with numpy.savez or numpy.save, or read it into memory with source = "arrays".'
        )
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or not len(x):
        raise UsageError(
            f"Expected one target for each of one or more inputs in {where}, got {x.shape} and "
            f"{y.shape}."
        )
    targets, classes = as_targets(np.array(y), classes)
    rows: Any = of_memmap(x, f"x{part} of {where}")
    made = Examples(x=rows, y=targets)
    found = flaws(made, (x, y), (f"x{part} of {where}", f"y{part} of {where}"))
    return made, classes, found
