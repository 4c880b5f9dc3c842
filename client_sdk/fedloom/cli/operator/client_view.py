"""How `fedloom client list` and `show` draw clients."""

from typing import Any

import click

from fedloom.cli.common import output
from fedloom.protocol.supernodes import SUPERNODE, is_supernode


def listing(found: dict[str, Any], empty: str) -> Any:
    """A table of clients, or `empty` without any; with their kinds, if some are SuperNodes."""
    mixed = any(is_supernode(c["own_labels"]) for c in found["clients"])
    rows = (
        (
            c["name"],
            *([SUPERNODE if is_supernode(c["own_labels"]) else "agent"] if mixed else []),
            output.state(_status(c)),
            "[green]●[/] online" if c["online"] else "[dim]○ offline[/]",
            output.escape(c["task"] or "-"),
            output.ahead(c["certificate_until"]),
            output.moment(c["enrolled_at"]),
        )
        for c in found["clients"]
    )
    kind = ("KIND",) if mixed else ()
    columns = ("NAME", *kind, "STATUS", "PRESENCE", "TASK", "CERTIFICATE ENDS", "ENROLLED")
    return output.table_or(columns, rows, empty)


def _status(found: dict[str, Any]) -> str:
    """A client's status, or the hold that keeps it out of rounds."""
    if found["status"] != "active" or not found["hold"]:
        return str(found["status"])
    return "quarantined" if found["hold"] == "quarantine" else "drained"


def show_detail(found: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """Print a client's facts and its latest rounds."""
    for key, value in _facts(found):
        click.echo(f"{key:<14} {output.harmless(value)}".replace("\n", f"\n{'':<15}"))
    click.echo()
    rows = (
        (
            f"{p['run']}/{p['round']}",
            p["phase"],
            p["shape"],
            took(p),
            output.or_dash(p["bytes_up"], output.size),
            output.or_dash(p["num_examples"]),
            output.or_dash(p["norm"], output.four_digits),
            output.escape(p["reason"]),
        )
        for p in parts
    )
    output.print_table(
        ("ROUND", "STATE", "SHAPE", ">TOOK", ">SENT", ">EXAMPLES", ">NORM", "~NOTE"),
        rows,
        "No rounds yet.",
    )


def took(part: dict[str, Any]) -> str:
    """Time from the offer to the end of the task, or `-` before that."""
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
        ("version", found["version"] or "unknown"),
        ("labels", "  ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "none"),
        ("note", found["note"] or "none"),
        ("certificate", f"ends {output.ahead(found['certificate_until'])}"),
        ("rounds", f"{found['counted']} of {found['asked']} counted{_failures(found)}"),
        ("success", "unknown yet" if rate is None else f"{rate:.0%}"),
    ]  # fmt: skip
    if found["staleness"]:
        facts.append(("staleness", f"{found['staleness']:.1f} models behind, mean"))
    return facts


def _failures(found: dict[str, Any]) -> str:
    counts = failures(found)
    return f" ({counts})" if counts else ""


def failures(counts: dict[str, Any]) -> str:
    """The outcomes other than a counted update, such as `2 failed, 1 lost`."""
    kinds = ("declined", "failed", "refused", "late", "lost")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts.get(kind))
