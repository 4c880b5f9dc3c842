"""Examples from files without random access, written once as rows of a file.

Invariant: a folder of converted rows has its name only when it is complete; the name depends on the
files' paths, sizes and times of change, and on the settings.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.mapped import MappedRows, as_model_input
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, as_targets
from fedloom.simulation.sources.checks import class_numbers, joined
from fedloom.simulation.sources.download import data_folder

_VERSION = 2
"""Of what is in a folder."""
Block = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]
"""Inputs, targets and owners of some examples."""


def converted(
    files: Sequence[Path],
    settings: Sequence[Any],
    blocks: Callable[[], Iterable[Block]],
    num_classes: int | None = None,
    *,
    named: bool = False,
) -> LoadedData:
    """Examples of files, converted on first use, in a folder of the cache.

    Args:
        files: that the blocks are of.
        settings: of the conversion.
        blocks: reads the files, in order.
        num_classes: None to find it.
        named: whether targets are classes by any name, which are numbered in ascending order.

    Raises:
        UsageError: inputs have several shapes or dtypes, or there is none.
    """
    folder = prepared(files, settings, lambda part: _write(part, blocks()))
    return _read(folder, num_classes, named)


def prepared(files: Sequence[Path], settings: Sequence[Any], write: Callable[[Path], None]) -> Path:
    """The folder of the cache with what is made of files, made on first use.

    Args:
        files: that it is made of.
        settings: that it depends on.
        write: makes it, in an empty folder.
    """
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = hashlib.sha256(repr((_VERSION, facts, *settings)).encode()).hexdigest()[:32]
    folder = data_folder() / "converted" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
        try:
            write(part)
            part.replace(folder)
        except OSError:
            if not folder.is_dir():  # another process may have been first
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _write(folder: Path, blocks: Iterable[Block]) -> None:
    form: tuple[Any, ...] | None = None
    targets, owners, found = [], [], _Flaws()
    with (folder / "x.rows").open("wb") as rows:
        for x, y, owner in blocks:
            found.look(x)
            if form is None:
                form = (x.dtype.str, x.shape[1:])
            if (x.dtype.str, x.shape[1:]) != form:
                raise UsageError(
                    f"Expected inputs of one form, {form[0]} of shape {form[1]}, got {x.dtype.str} "
                    f"of shape {x.shape[1:]}. Resize or pad them first."
                )
            rows.write(np.ascontiguousarray(x).data)
            targets.append(y)
            owners.append(owner)
    if form is None:
        raise UsageError("Expected examples in the files, got none.")
    np.save(folder / "y.npy", joined(targets, "targets"))
    known = [owner for owner in owners if owner is not None]
    if known:
        np.save(folder / "owners.npy", joined(known, "owners"))
    (folder / "form.json").write_text(json.dumps([*form, found.description]))


@dataclass(slots=True)
class _Flaws:
    """Values of inputs that are not finite as models get them, in a stream of blocks."""

    rows: int = 0
    size: int = 0
    count: int = 0
    first: str = ""

    def look(self, x: NDArray[Any]) -> None:
        """Count those of a block."""
        flawed = ~np.isfinite(as_model_input(x)) if x.dtype.kind == "f" else np.zeros(0, np.bool_)
        odd = np.argwhere(flawed)
        if len(odd) and not self.first:
            row, *place = odd[0].tolist()
            self.first = f"{x[(row, *place)]} at {[self.rows + row, *place]}"
        self.rows += len(x)
        self.size += x.size
        self.count += len(odd)

    @property
    def description(self) -> str:
        """As of `fedloom.simulation.sources.finite.flaws`; empty for none."""
        if not self.count:
            return ""
        return f"{self.count:,} of {self.size:,} values of the inputs, the first {self.first}"


def _read(folder: Path, num_classes: int | None, named: bool) -> LoadedData:
    dtype, shape, flaw = json.loads((folder / "form.json").read_text())
    y = np.load(folder / "y.npy", allow_pickle=False)
    names: tuple[str, ...] = ()
    if named:
        names, y = class_numbers(y)
        num_classes = len(names)
    y, classes = as_targets(y, num_classes)
    owners = folder / "owners.npy"
    rows: Any = MappedRows(folder / "x.rows", np.dtype(dtype), (len(y), *shape))
    return LoadedData(
        train=Examples(x=rows, y=y),
        num_classes=classes,
        class_names=names,
        flaws=tuple(filter(None, (flaw,))),
        owners=np.load(owners, allow_pickle=False) if owners.is_file() else None,
    )
