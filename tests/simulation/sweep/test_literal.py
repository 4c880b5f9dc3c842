"""The forms of a Comet Optimizer config are read as their own readers read them."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.simulation.sweep.literal import parse

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = st.dictionaries(
    st.text(),
    st.recursive(
        SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
    ),
)


@given(PLAIN.filter(lambda value: "inf" not in repr(value)))
def test_both_forms_give_the_same_values(value):
    """Python's own reader and writer are the oracle."""
    literal = f"# a comment\n{value!r}  # another"
    assert parse(literal) == ast.literal_eval(literal) == parse(json.dumps(value)) == value


def test_jsons_names_are_valid_beside_comments():
    assert parse('{"a": true, "b": null,}  # c') == {"a": True, "b": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "expected a mapping, {…}, got list"),
        ("{", "line 1: "),
        ("", "line 0|line 1"),
        ("{'a': 1,\n'b': 2 3}", "line 2: "),
        ("{'a': 1,\n'a': 2}", "line 1: 'a' occurs twice"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("{'a': {1, 2}}", "line 1: expected a number.*{1, 2}"),
        ("{'a': 1j}", "expected a number.*1j"),
        ("{'a': b'x'}", "expected a number"),
        ("{'a': ...}", "expected a number"),
        ("{'a': 2 ** 8}", "expected a number.*2 [*][*] 8"),
        ("{'a': open('x')}", "expected a number.*open"),
        ("{'a': nan}", "expected a number.*nan"),
        ("{1: 2}", "expected a name in quotes, got 1"),
        ("{**{}}", "expected a name in quotes"),
        ("{'a': " + "[" * 10_000 + "]" * 10_000 + "}", "nested|too many"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested|too many"),
        ("{'a': '\0'}", "null"),
    ],
)  # fmt: skip
def test_other_text_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        parse(text)
