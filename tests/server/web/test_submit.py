"""The form that starts a run: any input is answered quickly, beside its field."""

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
def test_settings_slow_to_parse_are_refused(text):
    """They would block the event loop."""
    with pytest.raises(UsageError, match=r"Expected .*TOML"):
        together({"toml": text})


def test_dots_in_numbers_and_texts_are_allowed():
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
def test_error_is_shown_beside_its_field(changed, field):
    """Even if its text names other settings."""
    with pytest.raises(UsageError) as caught:
        parse(together({**DEFAULTS, **changed}))
    assert blamed(str(caught.value)) == field
