"""Data that a program has: arrays, torch and Hugging Face data sets, or a dictionary of clients.

Invariants: nothing of the data is in a message but names, shapes, dtypes and class numbers; the
names of clients in a dictionary are its keys, as text.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.datasets import is_dataset, splits_of
from fedloom.simulation.data.population import Examples
from fedloom.simulation.partition.base import ExamplePool, Split, grouped
from fedloom.simulation.sources import arrays, huggingface
from fedloom.simulation.sources.base import LoadedData, check_test, hold_out, keep_for_test
from fedloom.simulation.sources.checks import kind_of
from fedloom.simulation.sources.columns import LENGTH, WORDS, Columns, Reader

TEST = 0.2
"""Fraction of central test examples, as of files."""
Pair = tuple[NDArray[Any], NDArray[Any]]
"""Inputs and targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One client for each owner, of the owner's name: the split of a dictionary of clients."""

    def deal(self, pool: ExamplePool) -> Split:
        """Split a pool; see `Partitioner.deal`."""
        names, owner = np.unique(pool.ids("named"), return_inverse=True)
        return Split(shards=grouped(owner, len(names)), names=names.tolist())


def in_memory(
    data: Any,
    *,
    seed: int = 0,
    test: Any = None,
    num_classes: int | None = None,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    client: str | None = None,
    text: str | None = None,
    length: int = LENGTH,
    words: int = WORDS,
    unit: str = "words",
    columns: Callable[[Any], Any] | str | None = None,
    mapped: bool = False,
) -> LoadedData:
    """Data of a program, before they are split over clients.

    >>> x, y = np.zeros((10, 2)), np.arange(10) % 2
    >>> loaded = in_memory({"north": (x, y), "south": (x, y)}, test=0.2)
    >>> len(loaded.train), len(loaded.test), sorted(set(loaded.owners.tolist()))
    (16, 4, ['north', 'south'])

    Args:
        data: (inputs, targets) as arrays, tensors or lists; a torch data set of map style; a
            Hugging Face data set, or its splits; or any of these by the name of a client.
        seed: of the draw of test examples.
        test: their fraction, or central test examples in one of the forms of `data`; default: the
            split `test` of a Hugging Face data set, or 0.2. Of a dictionary of clients the
            fraction is taken of each client.
        num_classes: needed if no example has the last classes.
        inputs: column of inputs of a Hugging Face data set; default: the only one left. A list of
            columns of numbers, booleans and categories becomes one vector.
        target: column of targets; default: the only one of class labels, or named label.
        client: column of owners, for a split by owner.
        text: column of texts of a Hugging Face data set, instead of `inputs`.
        length: tokens of a text; further ones are dropped.
        words: the most frequent that have a token.
        unit: of a token, `words` or `characters`.
        columns: instead of `inputs` and `target`: a function of a row of a Hugging Face data set,
            or `FILE.py:NAME`, that returns (x, y).
        mapped: a Hugging Face data set is larger than memory: it is converted once, some rows at a
            time, and then inputs are read row by row.

    Raises:
        UsageError: it has another form, no examples, or inputs and targets that do not match.
    """
    wanted = Columns(
        inputs=inputs, target=target, client=client, text=text, length=length, words=words,
        unit=unit, columns=columns,
    )  # fmt: skip
    splits = splits_of(data)
    if splits is not None:
        data, held_split = splits
        test = held_split if test is None else test
    if test is None:
        test = TEST
    owners: NDArray[Any] | None = None
    reader = _reader(wanted, data, test)
    if mapped:
        return _mapped(data, test, reader, seed)
    if isinstance(data, Mapping):
        x, y, owners = _clients(data, reader)
    elif is_dataset(data) and reader is not None:
        (x, y), owners = reader.read(data, "data"), reader.owners(data)
    else:
        x, y = _pair(data, "data")
    fraction = isinstance(test, int | float) and not isinstance(test, bool)
    x_test, y_test = None, None
    if not fraction:
        x_test, y_test = _read(test, "test", reader)
    by_client = fraction and isinstance(data, Mapping)
    share = check_test(float(test)) if fraction else 0.0
    if num_classes is None and reader is not None:
        num_classes = len(reader.class_names) or None
    loaded = arrays.loaded(
        x=x, y=y, x_test=x_test, y_test=y_test, owners=owners, num_classes=num_classes,
        test=0.0 if by_client else share, seed=seed,
    )  # fmt: skip
    if reader is not None:
        loaded = replace(loaded, columns=reader.names, class_names=reader.class_names)
    return _kept(loaded, share, seed) if by_client and share else loaded


def _mapped(data: Any, test: Any, reader: Reader | None, seed: int) -> LoadedData:
    if reader is None or not is_dataset(data):
        raise UsageError(
            "Expected one Hugging Face data set with mapped, and a column of clients for those, "
            f"got {type(data).__name__}."
        )
    loaded = huggingface.on_disk(data, "data", reader)
    if is_dataset(test):
        return huggingface.with_tests(loaded, huggingface.on_disk(test, "test", reader))
    if isinstance(test, bool) or not isinstance(test, int | float):
        raise UsageError(
            "Expected test as a fraction or a Hugging Face data set with mapped, got "
            f"{type(test).__name__}."
        )
    return keep_for_test(loaded, test=float(test), seed=seed)


def _reader(wanted: Columns, data: Any, test: Any) -> Reader | None:
    """How Hugging Face data sets are read; None without one."""
    parts = (
        {f"data[{key!r}]": each for key, each in data.items()}
        if isinstance(data, Mapping)
        else {"data": data}
    )
    train = {where: each for where, each in parts.items() if is_dataset(each)}
    tests = {"test": test} if is_dataset(test) else {}
    if train or tests:
        return wanted.reader(train or tests, tests)
    if wanted.given:
        raise UsageError(
            f"Expected a Hugging Face data set with {', '.join(wanted.given)}, got data without "
            "columns. Leave these settings out."
        )
    return None


def _read(value: Any, where: str, reader: Reader | None) -> Pair:
    """Inputs and targets of a Hugging Face data set or of other data."""
    if reader is not None and is_dataset(value):
        return reader.read(value, where)
    return _pair(value, where)


def is_split(data: Any) -> bool:
    """Whether it is a dictionary of clients."""
    return isinstance(data, Mapping) and splits_of(data) is None


def described(examples: Examples) -> str:
    """Shapes, dtypes and a digest of examples: for the record of an experiment."""
    digest = hashlib.blake2b(digest_size=8)
    for array in (examples.x, examples.y):
        digest.update(np.ascontiguousarray(array).data)
    shapes = (f"{a.dtype} {list(a.shape)}" for a in (examples.x, examples.y))
    return f"{' and '.join(shapes)} in memory, {digest.hexdigest()}"


def _clients(
    data: Mapping[Any, Any], reader: Reader | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    names = [str(key) for key in data]
    if not names:
        raise UsageError("Expected data with at least one client, got an empty dictionary.")
    if len(set(names)) < len(names):
        raise UsageError("Expected keys of data that differ as text: they are the clients' names.")
    pairs: list[Pair] = []
    for key, value in data.items():
        where = f"data[{key!r}]"
        found = _read(value, where, reader)
        if not len(found[0]):
            raise UsageError(f"{where} has no examples. Leave this client out.")
        if pairs:
            _check_alike(where, found, pairs[0], f"data[{next(iter(data))!r}]")
        pairs.append(found)
    owners = np.repeat(names, [len(y) for _, y in pairs])
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return x, y, owners


def _check_alike(where: str, found: Pair, first: Pair, other: str) -> None:
    """Refuse a client whose arrays would be converted, or cannot be joined to the others'."""
    for name, mine, theirs in zip(("inputs", "targets"), found, first, strict=True):
        if mine.shape[1:] != theirs.shape[1:] or kind_of(mine) != kind_of(theirs):
            raise UsageError(
                f"Expected {name} of {where} as of {other}, {theirs.dtype} {theirs.shape[1:]} for "
                f"each example, got {mine.dtype} {mine.shape[1:]}."
            )


def _kept(loaded: LoadedData, share: float, seed: int) -> LoadedData:
    """Move a fraction of each client's examples to the test examples."""
    assert loaded.owners is not None
    _, owner = np.unique(loaded.owners, return_inverse=True)
    chosen = np.zeros(len(owner), np.bool_)
    for client, shard in enumerate(grouped(owner, int(owner.max()) + 1)):
        chosen[hold_out(shard, share, seed, client)[1]] = True
    if not chosen.any():
        raise UsageError(
            f"test = {share} takes no example of any client. Set test = 0, or give test examples."
        )
    train = loaded.train
    return replace(
        loaded,
        train=Examples(x=train.x[~chosen], y=train.y[~chosen]),
        test=Examples(x=train.x[chosen], y=train.y[chosen]),
        owners=loaded.owners[~chosen],
    )


def _pair(value: Any, where: str) -> Pair:
    """Inputs and targets of arrays, or of a torch data set."""
    both = isinstance(value, tuple | list) and len(value) == 2
    if both and (isinstance(value, tuple) or hasattr(value[0], "shape")):
        x, y = (
            arrays.as_array(each, f"the {n} of {where}")
            for each, n in zip(value, _NAMES, strict=True)
        )
    elif hasattr(value, "__getitem__") and hasattr(value, "__len__") and not _is_one(value):
        x, y = arrays.stacked(value)
    else:
        raise UsageError(
            f"Expected {where} as (inputs, targets), a torch data set of map style, or a Hugging "
            f"Face data set, got {type(value).__name__}."
        )
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise UsageError(
            f"Expected one target for each input in {where}, got inputs of shape {x.shape} and "
            f"targets of shape {y.shape}."
        )
    return x, y


_NAMES = "inputs", "targets"


def _is_one(value: Any) -> bool:
    """Whether it is a single array, text or table, and no data set."""
    return hasattr(value, "shape") or isinstance(value, str | bytes | Mapping)
