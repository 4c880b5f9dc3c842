"""The table of run.py's outcomes, written between two marks of a page."""

import importlib.metadata
import platform
import tomllib
from pathlib import Path

from examples import EXAMPLES, Example

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEAD = """\
| app | runs | largest difference from Flower's own result | numbers compared | settings | note |
|---|---|---|---|---|---|"""
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def write(page, outcomes, repository):
    """Put the table into a page that has both marks.

    Args:
        page: path of a Markdown file.
        outcomes: of every app, as run.py has them.
        repository: folder of Flower's repository, for its version.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"Expected {BEGIN} and {END} in {page}.")
    runs = [row for row in outcomes if row["runs"]]
    largest = number(max((row["difference"] for row in runs), default=0.0))
    package = f"{version_of(repository)} in its `framework/pyproject.toml`"
    lines = [
        f"{len(runs)} of {len(outcomes)} examples run; the largest difference of all is {largest}.",
        "",
        HEAD,
        *(line(row) for row in sorted(outcomes, key=lambda row: row["name"])),
        "",
        f"Versions: Flower's repository {package}; Python {platform.python_version()}; "
        + versions()
        + ".",
    ]
    page.write_text(before + "\n".join([BEGIN, "", *lines, "", END]) + after)


def line(row):
    note = cell(". ".join(part for part in (row.get("note"), row.get("reason")) if part))
    if not row["runs"]:
        return f"| {row['name']} | no | | | | {note} |"
    settings = EXAMPLES.get(row["name"], Example()).settings
    figures = f"{number(row['difference'])} | {row['numbers']:,} | {settings}"
    return f"| {row['name']} | yes | {figures} | {note} |"


def number(value):
    return f"{value:.1e}" if value else "0"


def cell(text):
    """Text that does not end a cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def version_of(repository):
    project = tomllib.loads((repository / "framework" / "pyproject.toml").read_text())
    return project["project"]["version"]


def versions():
    """The installed versions of requirements.txt."""
    names = [
        text.partition("==")[0].partition("[")[0]
        for text in REQUIREMENTS.read_text().splitlines()
        if "==" in text
    ]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
