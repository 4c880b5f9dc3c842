"""docs/new.md: its commands print what it shows, its table of decisions is that of the code."""

from pathlib import Path

import pytest

from fedloom.cli.project import decide, kinds, split, tables
from fedloom.client.data.columns import MISSING
from support import walk

PAGE = (Path(__file__).parents[2] / "docs" / "new.md").read_text()


@pytest.mark.long
@pytest.mark.e2e
def test_the_walk_through_prints_what_the_page_shows(tmp_path):
    """With real processes."""
    with walk.Walk(tmp_path, {"7443": "7443"}) as walking:
        for step in walk.steps(PAGE):
            walking.take(step)
    assert (tmp_path / "machines" / "model.safetensors").exists()


def test_the_tables_are_those_of_the_code():
    """Kinds, limits and names."""
    for name, kind in kinds.KINDS.items():
        assert f"| `--{name}` |" in PAGE
        assert not kind.module or f"`{kind.requirement}`" in PAGE
    for known in (*decide.LABELS, *tables.SEPARATORS.values()):
        assert known.rstrip("s") in PAGE
    assert f"at most {decide.FEW_NUMBERS} whole numbers" in PAGE
    assert f"texts of at most {decide.MOST_VALUES} values" in PAGE
    assert all(text in PAGE.lower() for text in MISSING if text)
    assert split.MOST_CLIENTS >= 3
