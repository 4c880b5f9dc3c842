"""What the server of a masked demo could see, beside what it could not."""

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedloom.cli.common.output import make_table
from fedloom.cli.connection.api_client import Control
from fedloom.simulation.output import words
from fedloom.simulation.wire.processes import LocalProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """Figures from the server's ledger.

    Attributes:
        sessions: that gave a sum.
        updates: masked updates in these sums.
        members: of the smallest of them.
        threshold: members that it needed to the end.
        colluders: members of it that may work with the server.
        examples: of all clients together, in the last round.
    """

    sessions: int
    updates: int
    members: int
    threshold: int
    colluders: int
    examples: int


def seen(processes: LocalProcesses, status: dict[str, Any]) -> Readable:
    """What the server has of a run that has ended.

    Args:
        processes: of the server.
        status: of the run, as the server shows it.
    """
    control, rounds = Control(processes.server), status["rounds"]
    found = [
        session
        for row in rounds
        for session in control.get("runs", status["id"], "rounds", str(row["number"]), "sessions")[
            "sessions"
        ]
        if session["state"] == "done"
    ]
    smallest = min(found, key=lambda session: session["size"])
    return Readable(
        sessions=len(found),
        updates=sum(session["masked"] for session in found),
        members=smallest["size"],
        threshold=smallest["threshold"],
        colluders=smallest["colluders"],
        examples=int((rounds[-1]["evaluation"] or {}).get("num_examples", 0)),
    )


def table(of: Readable) -> RenderableType:
    """What the server could see and what not, in two columns."""
    rows = [
        ["who took part in each round, and when", "what one device sent, in clear"],
        [
            f"{words.things(of.sessions, 'sum')} of the updates of {of.members} devices",
            f"any of the {of.updates:,} updates, or a sum of fewer than {of.threshold}",
        ],
        ["the mean accuracy and loss of all devices", "the accuracy or loss of one device"],
        [f"{of.examples:,} held-out examples in all", "how many examples one device has"],
    ]
    text = (
        f"Each session had {of.members} devices and needed {of.threshold} to its end. It holds "
        f"while at most {of.colluders} of them work with the server."
    )
    return Group(
        Text(),
        Text("Each update was masked", "bold"),
        make_table(["the server could see", "it could not see"], rows),
        Text(text, "dim"),
    )
