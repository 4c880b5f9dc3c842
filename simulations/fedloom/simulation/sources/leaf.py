"""LEAF's files: FEMNIST, Shakespeare and Sentiment140, each user a client.

Source: Caldas et al. 2018, "LEAF: A benchmark for federated settings", and its repository: folders
`train` and `test`, or one folder, of JSON files with `users`, `num_samples` and `user_data`, a
mapping of users to lists `x` and `y`. FEMNIST: 784 (or 128·128) numbers in [0, 1] and one of 62
classes. Shakespeare: 80 characters and the next one. Sentiment140: [id, date, query, user, text]
and 0 or 1.

Invariants: users are in the order of the files' names; Shakespeare's target at a place is the
character after it; in Sentiment140 token 0 is padding and the last one an unknown word.
"""

import json
import math
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.tables import visible
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.data.words import WORD, most_frequent, numbered_from, padded
from fedloom.simulation.sources.base import LoadedData, keep_for_test

LETTERS: Final = "".join(
    (
        "\n !\"&'(),-.",
        string.digits,
        ":;>?",
        string.ascii_uppercase,
        "[]",
        string.ascii_lowercase,
        "}",
    )
)
"""LEAF's 80 characters; a token is an index into them."""
_CLASSES = 62

User = tuple[str, list[Any], list[Any]]
"""Name, inputs and targets."""
Read = Callable[[Sequence[Any], Sequence[Any], str], tuple[NDArray[Any], NDArray[Any]]]


def leaf(
    *,
    seed: int,
    folder: str,
    task: Literal["femnist", "shakespeare", "sent140"],
    test: float = 0.2,
    length: int = 25,
    words: int = 10_000,
) -> LoadedData:
    """Examples in LEAF's format.

    Args:
        seed: of the experiment.
        folder: with folders `train` and optionally `test` of JSON files, or with JSON files.
        task: the data set.
        test: fraction of central test examples if there is no folder `test`.
        length: words of a text, further ones are dropped (sent140).
        words: the most frequent of the training examples that have a token (sent140).

    Raises:
        UsageError: no file is there, or one is not in this format.
    """
    if length < 1 or words < 1:
        raise UsageError(f"Expected length and words >= 1, got {length} and {words}.")
    where = Path(folder).expanduser()
    split = (where / "train").is_dir()
    users = list(_users(where / "train" if split else where))
    read, classes = _reading(task, users, length, words)
    train, owners = _examples(users, read)
    loaded = LoadedData(train=train, num_classes=classes, owners=owners)
    if not split or not (where / "test").is_dir():
        return keep_for_test(loaded, test=test, seed=seed)
    held, _ = _examples(list(_users(where / "test")), read)
    return LoadedData(train=train, test=held, num_classes=classes, owners=owners)


def _users(folder: Path) -> Iterator[User]:
    files = visible(folder, "json")
    if not files:
        raise UsageError(
            f"Expected LEAF's JSON files in {folder}, got none. Set data.folder to LEAF's "
            "data/NAME/data, with its folders train and test."
        )
    known: set[str] = set()
    for file in files:
        for name, x, y in _of_file(file):
            if name in known:
                raise UsageError(f"Expected each user in one file, got {name!r} again in {file}.")
            known.add(name)
            if x:
                yield name, x, y


def _of_file(file: Path) -> Iterator[User]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        names, sizes, held = (document[key] for key in ("users", "num_samples", "user_data"))
        rows = [
            (str(n), int(s), held[n]["x"], held[n]["y"]) for n, s in zip(names, sizes, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"Expected LEAF's users, num_samples and user_data in {file}, got "
            f"{type(error).__name__}: {error}."
        ) from error
    if len(held) > len(rows):
        raise UsageError(
            f"Expected the users of user_data in {file}, {len(held)}, in users, got {len(rows)}."
        )
    for name, size, x, y in rows:
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == size:
            raise UsageError(
                f"Expected {size} inputs and targets of user {name!r} in {file}, got "
                f"{_length(x)} and {_length(y)}."
            )
        yield name, x, y


def _length(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else type(value).__name__


def _examples(users: Sequence[User], read: Read) -> tuple[Examples, NDArray[Any]]:
    if not users:
        raise UsageError("Expected users with examples in LEAF's files, got none.")
    made = [read(x, y, name) for name, x, y in users]
    owners = np.repeat(np.array([name for name, _, _ in users]), [len(y) for _, y in made])
    xs, ys = zip(*made, strict=True)
    if len({x.shape[1:] for x in xs}) > 1:
        raise UsageError(f"Expected inputs of one shape, got {sorted({x.shape[1:] for x in xs})}.")
    return Examples(x=np.concatenate(xs), y=np.concatenate(ys)), owners


def _reading(task: str, users: Sequence[User], length: int, words: int) -> tuple[Read, int]:
    if task == "femnist":
        return _images, _CLASSES
    if task == "shakespeare":
        return _characters, len(LETTERS)
    if task != "sent140":
        raise UsageError(f"Expected task of femnist, shakespeare, sent140, got {task!r}.")
    spoken = (_words(tweet, name) for name, x, _ in users for tweet in x)
    tokens = numbered_from(most_frequent(spoken, words), 1)

    def tweets(x: Sequence[Any], y: Sequence[Any], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        return _tweets(x, y, name, tokens, length, words + 1)

    return tweets, 2


def _images(x: Sequence[Any], y: Sequence[Any], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        pixels = np.array(x, np.float32)
    except (ValueError, TypeError) as error:
        raise _unlike(name, "lists of numbers of one length", str(error)) from None
    side = math.isqrt(pixels.shape[1]) if pixels.ndim == 2 else 0
    if not side or side**2 != pixels.shape[1]:
        raise _unlike(name, "square images as lists of numbers", f"shape {pixels.shape}")
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        raise _unlike(name, "pixels from 0 to 1", f"{pixels.min():g} to {pixels.max():g}")
    return pixels.reshape(-1, 1, side, side), _labels(y, name, _CLASSES)


def _characters(x: Sequence[Any], y: Sequence[Any], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    both = list(zip(x, y, strict=True))
    if not all(isinstance(a, str) and isinstance(b, str) and len(b) == 1 for a, b in both):
        raise _unlike(name, "texts and the next character of each", f"such as {both[0]!r}")
    if len({len(a) for a in x}) > 1 or not x[0]:
        raise _unlike(name, "texts of one length", f"lengths {sorted({len(a) for a in x})}")
    codes = {letter: code for code, letter in enumerate(LETTERS)}
    try:
        rows = np.array([[codes[letter] for letter in a + b] for a, b in both], np.int64)
    except KeyError as error:
        raise _unlike(name, "LEAF's 80 characters", f"{error.args[0]!r}") from None
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


def _words(tweet: Any, name: str) -> list[str]:
    if not isinstance(tweet, list) or len(tweet) != 5 or not isinstance(tweet[4], str):
        raise _unlike(name, "[id, date, query, user, text]", f"{tweet!r}"[:80])
    return WORD.findall(tweet[4])


def _tweets(  # noqa: PLR0917 - a tokeniser's settings
    x: Sequence[Any],
    y: Sequence[Any],
    name: str,
    tokens: Mapping[str, int],
    length: int,
    unknown: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = padded([_words(tweet, name) for tweet in x], tokens, length=length, unknown=unknown)
    return rows, _labels(y, name, 2)


def _labels(y: Sequence[Any], name: str, classes: int) -> NDArray[np.int64]:
    if not all(type(label) is int and 0 <= label < classes for label in y):
        odd = next(label for label in y if type(label) is not int or not 0 <= label < classes)
        raise _unlike(name, f"class numbers from 0 to {classes - 1}", f"{odd!r}")
    return np.array(y, np.int64)


def _unlike(name: str, expected: str, got: str) -> UsageError:
    return UsageError(f"Expected {expected} for user {name!r}, got {got}. Check data.task.")
