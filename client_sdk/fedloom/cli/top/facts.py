"""The server's state that the screen shows."""

import time
from dataclasses import dataclass, field
from typing import Any

from fedloom.cli.connection.api_client import Control

REFUSALS = 20


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The state of a server at one moment.

    Attributes:
        at: when it was read, by `time.monotonic`.
        overview: of `/v1/overview`.
        run: of `/v1/runs/RUN`, of the selected run; None without one.
        refusals: the latest of that run, newest first.
        server: of `/v1/server`.
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
        """A run's index in the list; 0 where it is not in it."""
        ids = [each["id"] for each in self.runs]
        return ids.index(run) if run in ids else 0

    def selected(self, run: str | None) -> dict[str, Any] | None:
        """The run of that name, or else the first; None without runs."""
        return self.runs[self.index(run)] if self.runs else None


def look(control: Control, run: str | None, known: ServerFacts | None = None) -> ServerFacts:
    """Read everything that is shown.

    Args:
        control: the server.
        run: the selected one; the first active one if it has ended.
        known: earlier state, for what does not change.

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
