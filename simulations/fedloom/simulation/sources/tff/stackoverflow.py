"""Stack Overflow as TensorFlow Federated's files: each user a client, the next word the task.

Sources: `tff.simulation.datasets.stackoverflow`: users of `stackoverflow.sqlite`, or of
`stackoverflow_train.h5` and `_test.h5`, have `tokens`, a sentence of words and spaces each;
`stackoverflow.word_count` has lines of a word and a count, the most frequent first. Tokens as in
Reddi et al. 2021, "Adaptive federated optimization", appendix C.4: 0 is padding, then begin, end,
`words` words, and unknown ones.

Invariant: the target at a place is the token after it, and −100, which losses ignore, at padding.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.data.words import most_frequent, numbered_from
from fedloom.simulation.sources.base import LoadedData, keep_for_test
from fedloom.simulation.sources.tff.files import SplitFiles

_IGNORED = -100
_BEGIN, _END, _FIRST = 1, 2, 3
_COUNTS = "stackoverflow.word_count"
_TRAIN, _TEST = (
    SplitFiles(database="stackoverflow.sqlite", name=part, hdf5=f"stackoverflow_{part}.h5")
    for part in ("train", "test")
)

Sentences = list[tuple[str, list[list[str]]]]
"""Users with the words of their sentences."""


def stackoverflow(
    *,
    seed: int,
    folder: str,
    users: int = 1000,
    sentences: int = 128,
    length: int = 20,
    words: int = 10_000,
    test: float = 0.2,
) -> LoadedData:
    """Sentences of users at random.

    Args:
        seed: of the experiment.
        folder: of `stackoverflow.sqlite.lzma`, unpacked or not, or of `stackoverflow_train.h5` and
            optionally `stackoverflow_test.h5`; optionally with `stackoverflow.word_count`.
        users: number of users, of each split.
        sentences: the most of a user, its first ones.
        length: tokens of a sentence; further ones are dropped.
        words: with a token: the most frequent of the file of counts, or of the users read.
        test: fraction of central test examples if there is no split for the test.

    Raises:
        UsageError: h5py is not installed, or a file is missing or not in this format.
    """
    if min(users, sentences, length, words) < 1:
        raise UsageError(
            "Expected users, sentences, length and words >= 1, got "
            f"{users}, {sentences}, {length} and {words}."
        )
    where = Path(folder).expanduser()
    spoken = _read(_TRAIN, where, users, sentences, seed)
    if not spoken:
        raise _TRAIN.expected(where)
    tokens = _vocabulary(where / _COUNTS, spoken, words)
    unknown = _FIRST + words
    train, owners = _examples(spoken, tokens, length, unknown)
    loaded = LoadedData(train=train, num_classes=unknown + 1, owners=owners)
    if not (later := _read(_TEST, where, users, sentences, seed)):
        return keep_for_test(loaded, test=test, seed=seed)
    held, _ = _examples(later, tokens, length, unknown)
    return LoadedData(train=train, test=held, num_classes=unknown + 1, owners=owners)


def _read(split: SplitFiles, where: Path, users: int, sentences: int, seed: int) -> Sentences:
    found = split.clients(
        where, ("tokens",), users=users, examples=sentences, seed=seed,
        purpose="stackoverflow/users",
    )  # fmt: skip
    return [(name, [_text(row, name) for row in held["tokens"]]) for name, held in found]


def _text(row: Any, name: str) -> list[str]:
    try:
        decoded: str = row.decode() if isinstance(row, bytes) else row
        return decoded.split()
    except (UnicodeDecodeError, AttributeError) as error:
        raise UsageError(
            f"Expected texts as tokens of user {name!r} in Stack Overflow's files, got: {error}."
        ) from error


def _vocabulary(file: Path, spoken: Sentences, words: int) -> Mapping[str, int]:
    """Tokens of the most frequent words."""
    if file.is_file():
        ranked = list(islice(_counted(file), words))
    else:
        ranked = most_frequent((row for _, rows in spoken for row in rows), words)
    return numbered_from(ranked, _FIRST)


def _counted(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                parts = line.split()
                if len(parts) != 2 or not parts[1].isdecimal():
                    raise UsageError(
                        f"Expected a word and a count in line {number} of {file}, got "
                        f"{line.strip()[:40]!r}."
                    )
                yield parts[0]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Expected words and counts in {file}, got: {error}.") from error


def _examples(
    spoken: Sentences, tokens: Mapping[str, int], length: int, unknown: int
) -> tuple[Examples, NDArray[Any]]:
    owners = [name for name, rows in spoken for _ in rows]
    rows = np.zeros((len(owners), length + 1), np.int64)
    every: Sequence[list[str]] = [row for _, listed in spoken for row in listed]
    for row, sentence in zip(rows, every, strict=True):
        known = [tokens.get(word, unknown) for word in sentence[:length]]
        whole = [_BEGIN, *known, _END][: length + 1]
        row[: len(whole)] = whole
    y = np.where(rows[:, 1:] == 0, _IGNORED, rows[:, 1:])
    return Examples(x=np.ascontiguousarray(rows[:, :-1]), y=y), np.array(owners)
