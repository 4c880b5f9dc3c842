"""Texts as tokens: padding, the most frequent words or characters, and one token for all others.

Invariant: token 0 is padding, words have 1 to W by descending frequency, then in the order of their
code points, and W + 1 is unknown, where W is the number of words asked for.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WORD: Final = re.compile(r"[\w']+|[.,!?;]")
UNITS: Final[Mapping[str, Callable[[str], Sequence[str]]]] = {
    "words": WORD.findall,
    "characters": list,
}
"""How a text is cut."""


def most_frequent(texts: Iterable[Sequence[str]], limit: int) -> list[str]:
    """The most frequent words of texts.

    >>> most_frequent([["a", "b"], ["c", "b"]], limit=2)
    ['b', 'a']
    """
    count = Counter(word for text in texts for word in text)
    return sorted(count, key=lambda word: (-count[word], word))[:limit]


def numbered_from(words: Iterable[str], first: int) -> dict[str, int]:
    """The token of each word.

    >>> numbered_from(["b", "a"], 1)
    {'b': 1, 'a': 2}
    """
    return {word: number for number, word in enumerate(words, first)}


def padded(
    texts: Sequence[Sequence[str]], tokens: Mapping[str, int], *, length: int, unknown: int
) -> NDArray[Any]:
    """Tokens of the first words of texts, int64, shape (N, length).

    >>> padded([["b", "x", "a"], ["a"]], {"b": 1, "a": 2}, length=2, unknown=3)
    array([[1, 3],
           [2, 0]])
    """
    rows = np.zeros((len(texts), length), np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [tokens.get(word, unknown) for word in text[:length]]
        row[: len(found)] = found
    return rows
