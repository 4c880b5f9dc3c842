"""Columns of Hugging Face data sets as inputs and targets: numbers, texts or mixed columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.cli.common.load_code import find
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import lookup
from fedloom.protocol.user_code import summarised
from fedloom.simulation.data.datasets import column, inputs_of, pieces, target_of
from fedloom.simulation.data.features import (
    Feature,
    categories,
    cells,
    class_names,
    feature,
    has_texts,
    numbered_classes,
)
from fedloom.simulation.data.words import UNITS, most_frequent, numbered_from, padded
from fedloom.simulation.sources.arrays import stacked

LENGTH: Final = 25
"""Tokens of a text."""
WORDS: Final = 10_000
"""Words with a token."""
Parts: TypeAlias = Mapping[str, Any]
"""Data sets by their names in errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Settings: the columns to read, and how.

    Attributes:
        inputs: a column of inputs, or several that become one vector; None to find it.
        text: a column of texts, instead of `inputs`; None for none.
        target: of targets; None to find it.
        client: of owners; None for none.
        length: tokens of a text; further ones are dropped.
        words: the most frequent words or characters of the training examples that have a token.
        unit: of a token, `words` or `characters`.
        columns: a function of a row, or `FILE.py:NAME`, that returns (x, y); None for none.

    Raises:
        UsageError: settings out of range, or that exclude each other.
    """

    inputs: str | Sequence[str] | None = None
    text: str | None = None
    target: str | None = None
    client: str | None = None
    length: int = LENGTH
    words: int = WORDS
    unit: str = "words"
    columns: Callable[[Any], Any] | str | None = None

    def __post_init__(self) -> None:
        lookup("a unit of text", self.unit, UNITS)
        if not all(type(n) is int and n >= 1 for n in (self.length, self.words)):
            raise UsageError(
                f"Expected length and words as whole numbers >= 1, got {self.length!r} and "
                f"{self.words!r}."
            )
        if self.text is not None and self.inputs is not None:
            raise UsageError(
                f"Expected text or inputs, got text = {self.text!r} and inputs = {self.inputs!r}. "
                "Text and other columns are not joined to one input: give columns, a function of "
                "a row that returns (x, y)."
            )
        if self.columns is not None and any((self.inputs, self.text, self.target)):
            raise UsageError(
                "Expected columns without inputs, text and target: the function of a row returns "
                "(x, y)."
            )

    @property
    def given(self) -> list[str]:
        """Settings that need a data set with columns."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def reader(self, train: Parts, tests: Parts) -> "Reader":
        """How to read these data sets, by their names in errors.

        Args:
            train: words of texts are theirs.
            tests: categories and classes are of all.

        Raises:
            UsageError: a column is missing, not decided or of another kind.
        """
        if self.columns is not None:
            return Reader(settings=self, row=_function(self.columns))
        where, first = next(iter(train.items()))
        every = {**train, **tests}
        target = self.target or target_of(first, where)
        inputs = self.inputs
        if self.text is None and inputs is None:
            inputs = inputs_of(first, where, {target, self.client})
        if target in (inputs, self.text):
            raise UsageError(f"Expected inputs without the column {target!r}, which is target.")
        vector = None
        if inputs is not None and not isinstance(inputs, str):
            vector = _vector(list(inputs), every, {target: "target", self.client: "client"})
        tokens: Mapping[str, int] = {}
        if self.text is not None:
            spoken = (
                text
                for each, data in train.items()
                for piece, place in pieces(data, each)
                for text in self.texts(piece, place)
            )
            tokens = numbered_from(most_frequent(spoken, self.words), 1)
        return Reader(
            settings=replace(self, inputs=inputs, target=target),
            vector=vector,
            tokens=tokens,
            class_names=_classes(target, every),
        )

    def texts(self, data: Any, where: str) -> list[Sequence[str]]:
        """The column of texts, cut.

        Raises:
            UsageError: a cell is no text.
        """
        assert self.text is not None
        found = cells(data, self.text, where)
        categories([found], self.text, where)
        return [UNITS[self.unit](text) for text in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Settings and what was found in the data.

    Attributes:
        settings: with inputs and target, unless `row` is given.
        row: makes (x, y) of a row; None to read columns.
        vector: the columns of one vector of inputs; None for a single column.
        tokens: of words.
        class_names: names of classes 0, 1, …; empty if they have none.
    """

    settings: Columns
    row: Callable[[Any], Any] | None = None
    vector: Sequence[Feature] | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the places of an input; empty if it is no vector of columns."""
        return [name for each in self.vector or () for name in each.names]

    def owners(self, data: Any) -> NDArray[Any] | None:
        """The owner of each row; None if unknown."""
        client = self.settings.client
        return None if client is None else column(data, client)

    def read(self, data: Any, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Inputs and targets.

        Raises:
            UsageError: a column is missing or not of numbers, or a cell is not valid.
        """
        if self.row is not None:
            return stacked(_Rows(data, self.row, where))
        return self._x(data, where), self._y(data, where)

    def _x(self, data: Any, where: str) -> NDArray[Any]:
        wanted = self.settings
        if wanted.text is not None:
            return padded(
                wanted.texts(data, where), self.tokens,
                length=wanted.length, unknown=wanted.words + 1,
            )  # fmt: skip
        if self.vector is not None:
            encoded = (f.encode(cells(data, f.name, where), where) for f in self.vector)
            return np.concatenate(list(encoded), axis=1)
        found = column(data, str(wanted.inputs))
        if found.dtype.kind not in "fiub":
            raise UsageError(
                f"Expected numbers or images in the column {wanted.inputs!r} of {where}, got "
                f"{found.dtype}. Set text = {wanted.inputs!r} for tokens of a text, inputs = "
                f"[{wanted.inputs!r}] for categories, or columns to a function of a row. Fill "
                "missing cells."
            )
        return found

    def _y(self, data: Any, where: str) -> NDArray[Any]:
        name = str(self.settings.target)
        if self.class_names:
            return numbered_classes(cells(data, name, where), self.class_names, name, where)
        return column(data, name)


class _Rows:
    """A data set of map style: what a function makes of each row."""

    def __init__(self, data: Any, function: Callable[[Any], Any], where: str) -> None:
        self._data, self._function, self._where = data, function, where

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int, /) -> Any:
        try:
            made = self._function(self._data[index])
        except Exception as error:
            raise UsageError(
                f"The function columns failed in row {index + 1} of {self._where}: "
                f"{summarised(error)}."
            ) from error
        if not isinstance(made, tuple) or len(made) != 2:
            raise UsageError(
                f"Expected (x, y) of the function columns, got {type(made).__name__} in row "
                f"{index + 1} of {self._where}."
            )
        return made


def _function(given: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    found: Any = find(given) if isinstance(given, str) else given
    if not callable(found):
        raise UsageError(
            f"Expected columns as a function of a row, or FILE.py:NAME, got {given!r}."
        )
    function: Callable[[Any], Any] = found
    return function


def _vector(names: list[str], parts: Parts, others: Mapping[str | None, str]) -> list[Feature]:
    if not names or len(set(names)) < len(names):
        raise UsageError(f"Expected inputs as different columns, at least one, got {names}.")
    for name in names:
        if name in others:
            raise UsageError(
                f"Expected inputs without the column {name!r}, which is {others[name]}."
            )
    first = next(iter(parts))
    return [
        feature(
            [cells(data, name, where) for where, data in parts.items()],
            name,
            first,
            class_names(parts[first], name),
        )
        for name in names
    ]


def _classes(target: str, parts: Parts) -> tuple[str, ...]:
    """The names of classes: of the data set's own list, or all texts."""
    known = {class_names(data, target) for data in parts.values()}
    if len(known) > 1:
        raise UsageError(
            f"Expected the same names of classes in column {target!r} of {', '.join(parts)}, got "
            f"{' and '.join(map(str, known))}. Cast them to one ClassLabel."
        )
    if (names := known.pop()) is not None:
        return names
    if not any(has_texts(data, target) for data in parts.values()):
        return ()
    found = [cells(data, target, where) for where, data in parts.items()]
    return categories(found, target, next(iter(parts)))
