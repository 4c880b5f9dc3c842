"""`fedloom client doctor`: checks this device, with a remedy for each problem."""

import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import FILE, config_option, json_option

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red"), "skip": ("–", None)}
_INDENT = 16


@click.command()
@config_option
@click.option(
    "--code",
    metavar="FILE.py:NAME|MODULE:NAME",
    help="Also train an epoch with this code; after 10 s it is asked to stop.",
)
@click.option(
    "--model",
    type=FILE,
    metavar="FILE",
    help="For that epoch. Default: the client's `initial`, or the last received model.",
)
@click.option(
    "--run",
    "tables",
    type=FILE,
    metavar="RUN.toml",
    help="Settings of that epoch, as for `fedloom run submit`.",
)
@json_option
def doctor(config: Path, code: str | None, model: Path | None, tables: Path | None) -> None:
    """Find problems of this device, with a remedy for each.

    Changes nothing, accepts no task, and does not disturb a running agent. Exits with 1 if a
    problem keeps this device from taking part; other problems are warnings.

    \b
    Examples:
      fedloom client doctor
      fedloom client doctor --config /etc/fedloom/client.toml --code my_client.py:client
    """
    from fedloom.cli.common.load_code import load_client  # noqa: PLC0415 - it imports numpy
    from fedloom.client.doctor import examine  # noqa: PLC0415 - it imports grpc
    from fedloom.protocol.settings import toml  # noqa: PLC0415 - as above

    run = None if tables is None else toml.read(tables, "a run's settings")
    findings = examine(config, None if code is None else lambda: load_client(code), model, run)
    found: list[Any] = list(findings) if output.wants_json() else list(_shown(findings))
    fails = sum(each.level == "fail" for each in found)
    document = {
        "healthy": not fails,
        "findings": [
            {"check": f.check, "level": f.level, "said": f.said, "mend": f.mend} for f in found
        ],
    }
    output.emit_text(document, "\n" + _summary([each.level for each in found]))
    if fails:
        click.get_current_context().exit(1)


def _shown(findings: Iterable[Any]) -> Iterable[Any]:
    """Print each result as it arrives; some take seconds."""
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 110))
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        head = f"  {click.style(mark, fg=colour, bold=True)} {finding.check:<{_INDENT - 4}}"
        said = _wrapped(finding.said, width)
        click.echo(head + (said if finding.level != "skip" else click.style(said, dim=True)))
        if finding.mend:
            lead = " " * _INDENT + click.style("→ ", fg=colour)
            click.echo(lead + _wrapped(finding.mend, width, _INDENT + 2))
        yield finding


def _wrapped(text: str, width: int, indent: int = _INDENT) -> str:
    lines = textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]
    return ("\n" + " " * indent).join(lines)


def _summary(levels: list[str]) -> str:
    fails, warns = levels.count("fail"), levels.count("warn")
    warnings = f"{warns} warning{'' if warns == 1 else 's'}"
    if fails:
        more = f", {warnings}" if warns else ""
        return click.style(f"{fails} to fix", fg="red", bold=True) + f"{more}."
    if warns:
        return click.style(f"This device can take part; {warnings}.", fg="yellow")
    return click.style("No problems found.", fg="green")
