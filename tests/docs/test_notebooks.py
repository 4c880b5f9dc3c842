"""docs/notebooks: their cells run; `make docs` executes them in Jupyter and shows their output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"partitions": ["IPython"], "ten-lines": ["pandas"], "functions": ["pandas"]}


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [p if p.stem != "privacy" else pytest.param(p, marks=pytest.mark.longest) for p in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_its_cells_run(path, tmp_path):
    for package in NEEDS.get(path.stem, ()):
        pytest.importorskip(package)
    cells = [c["source"] for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    script = tmp_path / "notebook.py"
    script.write_text("\n".join("".join(source) for source in cells))
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr


def test_notebooks_are_stored_without_output():
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells)
