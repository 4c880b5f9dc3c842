"""Clients of the files that TensorFlow Federated distributes: SQLite databases and HDF5 files.

Sources: `tff.simulation.datasets.SqlClientData`: a table `examples` of `split_name`, `client_id`
and `serialized_example_proto`, a `tf.train.Example`, and a table `client_metadata` of `client_id`,
`split_name` and `num_examples`; the database is compressed by LZMA. `HDF5ClientData`, its older
form: a file for each split has a group `examples` with a group for each client, with a data set for
each feature.

Invariants: clients are in the order of their names, examples in that of the file; a database with
fewer examples than its metadata say is refused.
"""

import lzma
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.simulation.seeds import stream
from fedloom.simulation.sources.converted import prepared
from fedloom.simulation.sources.tff.example import features

Client = tuple[str, dict[str, Sequence[Any]]]
"""Its name, and the values of its examples by feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFiles:
    """A split of a data set in a folder, in one of the two forms.

    Attributes:
        database: name of the SQLite file, which may have `.lzma` after it.
        name: of the split in the database.
        hdf5: name of the HDF5 file, which is read if both are there.
    """

    database: str
    name: str
    hdf5: str

    def clients(
        self,
        folder: Path,
        wanted: Sequence[str],
        *,
        users: int | None = None,
        examples: int | None = None,
        seed: int = 0,
        purpose: str = "tff/users",
    ) -> list[Client]:
        """Clients with at least one example; empty if the folder has no such split.

        Args:
            folder: of the files.
            wanted: names of features.
            users: how many, at random; None for all.
            examples: the most of a client, its first ones; None for all.
            seed: of the experiment.
            purpose: name of the random stream.

        Raises:
            UsageError: a file is damaged or not in this format, or h5py is not installed.
        """

        def chosen(names: list[str]) -> list[str]:
            if users is None:
                return names
            places = stream(seed, purpose).permutation(len(names))[:users]
            return [names[place] for place in np.sort(places).tolist()]

        if (file := folder / self.hdf5).is_file():
            found = _from_hdf5(file, wanted, chosen, examples)
        elif (database := self._database(folder)) is not None:
            found = _from_database(database, self.name, wanted, chosen, examples)
        else:
            return []
        return [(name, held) for name, held in found if len(held[wanted[0]])]

    def expected(self, folder: Path) -> UsageError:
        """The error for a folder without this split."""
        return UsageError(
            f"Expected {self.hdf5}, or {self.database}[.lzma] with examples of the split "
            f"{self.name!r}, in {folder}, got none. Set data.folder to the folder of TensorFlow "
            "Federated's files."
        )

    def _database(self, folder: Path) -> Path | None:
        if (plain := folder / self.database).is_file():
            return plain
        packed = folder / f"{self.database}.lzma"
        if not packed.is_file():
            return None

        def unpack(into: Path) -> None:
            try:
                with lzma.open(packed) as opened, (into / "data.sqlite").open("wb") as out:
                    shutil.copyfileobj(opened, out, 1 << 20)
            except (lzma.LZMAError, EOFError, OSError) as error:
                raise UsageError(
                    f"{packed} cannot be unpacked: {error}. Download it again, or unpack it to "
                    f"{self.database}."
                ) from error

        return prepared([packed], ("lzma",), unpack) / "data.sqlite"


def _from_hdf5(
    file: Path, wanted: Sequence[str], chosen: Any, examples: int | None
) -> Iterator[Client]:
    try:
        h5py = import_module("h5py")  # by name: an optional library
    except ImportError as error:
        raise UsageError(
            "HDF5 files need h5py, which is not installed. Install it with: "
            "pip install 'fedloom[hdf5]'"
        ) from error
    try:
        with h5py.File(file, "r") as opened:
            held = opened["examples"]
            for name in chosen(sorted(held)):
                rows = {feature: held[name][feature][:examples] for feature in wanted}
                yield name, _alike(rows, name, file)
    except (OSError, KeyError, ValueError, AttributeError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"Expected TensorFlow Federated's HDF5 file at {file}, with "
            f"{' and '.join(f'examples/USER/{feature}' for feature in wanted)}, got "
            f"{type(error).__name__}: {error}."
        ) from error


def _alike(rows: dict[str, Any], name: str, file: Path) -> dict[str, Any]:
    lengths = {feature: len(values) for feature, values in rows.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"Expected as many of each feature of {name!r} in {file}, got {lengths}.")
    return rows


_SIZES = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
_EXAMPLES = (
    "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
    "ORDER BY rowid LIMIT ?"
)


def _from_database(
    file: Path, split: str, wanted: Sequence[str], chosen: Any, examples: int | None
) -> Iterator[Client]:
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            sizes = _sizes(opened, split)
            for name in chosen(sorted(sizes)):
                rows = _rows(opened, split, name, sizes[name], examples)
                decoded = [features(row) for row in rows]
                yield name, {each: [row[each] for row in decoded] for each in wanted}
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"Expected TensorFlow Federated's SQLite file at {file}, with examples of "
            f"{' and '.join(wanted)}, got {type(error).__name__}: {error}. Download it again."
        ) from error


def _sizes(opened: sqlite3.Connection, split: str) -> dict[str, int]:
    """The number of examples of each client."""
    listed = opened.execute(_SIZES, (split,)).fetchall()
    sizes = dict(listed)
    if len(sizes) < len(listed) or not all(isinstance(name, str) for name in sizes):
        raise ValueError("clients without a name, or the same one twice")
    return sizes


def _rows(
    opened: sqlite3.Connection, split: str, name: str, size: int, examples: int | None
) -> list[bytes]:
    """Serialized examples of a client."""
    limit = -1 if examples is None else examples
    found = opened.execute(_EXAMPLES, (split, name, limit)).fetchall()
    if len(found) != (size if examples is None else min(size, examples)):
        raise ValueError(f"{len(found)} examples of {name!r}, of which client_metadata has {size}")
    return [row for (row,) in found]
