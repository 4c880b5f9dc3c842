"""The server's state, as the screen shows it."""

import time
from dataclasses import dataclass, field
from typing import Any

from fedloom.cli.connection.api_client import Control

REFUSALS = 20


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The state of a server at one moment.

    Attributes:
        at: time of the read, by `time.monotonic`.
        overview: from `/v1/overview`.
        run: the selected run, from `/v1/runs/RUN`; None without one.
        refusals: the latest of that run, newest first.
        server: from `/v1/server`.
    """

    at: float
    overview: dict[str, Any]
    run: dict[str, Any] | None = None
    refusals: list[dict[str, Any]] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The active runs, newest first."""
        found: list[dict[str, Any]] = self.overview["runs"]
        return found

    def index(self, run: str | None) -> int:
        """A run's index in the list; 0 if it is not in the list."""
        ids = [each["id"] for each in self.runs]
        return ids.index(run) if run in ids else 0

    def selected(self, run: str | None) -> dict[str, Any] | None:
        """The run with this id, or else the first; None without runs."""
        return self.runs[self.index(run)] if self.runs else None


def look(control: Control, run: str | None, known: ServerFacts | None = None) -> ServerFacts:
    """Read the server's state.

    Args:
        control: the server.
        run: id of the selected run; if it has ended, the first active run is read.
        known: earlier state, for values that do not change.

    Raises:
        FedloomError: the server is unreachable or refuses.
    """
    server = known.server if known and known.server else control.get("server")
    facts = ServerFacts(time.monotonic(), control.get("overview"), server=server)
    if (chosen := facts.selected(run)) is None:
        return facts
    detail = control.get("runs", chosen["id"])
    refused = control.get("runs", chosen["id"], "refusals", limit=REFUSALS)["refusals"]
    return ServerFacts(facts.at, facts.overview, detail, refused, server)
