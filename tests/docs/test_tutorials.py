"""The tutorials: every file is written, every command typed, every output compared."""

import re
from pathlib import Path

import pytest

from support import walk

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NEEDS = {"three-laptops": "sklearn", "hospitals": "dp_accounting", "thousand-clients": "torch"}
"""What a tutorial imports beside the server."""


def test_every_tutorial_is_typed():
    assert NEEDS.keys() == {path.stem for path in FOLDER.glob("*.md")}


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    "name",
    [n if n != "thousand-clients" else pytest.param(n, marks=pytest.mark.longest) for n in NEEDS],
)
def test_a_tutorial_works_as_it_is_written(tmp_path, name):
    """With real processes, in folders of one machine, on free ports."""
    pytest.importorskip(NEEDS[name])
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    steps = walk.steps(page)
    assert sum(isinstance(step, walk.Command) for step in steps) >= 6
    with walk.Walk(tmp_path, walk.free_ports(["7443", "7444"])) as walking:
        printed = "".join(map(walking.take, steps))
    if name == "thousand-clients":  # its point; the walk compares no digests
        assert len(set(re.findall(r"\b[0-9a-f]{64}\b", printed))) == 1
