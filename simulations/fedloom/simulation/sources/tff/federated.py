"""EMNIST, CIFAR-100 and Shakespeare as TensorFlow Federated distributes them.

Source: `tff.simulation.datasets`: EMNIST has `pixels`, 28·28 numbers in [0, 1] of which 1 is the
background, and `label`; CIFAR-100 has `image`, bytes of shape (32, 32, 3), and `label`; Shakespeare
has `snippets`, a speech each. Tokens as in Reddi et al. 2021, "Adaptive federated optimization",
appendix C.3: 0 is padding, then begin, end, 86 characters, and unknown ones: 90.

Invariants: clients are in the order of their names; Shakespeare's windows of a speech share the
character at their border, so each is a target once (the paper's do not, and lose one in 81); the
target at padding is −100, which losses ignore.
"""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import lookup
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, as_inputs, keep_for_test
from fedloom.simulation.sources.tff.files import Client, SplitFiles

CHARACTERS: Final = "\n\r !\"#$%&'()*,-./:;?@[]_" + string.digits + string.ascii_letters
"""Token 3 is the first of them, 89 any other character."""
_BEGIN, _END, _FIRST = 1, 2, 3
_TOKENS = _FIRST + len(CHARACTERS) + 1
_IGNORED = -100

Pair = tuple[NDArray[Any], NDArray[Any]]


def tff(
    *,
    seed: int,
    folder: str,
    task: Literal["emnist", "emnist-digits", "cifar100", "shakespeare"],
    users: int | None = None,
    length: int = 80,
    test: float = 0.2,
) -> LoadedData:
    """A data set of TensorFlow Federated, each of its users a client.

    Args:
        seed: of the experiment.
        folder: of the database, such as `emnist_all.sqlite.lzma`, unpacked or not, or of the HDF5
            files, such as `fed_emnist_train.h5` and `fed_emnist_test.h5`.
        task: the data set.
        users: number of users at random, of each split; None for all.
        length: characters of a window (shakespeare).
        test: fraction of central test examples if the folder has no split for the test.

    Raises:
        UsageError: no file is there, or one is damaged or not in this format.
    """
    if length < 1 or (users is not None and users < 1):
        raise UsageError(f"Expected users and length >= 1, got {users} and {length}.")
    parts, classes, wanted = lookup("a task", task, _TASKS)
    read = _windows(length) if task == "shakespeare" else _images(classes, wanted)
    where = Path(folder).expanduser()
    found = parts[0].clients(where, wanted, users=users, seed=seed)
    if not found:
        raise parts[0].expected(where)
    train, owners = _examples(found, read)
    loaded = LoadedData(train=train, num_classes=classes, owners=owners)
    if not (later := parts[1].clients(where, wanted, users=users, seed=seed)):
        return keep_for_test(loaded, test=test, seed=seed)
    held, _ = _examples(later, read)
    return LoadedData(train=train, test=held, num_classes=classes, owners=owners)


def _splits(database: str, files: str, prefix: str = "") -> tuple[SplitFiles, SplitFiles]:
    train, test = (
        SplitFiles(database=database, name=f"{prefix}{part}", hdf5=f"{files}_{part}.h5")
        for part in ("train", "test")
    )
    return train, test


_TASKS: Final[dict[str, tuple[tuple[SplitFiles, SplitFiles], int, tuple[str, ...]]]] = {
    "emnist": (_splits("emnist_all.sqlite", "fed_emnist", "all_"), 62, ("pixels", "label")),
    "emnist-digits": (
        _splits("emnist_all.sqlite", "fed_emnist_digitsonly", "digits_only_"),
        10,
        ("pixels", "label"),
    ),
    "cifar100": (_splits("cifar100.sqlite", "fed_cifar100"), 100, ("image", "label")),
    "shakespeare": (_splits("shakespeare.sqlite", "shakespeare"), _TOKENS, ("snippets",)),
}


def _examples(
    found: Sequence[Client], read: Callable[[Client], Pair]
) -> tuple[Examples, NDArray[Any]]:
    xs, ys = zip(*map(read, found), strict=True)
    owners = np.repeat(np.array([name for name, _ in found]), [len(y) for y in ys])
    return Examples(x=np.concatenate(xs), y=np.concatenate(ys)), owners


def _images(classes: int, wanted: tuple[str, ...]) -> Callable[[Client], Pair]:
    shape = (28, 28) if wanted[0] == "pixels" else (32, 32, 3)

    def read(client: Client) -> Pair:
        name, held = client
        try:
            x = np.stack([np.asarray(image).reshape(shape) for image in held[wanted[0]]])
            y = np.array([np.asarray(label).item() for label in held["label"]])
        except (ValueError, TypeError) as error:
            raise _unlike(name, f"{wanted[0]} of shape {shape} and one label each", error) from None
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
            raise _unlike(name, f"labels from 0 to {classes - 1}", f"{y.min()} to {y.max()}")
        largest, kinds = (1, "f") if x.ndim == 3 else (255, "iu")
        if x.dtype.kind not in kinds or not (x.min() >= 0 and x.max() <= largest):
            raise _unlike(name, f"pixels from 0 to {largest}", f"{x.dtype} {x.min()} to {x.max()}")
        if x.ndim == 3:
            return x[:, np.newaxis].astype(np.float32), y.astype(np.int64)
        return as_inputs(x.astype(np.uint8).transpose(0, 3, 1, 2)), y.astype(np.int64)

    return read


def _windows(length: int) -> Callable[[Client], Pair]:
    codes = np.full(256, _TOKENS - 1, np.int64)
    codes[np.frombuffer(CHARACTERS.encode(), np.uint8)] = _FIRST + np.arange(len(CHARACTERS))

    def speech(snippet: bytes) -> NDArray[np.int64]:
        tokens = codes[np.frombuffer(snippet, np.uint8)]
        count = -(-(len(tokens) + 1) // length)
        row = np.zeros(count * length + 1, np.int64)
        row[: len(tokens) + 2] = [_BEGIN, *tokens, _END]
        windows: NDArray[np.int64] = row[
            np.arange(count)[:, np.newaxis] * length + np.arange(length + 1)
        ]
        return windows

    def read(client: Client) -> Pair:
        name, held = client
        if odd := [text for text in held["snippets"] if not isinstance(text, bytes)]:
            raise _unlike(name, "snippets of text", type(odd[0]).__name__)
        rows = np.concatenate([speech(text) for text in held["snippets"]])
        x, y = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
        return x, np.where(y == 0, _IGNORED, y)

    return read


def _unlike(name: str, expected: str, got: object) -> UsageError:
    return UsageError(f"Expected {expected} for user {name!r}, got {got}. Check data.task.")
