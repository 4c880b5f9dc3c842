"""`fedloom client show`: one client, and what it did in rounds."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import directory_option, json_option
from fedloom.cli.connection.api_client import Control


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 500), default=15, show_default=True)
@directory_option
@json_option
def show(name: str, limit: int, directory: Path) -> None:
    """Show a client: how it stands, and its latest parts in rounds.

    \b
    Example:
      fedloom client show ward-3
    """
    control = Control(directory)
    found = control.get("clients", name)
    parts = control.get("clients", name, "parts", limit=limit)["parts"]
    output.emit({**found, "parts": parts}, lambda: _show(found, parts))


def _show(found: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    for key, value in _facts(found):
        click.echo(f"{key:<14} {output.harmless(value)}".replace("\n", f"\n{'':<15}"))
    click.echo()
    rows = (
        (
            f"{p['run']}/{p['round']}",
            p["phase"],
            p["shape"],
            took(p),
            output.size(p["bytes_up"]) if p["bytes_up"] is not None else "-",
            str(p["num_examples"] if p["num_examples"] is not None else "-"),
            f"{p['norm']:.4g}" if p["norm"] is not None else "-",
            output.escape(p["reason"]),
        )
        for p in parts
    )
    output.print_table(
        ("ROUND", "STATE", "SHAPE", ">TOOK", ">SENT", ">EXAMPLES", ">NORM", "~NOTE"),
        rows,
        "It was in no round yet.",
    )


def took(part: dict[str, Any]) -> str:
    """From the offer to its end, or `-` while there is none."""
    ended = part["accepted_at"] or part["ended_at"]
    if part["offered_at"] is None or ended is None:
        return "-"
    return output.duration(ended - part["offered_at"])


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    hold = {"quarantine": "in quarantine", "drain": "drained"}.get(found["hold"] or "", "")
    if hold and found["hold_reason"]:
        hold += f": {found['hold_reason']}"
    rate = found["success_rate"]
    labels = {**found["own_labels"], **found["labels"]}
    away = f"last seen {output.moment(found['seen_at'])}"
    facts = [
        ("client", found["name"]),
        ("status", found["status"] + (f", {hold}" if hold else "")),
        ("presence", "online" if found["online"] else away),
        ("task", found["task"] or "none"),
        ("version", found["version"] or "not said"),
        ("labels", "  ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "none"),
        ("note", found["note"] or "none"),
        ("certificate", f"ends {output.ahead(found['certificate_until'])}"),
        ("rounds", f"{found['counted']} of {found['asked']} counted{_failures(found)}"),
        ("success", "not known yet" if rate is None else f"{rate:.0%}"),
    ]  # fmt: skip
    if found["staleness"]:
        facts.append(("staleness", f"{found['staleness']:.1f} models behind, mean"))
    return facts


def _failures(found: dict[str, Any]) -> str:
    kinds = ("declined", "failed", "refused", "late", "lost")
    told = [f"{found[kind]} {kind}" for kind in kinds if found[kind]]
    return f" ({', '.join(told)})" if told else ""
