"""What the screen shows, as the server told it last."""

import time
from dataclasses import dataclass, field
from typing import Any

from fedloom.cli.connection.api_client import Control

REFUSALS = 20


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server as it was at one moment.

    Attributes:
        at: when it was looked at, as `time.monotonic` counts.
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
        """Where a run is in the list; its beginning where it is not."""
        ids = [each["id"] for each in self.runs]
        return ids.index(run) if run in ids else 0

    def selected(self, run: str | None) -> dict[str, Any] | None:
        """The run of that name, or else the first; None where there is none."""
        return self.runs[self.index(run)] if self.runs else None


def look(control: Control, run: str | None, known: ServerFacts | None = None) -> ServerFacts:
    """Ask the server for everything that is shown.

    Args:
        control: the server.
        run: which is selected; the first active one if it is over.
        known: what was seen before, for what does not change.

    Raises:
        FedloomError: the server does not answer, or says no.
    """
    server = known.server if known and known.server else control.get("server")
    facts = ServerFacts(time.monotonic(), control.get("overview"), server=server)
    if (chosen := facts.selected(run)) is None:
        return facts
    detail = control.get("runs", chosen["id"])
    refused = control.get("runs", chosen["id"], "refusals", limit=REFUSALS)["refusals"]
    return ServerFacts(facts.at, facts.overview, detail, refused, server)
