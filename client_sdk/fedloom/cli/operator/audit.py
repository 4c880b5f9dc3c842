"""`fedloom audit`: the audit trail, and its verification."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup, load
from fedloom.cli.common.options import json_option, server_options, state_option
from fedloom.cli.connection.api_client import Control
from fedloom.protocol.errors import IntegrityError, UsageError


@click.group(cls=LazyGroup)
def audit() -> None:
    """List who did what and when, and verify that the trail is unchanged."""


@audit.command("list")
@click.option("--who", default="", help="Only entries of this user or token.")
@click.option(
    "--action", default="", help="Only this action, such as run.pause, or a group, such as run."
)
@click.option("--subject", default="", help="Only entries about this run, client, user, …")
@click.option("--since", type=click.DateTime(), help="Not before this local time.")
@click.option("--until", type=click.DateTime(), help="Not after this local time.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", type=click.IntRange(1), help="Only lower ids, for the next page.")
@server_options
def list_entries(directory: Path, **wanted: Any) -> None:
    """List entries, newest first.

    \b
    Examples:
      fedloom audit list
      fedloom audit list --action client --since 2026-01-01
    """
    query: dict[str, Any] = {
        name: value.timestamp() if isinstance(value, datetime) else value
        for name, value in wanted.items()
        if value not in (None, "")
    }
    found = Control(directory).get("audit", **query)
    rows = (
        (
            str(e["id"]),
            output.moment(e["at"]),
            output.escape(f"{e['who']} ({e['how']})"),
            e["action"],
            output.escape(e["subject"]),
            output.escape(e["detail"] if e["detail"] != "{}" else ""),
        )
        for e in found["entries"]
    )
    columns = (">ID", "AT", "WHO", "ACTION", "SUBJECT", "~DETAIL")
    output.emit_table(found, columns, rows, "No entry matches.")


@audit.command()
@server_options
def head(directory: Path) -> None:
    """Print the newest entry as ID:HASH. Store it where the server's machine cannot change it.

    `fedloom audit verify --anchor` then detects changes and removals up to this entry.

    \b
    Example:
      fedloom audit head >> audit-heads.txt
    """
    found = Control(directory).get("audit", "head")
    output.emit_text(found, f"{found['id']}:{found['hash']}")


@audit.command()
@click.option(
    "--anchor",
    "anchors",
    multiple=True,
    metavar="ID:HASH|@FILE",
    help="A head that was stored elsewhere, or a file with one per line; repeatable.",
)
@state_option
@json_option
def verify(anchors: tuple[str, ...], directory: Path) -> None:
    """Verify the whole trail from the ledger's file, without a running server.

    If an entry was changed, removed, added or moved, prints the first wrong entry and exits with 4.
    Only a stored head can detect that entries at the end were removed. The server stores one beside
    the ledger; --anchor names others.

    \b
    Examples:
      fedloom audit verify
      fedloom audit verify --dir backup --anchor @audit-heads.txt
    """
    found = load("fedloom.server.access.verify:verify")(directory, _read(anchors))
    broken = found.broken
    document = {"intact": broken is None, **asdict(found)}
    if broken is not None and not output.wants_json():
        first = found.pruned.entries + 1 if found.pruned else 1
        before = f" Entries {first} to {broken.id - 1} are intact." * (broken.id > first)
        raise IntegrityError(
            f"The audit trail breaks at entry {broken.id}: {broken.problem}.{before}"
        )
    since = "" if found.since is None else f", since {output.moment(found.since)}"
    removed = ""
    if found.pruned is not None:
        removed = (
            f"Entries 1 to {found.pruned.entries}, until {output.moment(found.pruned.until)}, were "
            f"removed after their retention. The others link to the last one: "
            f"{found.pruned.entries}:{found.pruned.hash}\n"
        )
    output.emit_text(
        document,
        f"{found.entries} entries, all intact{since}.\n{removed}"
        f"Head: {found.head.id}:{found.head.hash}\n"
        f"Stored heads that match: {len(found.anchors)}.",
    )
    if broken is not None:
        click.get_current_context().exit(IntegrityError.exit_code)


def _read(anchors: tuple[str, ...]) -> list[str]:
    texts: list[str] = []
    for anchor in anchors:
        if not anchor.startswith("@"):
            texts.append(anchor)
            continue
        try:
            lines = Path(anchor[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Cannot read the heads in {anchor[1:]}: {error}.") from None
        texts += [line for line in lines if line.strip()]
    return texts
