"""The form that starts a run: whatever is typed is answered, soon and beside its field."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import parse
from fedloom.server.web.submit import DEFAULTS, MAX_DOTS, MAX_TOML, blamed, together


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a = " * 5_000,
        "a." * 20_000 + "b = 1",
        "[" + "a." * 20_000 + "b]",
        'x = {"a" = 1, ' + '"a" . ' * 20_000 + "b = 1}",
        "a = " + "9" * 100_000,
        "a = 1\n" * MAX_TOML,
    ],
    ids=["lists", "tables", "key", "header", "inline", "integer", "length"],
)
def test_settings_that_take_long_to_read_are_refused(text):
    """On the server's event loop, where the rounds would wait."""
    with pytest.raises(UsageError, match=r"Expected .*TOML"):
        together({"toml": text})


def test_settings_with_many_points_are_read():
    """In numbers and in texts they mean nothing."""
    numbers = ", ".join(["0.5"] * 500)
    text = f'[config]\nshares = [{numbers}]\nlayer = "{".".join(["a"] * MAX_DOTS)}"\n'
    found = together({"toml": text})["config"]
    assert len(found["shares"]) == 500


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "two words"}, "name"),
        ({"rounds": "1e3"}, "rounds"),
        ({"cohort.quorum": "9"}, "cohort.quorum"),
        ({"strategy.name": "magic"}, "strategy.name"),
        ({"toml": "magic = 1"}, "toml"),
        ({"toml": "[cohort]\nmagic = 1"}, "toml"),
        ({"toml": "rounds = = 1"}, "toml"),
        ({"toml": "[aggregation]\nname = 'krum'\nnum_byzantine = 9"}, "cohort.quorum"),
    ],
)
def test_fault_stands_beside_the_field_that_it_is_about(changed, field):
    """Also where its words name other settings."""
    with pytest.raises(UsageError) as caught:
        parse(together({**DEFAULTS, **changed}))
    assert blamed(str(caught.value)) == field
