"""The output of `fedloom round`: counts from selected to counted, and each client."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedloom.cli.common import masking_sessions, output
from fedloom.cli.operator.client_view import failures, took
from fedloom.protocol.updates import site_members


def listing(rounds: list[dict[str, Any]], more: int | None) -> RenderableType:
    """One line per round, newest first, and how to list earlier ones."""
    if not rounds:
        return Text("No rounds yet. A round opens when enough clients are online.")
    table = _table(rounds)
    return Group(table, Text(f"\nEarlier rounds: --before {more}", style="dim")) if more else table


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
                failures(counts),
                output.duration((r["closed_at"] or time.time()) - r["opened_at"]),
                output.or_dash(counts.get("p50_s"), output.duration),
                output.or_dash(counts.get("p95_s"), output.duration),
                output.size(counts.get("bytes_up", 0)),
                output.metrics(r["training"] or r["evaluation"]),
                output.escape(r["reason"]),
            )
        )
    columns = (
        *(">ROUND", "KIND", "STATE", ">SELECTED", ">COUNTED", "NOT COUNTED", ">TOOK", ">P50"),
        *(">P95", ">RECEIVED", "METRICS", "~NOTE"),
    )
    return output.make_table(columns, rows, required=5)


def detail(found: dict[str, Any]) -> RenderableType:
    """A round: its counts, shapes, masking sessions, and a line for each client."""
    parts: list[RenderableType] = [_headline(found)]
    if counts := found["clients"]:
        parts.append(_funnel(counts))
        found_out = [output.failure(each) for each in counts.get("failures", ())]
        parts += [Text(f"  {line}", style="red") for line in found_out]
        parts.append(_times(counts))
        parts.append(_shapes(counts["shapes"]))
    parts += [
        Text.from_markup(f"{what}: {measured}")
        for what in ("training", "evaluation")
        if (measured := output.metrics(found[what], spread=True))
    ]
    if found["underflow"] is not None:
        told = f"rounded to zero: {found['underflow']:.2%} of the values other than zero"
        parts.append(Text(told, style="dim"))
    if found.get("sessions"):
        parts += [Text(), masking_sessions.listing(found["sessions"])]
    if found["members"]:
        parts += [Text(), _members(found["members"])]
        parts += [_named(m["client"], m["members"]) for m in found["members"] if m["members"]]
    return Group(*parts)


def _named(site: str, members: site_members.Tree) -> Text:
    """The devices in a site's sum."""
    found = site_members.devices_in(members)
    named = (path if count == 1 else f"{path} ({count} devices)" for path, count in found)
    return Text(output.harmless(f"{site}: {', '.join(named)}"), style="dim")


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
    names = (("selected", "selected"), ("took", "accepted the offer"), ("training", "trained"),
             ("uploaded", "uploaded"), ("counted", "counted"))  # fmt: skip
    line = Text(" → ".join(f"{counts[name]} {word}" for name, word in names))
    if failed := failures(counts):
        line.append(f"; {failed}", style="yellow")
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
    sites = any(m["places"] for m in members)
    rows = [
        (
            output.escape(m["client"]),
            output.state(m["phase"]),
            *([f"{m['devices'] or 0} of {m['places'] or 1}"] if sites else ()),
            output.escape(m["shape"]),
            _span(m["download_began_at"], m["download_ended_at"]),
            _span(m["training_began_at"], m["upload_began_at"]),
            _span(m["upload_began_at"], m["accepted_at"] or m["upload_ended_at"]),
            took(m),
            output.or_dash(m["bytes_up"], output.size),
            str(m["retries"]) if m["retries"] else "-",
            output.or_dash(m["num_examples"]),
            output.or_dash(m["norm"], output.four_digits),
            output.escape(m["reason"]),
        )
        for m in members
    ]
    columns = (
        *(
            "CLIENT",
            "STATE",
            *([">DEVICES"] if sites else ()),
            "SHAPE",
            ">DOWNLOAD",
            ">TRAINING",
            ">UPLOAD",
            ">TOOK",
            ">SENT",
        ),
        *(">RETRIES", ">EXAMPLES", ">NORM", "~NOTE"),
    )
    return output.make_table(columns, rows, required=3)


def _span(start: float | None, end: float | None) -> str:
    return "-" if start is None or end is None else output.duration(max(0.0, end - start))
