"""Pages of docs/notebooks/: each notebook is executed, and shown with what it printed and drew."""

import base64
import functools
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
LONGEST_S = 300


@functools.cache
def pages():
    """Every notebook's page and pictures: site path → Markdown, or bytes."""
    found = {}
    for path in sorted(FOLDER.glob("*.ipynb")):
        found |= page(path.stem, executed(path))
    return found


def executed(path):
    """A notebook with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    notebook = nbformat.read(path, 4)
    os.environ.update(OMP_NUM_THREADS="1", PYDEVD_DISABLE_FILE_VALIDATION="1")
    where = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(notebook, timeout=LONGEST_S, kernel_name="python3", resources=where)
    client.create_kernel_manager().transport = "ipc"
    client.execute()
    return notebook


def page(name, notebook):
    """The page of an executed notebook, and its pictures."""
    parts, found = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.get("name") == "stderr":
                raise ValueError(f"{name}: a cell wrote to stderr: {output['text']}")
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(found)}.png"
                found[f"notebooks/{picture}"] = base64.b64decode(data["image/png"])
                parts.append(f"![{cell.metadata.get('alt', 'The plot of this cell')}]({picture})")
            elif text := output.get("text") or data.get("text/plain"):
                parts.append(f"```text\n{text.rstrip()}\n```")
    note = f"*Executed when this site was built; the notebook is `docs/notebooks/{name}.ipynb`.*"
    parts.insert(1, note)
    found[f"notebooks/{name}.md"] = "\n\n".join(parts) + "\n"
    return found
