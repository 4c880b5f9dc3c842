"""The page of benchmarks/simulation.py is what the script makes of its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = PAGE.with_suffix(".json")
WRITE = """
import json, sys
from pathlib import Path
import simulation_page
folder = Path(sys.argv[1])
found = json.loads(Path(sys.argv[2]).read_text())
simulation_page.write(found, folder / "page.md")
"""


def written(folder, found):
    """The page and the plots of these figures."""
    given = folder / "given.json"
    given.write_text(json.dumps(found))
    command = [sys.executable, "-c", WRITE, str(folder), str(given)]
    subprocess.run(command, check=True, cwd=ROOT / "benchmarks")
    return (folder / "page.md").read_text("utf-8")


@pytest.mark.long
def test_the_page_is_made_from_the_committed_figures(tmp_path):
    """Nobody edited it, and its plots show the same figures."""
    found = json.loads(RESULTS.read_text("utf-8"))
    assert written(tmp_path, found) == PAGE.read_text("utf-8")
    for name in ("speed", "start", "memory"):
        made, shown = (folder / "images" / f"benchmark-{name}.svg"
                       for folder in (tmp_path, PAGE.parent))  # fmt: skip
        assert made.exists()
        assert _texts(made) == _texts(shown)
        assert "fedloom" in " ".join(_texts(shown))


def _texts(path):
    """Labels and numbers of a plot."""
    import xml.etree.ElementTree as ET

    tree = ET.parse(path)
    return [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.long
def test_the_page_says_what_was_not_measured_and_that_others_used_the_machine(tmp_path):
    found = json.loads(RESULTS.read_text("utf-8"))
    idle = {**found["machine"], "load": [0.1, 0.1, 0.1]}
    page = written(tmp_path, {**found, "machine": idle, "skipped": {"Flower, 2 on x": "no flwr"}})
    assert "Others used the machine" not in page
    assert "- Flower, 2 on x: no flwr" in page
    busy = written(tmp_path, {**found, "machine": {**idle, "load": [2.0, 1.0, 1.0]}})
    assert "Others used the machine" in busy
    assert "Not measured" not in busy
