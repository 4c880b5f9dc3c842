"""The output of `fedloom round show` about masking sessions: who was asked, and who sent what."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedloom.cli.common import output

PHASES = ("ready", "shares", "body", "agreement", "reveal", "closing")
"""Phases of messages, in order; others follow."""


def listing(sessions: list[dict[str, Any]]) -> RenderableType:
    """One line per session."""
    rows = [
        (
            str(each["session"]),
            output.state(each["state"]),
            str(each["size"]),
            str(each["threshold"]),
            str(each["colluders"]),
            _fixed(each["shared"], each, "shares"),
            _fixed(each["masked"], each, "body"),
            _fixed(each["sent"].get("agreement"), each, ""),
            _fixed(each["revealed"], each, "reveal"),
            output.escape(each["width_class"]),
            output.escape("; ".join(notes(each))),
        )
        for each in sessions
    ]
    columns = (
        *(">SESSION", "STATE", ">SIZE", ">THRESHOLD", ">COLLUDERS", ">SHARED", ">SENT"),
        *(">SIGNED", ">REVEALED", "WIDTH", "~NOTE"),
    )
    head = "Masking sessions: the server can read the sum of each, and no single update."
    return Group(Text(head, style="dim"), output.make_table(columns, rows, required=9))


def _fixed(count: int | None, session: dict[str, Any], phase: str) -> str:
    """The size of a set; before it is fixed, the members that have sent their message so far."""
    if count is not None:
        return str(count)
    so_far = session["sent"].get(phase)
    return f"{so_far} so far" if so_far else "-"


def notes(session: dict[str, Any]) -> list[str]:
    """Why a session was abandoned, whether that is proved, and who is to blame."""
    told = [session["reason"]] if session["reason"] else []
    if session["state"] == "abandoned":
        gave_up = f"{session['closed']} of {session['size']} members gave it up"
        proof = (
            "which proves" if session["proven_dead"] else f"of {session['threshold']} that prove"
        )
        told.append(f"{gave_up}, {proof} that nobody can ever unmask it")
    return told + [f"{each['client']} {each['words']}" for each in session["blamed"]]


def detail(found: dict[str, Any]) -> RenderableType:
    """A session with its members: when each sent what, never what it sent."""
    sent = [phase for member in found["members"] for phase in member["sent"]]
    phases = [*PHASES, *sorted(set(sent) - set(PHASES))]
    rows = [
        (
            output.escape(member["client"]),
            {True: "yes", False: "no", None: "open"}[member["counts"]],
            *(_when(member["sent"].get(phase)) for phase in phases),
            output.escape(", ".join(member["blamed"])),
        )
        for member in found["members"]
    ]
    columns = ("CLIENT", "COUNTS", *(phase.upper() for phase in phases), "~BLAMED FOR")
    words = Text.from_markup(
        f"[bold]session {found['session']}[/] of round {found['round']} of "
        f"{output.escape(found['run'])}  {output.state(found['state'])}"
    )
    words.append(f"  {found['words']}", style="dim")
    about = (
        f"{found['size']} members, threshold {found['threshold']}: up to {found['drop_outs']} may "
        f"drop out, and up to {found['colluders']} may work with the server"
    )
    told = [Text(output.harmless(line), style="yellow") for line in notes(found)]
    return Group(
        words, Text(about, style="dim"), *told, Text(), output.make_table(columns, rows, 2)
    )


def _when(at: float | None) -> str:
    return "-" if at is None else output.moment(at)
