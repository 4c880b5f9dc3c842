"""How `fedloom client list` and `show` draw clients."""

from typing import Any

import click

from fedloom.cli.common import output
from fedloom.protocol.supernodes import SUPERNODE, is_supernode

_LEVELS = {"warn": " low", "bad": " bad"}
"""Words for levels of success rates other than ok."""


def listing(found: dict[str, Any], empty: str) -> Any:
    """A table of clients, or `empty` without any; with their kinds, if some are SuperNodes."""
    failing = any(c["failures"] for c in found["clients"])
    mixed = any(is_supernode(c["own_labels"]) for c in found["clients"])
    rows = (
        (
            c["name"],
            *([SUPERNODE if is_supernode(c["own_labels"]) else "agent"] if mixed else []),
            output.state(_status(c)),
            _presence(c),
            output.escape(c["task"] or "-"),
            success(c),
            *([output.escape(_last_error(c)) if c["failures"] else "-"] if failing else []),
            output.ahead(c["certificate_until"]),
            output.moment(c["enrolled_at"]),
        )
        for c in found["clients"]
    )
    kind, error = ("KIND",) if mixed else (), ("~LAST ERROR",) if failing else ()
    columns = (
        "NAME",
        *kind,
        "STATUS",
        "PRESENCE",
        "TASK",
        ">SUCCESS",
        *error,
        "CERTIFICATE ENDS",
        "ENROLLED",
    )
    return output.table_or(columns, rows, empty)


def _presence(found: dict[str, Any]) -> str:
    if found["online"]:
        return "[green]●[/] online"
    due_at = found.get("due_at")  # an older server does not say
    return f"[dim]◌ due {output.ahead(due_at)}[/]" if due_at else "[dim]○ offline[/]"


def _status(found: dict[str, Any]) -> str:
    """A client's state, without its presence and task."""
    state = str(found["state"])
    return "active" if state in ("working", "idle", "offline", "due") else state


def success(found: dict[str, Any]) -> str:
    """A success rate in its colour; a level other than ok is also named."""
    rate, level = found["success_rate"], found["success_level"]
    if rate is None:
        return "-"
    colour = {"ok": "green", "warn": "yellow", "bad": "red"}.get(level, "default")
    return f"[{colour}]{rate:.0%}{_LEVELS.get(level, '')}[/]"


def _last_error(found: dict[str, Any]) -> str:
    last = found["last_error"]
    if last is None:
        return "none"
    return f"{last['text']} ({last['run']}/{last['round']}, {output.moment(last['at'])})"


def print_shares(found: dict[str, Any]) -> None:
    """Print how often clients were asked, by the value of a label."""
    rows = (
        (
            "-" if each["value"] is None else output.escape(each["value"]),
            str(each["clients"]),
            _share(each["clients"], found["clients"]),
            str(each["asked"]),
            _share(each["asked"], found["asked"]),
            _share(each["counted"], each["asked"]),
        )
        for each in found["shares"]
    )
    columns = (
        output.escape(found["label"]), ">CLIENTS", ">OF ALL", ">ASKED", ">OF ALL ASKED", ">COUNTED"
    )  # fmt: skip
    output.print_table(columns, rows, "No client has enrolled yet.")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


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
    hold = found["hold_reason"] if found["hold"] else ""
    rate, level = found["success_rate"], found["success_level"]
    labels = {**found["own_labels"], **found["labels"]}
    away = f"last seen {output.moment(found['seen_at'])}"
    if due_at := found.get("due_at"):
        away += f", checks in {output.ahead(due_at)}"
    facts = [
        ("client", found["name"]),
        ("status", _status(found) + (f": {why}" if (why := hold or _failing(found)) else "")),
        ("presence", "online" if found["online"] else away),
        ("task", found["task"] or "none"),
        ("version", found["version"] or "unknown"),
        ("labels", "  ".join(f"{k}={v}" for k, v in sorted(labels.items())) or "none"),
        ("note", found["note"] or "none"),
        ("certificate", f"ends {output.ahead(found['certificate_until'])}"),
        ("rounds", f"{found['counted']} of {found['asked']} counted{_failures(found)}"),
        ("success", "unknown yet" if rate is None else f"{rate:.0%}{_LEVELS.get(level, '')}"),
        ("last error", _last_error(found)),
    ]  # fmt: skip
    facts += [("masking", f"{c['run']}: {c['words']}") for c in found.get("conduct", ())]
    facts += _device(found["device"]) if found["device"] else []
    if found["staleness"]:
        facts.append(("staleness", f"{found['staleness']:.1f} models behind, mean"))
    return facts


def _device(device: dict[str, Any]) -> list[tuple[str, str]]:
    """The readings of a device."""
    said = [f"{device['cpu']:.0f} % of CPU"] if device["cpu"] is not None else []
    said += _memory_and_heat(device)
    if device["mains"] is not None:
        said.append("on mains" if device["mains"] else "on battery")
    if device["battery"] is not None:
        said.append(f"battery at {device['battery']:.0f} %")
    facts = [("device", f"{', '.join(said)} ({output.moment(device['at'])})")]
    for gpu in device["gpus"]:
        busy = [f"{gpu['busy']:.0f} % busy"] if gpu["busy"] is not None else []
        facts.append(("gpu", ", ".join([gpu["name"], *busy, *_memory_and_heat(gpu)])))
    return facts


def _memory_and_heat(of: dict[str, Any]) -> list[str]:
    used, total, heat = of["memory_used_bytes"], of["memory_total_bytes"], of["temperature"]
    said = [] if total is None else [f"{output.size(used)} of {output.size(total)} of memory"]
    return said if heat is None else [*said, f"{heat:.0f} °C"]


def _failing(found: dict[str, Any]) -> str:
    if found["state"] not in ("failing", "cooling"):
        return ""
    words = "again and again"
    if found["cools_until"]:
        words += f", gets offers again {output.ahead(found['cools_until'])}, or after its release"
    return words


def _failures(found: dict[str, Any]) -> str:
    counts = failures(found)
    return f" ({counts})" if counts else ""


def failures(counts: dict[str, Any]) -> str:
    """The outcomes other than a counted update, such as `2 failed, 1 lost`."""
    kinds = ("declined", "failed", "refused", "late", "lost")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts.get(kind))
