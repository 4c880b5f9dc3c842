"""Settings are checked by name and type, with one form of message."""

import doctest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fedloom.strategies import setting_checks
from fedloom.strategies.setting_checks import (
    MISFIT,
    check_names,
    check_settings,
    fitted,
    in_words,
    lookup,
)


@dataclass(kw_only=True)
class Kettle:
    litres: float
    lid: Literal["open", "closed"] = "open"
    cups: tuple[int, ...] = ()
    rule: Any = None


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, float, 3.0),
        (3.0, int, MISFIT),
        (True, int, MISFIT),
        (True, float, MISFIT),
        (1, bool, MISFIT),
        ("3", int, MISFIT),
        (2.0, int | float, 2.0),
        ("auto", int | Literal["auto"], "auto"),
        (None, int | None, None),
        (None, int, MISFIT),
        (["a"], tuple[str, ...], ("a",)),
        (["a", 1], tuple[str, ...], MISFIT),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        ([1], tuple[float, float], MISFIT),
        ("ab", Sequence[str], MISFIT),
        ({"a": 1}, dict[str, str], {"a": "1"}),
        ({"a": {}}, dict[str, str], MISFIT),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        ("x/y", Path, Path("x/y")),
        ("", Path, MISFIT),
        ({"name": "step"}, Kettle, {"name": "step"}),
    ],
)
def test_a_value_takes_the_annotated_type_or_does_not_fit(value, kind, expected):
    """A type that TOML does not have accepts any value: its owner checks it."""
    found = fitted(value, kind)
    assert found is MISFIT if expected is MISFIT else found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"litre": 1}, ValueError, "Unknown setting 'tea.litre' of kettle. Did you mean 'litres'?"),
        ({"rule": 1}, ValueError, "Unknown setting 'tea.rule' of kettle. Known: cups, lid, litres"),
        ({}, ValueError, "Missing setting tea.litres of kettle: set it to a number."),
        ({"litres": "1"}, TypeError, 'tea.litres of kettle as a number, got "1" (text).'),
        ({"litres": 1, "lid": "opn"}, ValueError, "got \"opn\" (text). Did you mean 'open'?"),
        ({"litres": 1, "cups": [1, "x"]}, TypeError, 'a list of whole numbers, got [1, "x"]'),
    ],
)
def test_invalid_settings_are_refused(values, error, message):
    """The message has the key, the expected type and the value."""
    with pytest.raises(error) as caught:
        check_settings(Kettle, values, owner="kettle", table="tea", without=("rule",))
    assert message in str(caught.value)


def test_valid_settings_are_accepted():
    """Those with a default may be left out."""
    check_settings(Kettle, {"litres": 1, "cups": [1, 2]})


def test_an_unknown_name_is_answered_with_the_nearest():
    """In a table and in a registry; without a near one, with the list."""
    with pytest.raises(ValueError, match=r"setting 'a\.blu'\. Did you mean 'blue'\? Known"):
        check_names(["red", "blu"], ["red", "blue"], "a")
    with pytest.raises(ValueError, match=r"^Expected a colour, got 'xyz'\. Known: blue, red\.$"):
        lookup("a colour", "xyz", {"red": 1, "blue": 2})


def test_types_are_described_in_words():
    """Without None, which TOML does not have."""
    assert in_words(float | None) == "a number"
    assert in_words(int | Literal["auto"]) == 'a whole number or "auto"'
    assert in_words(Sequence[Path]) == "a list of which each is a path"


def test_the_examples_in_the_docstrings_run():
    results = doctest.testmod(setting_checks)
    assert results.attempted >= 4
    assert results.failed == 0
