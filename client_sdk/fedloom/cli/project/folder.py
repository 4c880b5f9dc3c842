"""Writes a new folder: training code, run.toml, data of local clients, tests and a README."""

import csv
import io
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from tempfile import mkdtemp

from fedloom.cli.project.deploy import deploy_commands
from fedloom.cli.project.kinds import ProjectKind
from fedloom.client.data.columns import Row, TableColumns, TextColumn
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings.toml import text_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_MARK = re.compile(r"@([A-Z]+)@")
_OWN_TABLE = """\
## Your data

Put a CSV file for each local client into `data/`, with the columns of `columns.toml`; or make a
folder from your table: `fedloom new NAME --csv FILE`. `columns.toml` must be the same on all
devices. It holds classes, means and scales: where the data are private, take these from public
knowledge."""
_OWN_TEXT = """\
## Your data

Put a text file for each local client into `data/`. Build your model in `my_client.py`: any causal
language model of transformers, also with adapters of peft."""


def check_target(target: Path) -> None:
    """Check that a folder can be made.

    Raises:
        UsageError: its name is not valid, or there is something already.
    """
    if not _NAME.fullmatch(target.name):
        raise UsageError(
            f"Expected a name of at most 40 letters, digits, - and _, got {target.name!r}: runs "
            "are named after the folder."
        )
    if target.exists() or target.is_symlink():
        raise UsageError(
            f"Expected a new folder, but {target} exists, and nothing is overwritten. Choose "
            "another name, or remove it."
        )
    if not target.parent.is_dir():
        raise UsageError(f"Expected {target.name!r} in a folder that exists, got {target.parent}.")


def table_files(
    columns: TableColumns, names: Sequence[str], sites: Mapping[str, Sequence[Row]]
) -> dict[str, str]:
    """columns.toml, and a CSV file for each client."""
    files = {"columns.toml": columns.dumps()}
    for site, rows in sites.items():
        out = io.StringIO()
        writer = csv.writer(out, delimiter=columns.separator, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(row.cells for row in rows)
        files[f"data/{site}.csv"] = out.getvalue()
    return files


def all_files(
    name: str, kind: ProjectKind, columns: TableColumns | None, data: Mapping[str, str]
) -> dict[str, str]:
    """The files of a new folder: path → text.

    Args:
        name: of the folder.
        kind: of the training code.
        columns: of the table; None with `hf`.
        data: files of `table_files`, or data alone.
    """
    paths = [Path(path) for path in data if path.startswith("data/")]
    sites = [path.stem for path in paths]
    code, target = kind.name, "text, byte by byte"
    if columns is not None:
        code += "-classes" if isinstance(columns.target, TextColumn) else "-numbers"
        target = f"the column `{columns.label}`"
    commands = deploy_commands(sites, paths[0].name, kind.requirement)
    described = "| `columns.toml` | which columns are inputs, and how they are scaled |\n"
    needed = "`my_client.py`" if columns is None else "`my_client.py`, `columns.toml`"
    values = {
        "NAME": name,
        "RUN": name,
        "SITE": sites[0],
        "GOAL": str(len(sites)),
        "ROUNDS": "3" if columns is None else "10",
        "EPOCHS": "1" if columns is None else "2",
        "BATCH": "16",
        "RATE": text_of(
            kind.learning_rate[0] if columns is None else kind.learning_rate_of(columns)
        ),
        "WHAT": f"Federated training with fedloom and {kind.title}: {len(sites)} clients learn to "
        f"predict {target}, each\nfrom data of its own, which it does not send.",
        "COLUMNS": "" if columns is None else described,
        "FILES": needed,
        "OWN": _OWN_TEXT if columns is None else _OWN_TABLE,
        "SERVER": "\n".join(commands.server),
        "DEVICE": "\n".join(commands.device),
        "OPERATOR": "\n".join(commands.operator),
    }
    made = {"my_client.py": code, "run.toml": "run", "test_my_client.py": "test",
            "README.md": "readme", "Makefile": "make"}  # fmt: skip
    texts = {path: _filled(template, values) for path, template in made.items()}
    ignored = "/.fedloom/\n/initial.safetensors\n/model.safetensors\n__pycache__/\n"
    return {**texts, **data, ".gitignore": ignored}


def _filled(template: str, values: Mapping[str, str]) -> str:
    folder = resources.files("fedloom.cli.project").joinpath("templates")
    text = folder.joinpath(f"{template}.tmpl").read_text("utf-8")
    return _MARK.sub(lambda mark: values[mark[1]], text)


def write(target: Path, files: Mapping[str, str]) -> None:
    """Write all files, or none.

    Raises:
        UsageError: the folder appeared meanwhile.
        OSError: the disk refuses.
    """
    draft = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for path, text in files.items():
            (draft / path).parent.mkdir(exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8", newline="")
        draft.chmod(0o755)
        check_target(target)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
