"""How `fedloom round` draws rounds: a funnel from selected to counted, and each client."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedloom.cli.common import output
from fedloom.cli.operator.client_view import took

_LOST = ("declined", "failed", "refused", "late", "lost")


def listing(rounds: list[dict[str, Any]], more: int | None) -> RenderableType:
    """One line per round, newest first, and how to list earlier ones."""
    if not rounds:
        return Text("No rounds yet: a round opens when enough clients are online.")
    table = _table(rounds)
    return Group(table, Text(f"\nEarlier ones: --before {more}", style="dim")) if more else table


def _table(rounds: list[dict[str, Any]]) -> RenderableType:
    rows = []
    for r in rounds:
        counts = r["clients"] or {}
        rows.append(
            (
                str(r["number"]),
                r["kind"],
                "undone" if r["undone_at"] else output.state(r["state"]),
                str(counts.get("selected", "-")),
                str(r["accepted"]),
                _gone(counts),
                output.duration((r["closed_at"] or time.time()) - r["opened_at"]),
                _seconds(counts.get("p50_s")),
                _seconds(counts.get("p95_s")),
                output.size(counts.get("bytes_up", 0)),
                output.metrics(r["training"] or r["evaluation"]),
                output.escape(r["reason"]),
            )
        )
    columns = (
        *(">ROUND", "KIND", "STATE", ">ASKED", ">COUNTED", "WENT WRONG", ">TOOK", ">P50", ">P95"),
        *(">RECEIVED", "MEASURED", "~NOTE"),
    )
    kept = [i for i in range(len(columns)) if i < 5 or any(row[i] not in ("", "-") for row in rows)]
    return output.make_table(
        [columns[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]
    )


def _gone(counts: dict[str, Any]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in _LOST if counts.get(kind))


def _seconds(value: float | None) -> str:
    return "-" if value is None else output.duration(value)


def detail(found: dict[str, Any]) -> RenderableType:
    """A round: its counts, its sessions' shapes, and a line for each client."""
    parts: list[RenderableType] = [_headline(found)]
    if counts := found["clients"]:
        parts.append(_funnel(counts))
        parts.append(_times(counts))
        parts.append(_shapes(counts["shapes"]))
    parts += [
        Text.from_markup(f"{what}: {measured}")
        for what in ("training", "evaluation")
        if (measured := output.metrics(found[what]))
    ]
    if found["members"]:
        parts += [Text(), _members(found["members"])]
    return Group(*parts)


def _headline(found: dict[str, Any]) -> RenderableType:
    end = found["closed_at"] or time.time()
    line = Text.from_markup(
        f"[bold]round {found['number']}[/] of {output.escape(found['run'])} ({found['kind']})  "
        f"{output.state(found['state'])}  {output.duration(end - found['opened_at'])}"
    )
    if found["undone_at"]:
        line.append("  undone by a rollback", style="yellow")
    if found["reason"]:
        line.append(f"\n{output.harmless(found['reason'])}", style="yellow")
    made = f" → {found['model_out'][:12]}" if found["model_out"] else ""
    line.append(f"\nmodel {found['model_in'][:12]}{made}", style="dim")
    return line


def _funnel(counts: dict[str, Any]) -> RenderableType:
    names = (("selected", "asked"), ("took", "took it"), ("training", "began"),
             ("uploaded", "uploaded"), ("counted", "counted"))  # fmt: skip
    line = Text(" → ".join(f"{counts[name]} {word}" for name, word in names))
    if gone := _gone(counts):
        line.append(f"; {gone}", style="yellow")
    return line


def _times(counts: dict[str, Any]) -> RenderableType:
    told = [f"{output.size(counts['bytes_down'])} sent to clients",
            f"{output.size(counts['bytes_up'])} received"]  # fmt: skip
    if counts["p50_s"] is not None:
        p95 = output.duration(counts["p95_s"])
        told.append(f"from offer to update {output.duration(counts['p50_s'])}, 95 % within {p95}")
    if counts["retries"]:
        told.append(f"{counts['retries']} retries")
    return Text(" · ".join(told), style="dim")


def _shapes(shapes: dict[str, int]) -> RenderableType:
    total = sum(shapes.values()) or 1
    told = (f"{shape} {count / total:.0%}" for shape, count in shapes.items())
    return Text(f"sessions: {'   '.join(told) or 'none yet'}", style="dim")


def _members(members: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            output.escape(m["client"]),
            _phase(m["phase"]),
            output.escape(m["shape"]),
            _span(m["download_began_at"], m["download_ended_at"]),
            _span(m["training_began_at"], m["upload_began_at"]),
            _span(m["upload_began_at"], m["accepted_at"] or m["upload_ended_at"]),
            took(m),
            output.size(m["bytes_up"]) if m["bytes_up"] is not None else "-",
            str(m["retries"]) if m["retries"] else "-",
            str(m["num_examples"]) if m["num_examples"] is not None else "-",
            f"{m['norm']:.4g}" if m["norm"] is not None else "-",
            output.escape(m["reason"]),
        )
        for m in members
    ]
    columns = (
        *("CLIENT", "STATE", "SHAPE", ">DOWNLOAD", ">TRAINING", ">UPLOAD", ">TOOK", ">SENT"),
        *(">RETRIES", ">EXAMPLES", ">NORM", "~NOTE"),
    )
    kept = [i for i in range(len(columns)) if i < 3 or any(row[i] not in ("", "-") for row in rows)]
    return output.make_table(
        [columns[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]
    )


def _span(start: float | None, end: float | None) -> str:
    return "-" if start is None or end is None else output.duration(max(0.0, end - start))


def _phase(name: str) -> str:
    colours = {"reported": "green", "training": "cyan", "refused": "red", "failed": "red",
               "lost": "yellow", "late": "yellow", "declined": "dim"}  # fmt: skip
    return f"[{colours[name]}]{name}[/]" if name in colours else name
