"""docs/rounds.md matches the code."""

import re
from pathlib import Path

import pytest

from fedloom.server.engine import IGNORE, REFUSE, MaskedRound, MaskingSession, Round, Run

PAGE = (Path(__file__).parents[3] / "docs" / "rounds.md").read_text(encoding="utf-8")


def table(title):
    """A table of the page: {state: {event: entry}}."""
    lines = PAGE.split(f"<!-- {title} -->\n")[1].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        state: {row[0].strip("`"): row[column] for row in rows}
        for column, state in enumerate(head)
        if column
    }


@pytest.mark.parametrize(
    ("title", "machine"),
    [
        ("round table", Round),
        ("masked round table", MaskedRound),
        ("session table", MaskingSession),
        ("run table", Run),
    ],
)
def test_the_tables_of_the_page_match_the_code(title, machine):
    """For each state and event: ignored, refused, or handled."""
    verdicts = {IGNORE: "–", REFUSE: "refused"}
    said = table(title)
    assert list(said) == list(machine.TABLE)
    for state, row in machine.TABLE.items():
        assert list(said[state]) == [event.__name__ for event in row]
        for event, entry in row.items():
            text = said[state][event.__name__]
            assert text
            if entry in verdicts:
                assert text == verdicts[entry]
            else:
                assert text not in verdicts.values()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_examples_of_the_page_run(code):
    exec(compile(code, "docs/rounds.md", "exec"), {})
