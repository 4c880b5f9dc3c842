"""The connected clients, as rounds see them: who is available, and what occupies whom."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds.progress import ReportedProgress

TaskId = tuple[str, int]
"""Run and round."""

Send = Callable[[fleet_pb2.ServerMessage], Awaitable[None]]


class Listener(Protocol):
    """A run that is notified about clients."""

    def client_available(self, client: str) -> None:
        """A client is connected and has no task."""

    def client_left(self, client: str) -> None:
        """A client's stream ended, or another run has taken the client."""

    def claims(self, client: str) -> bool:
        """Whether the run's open round still waits for this client."""


class ConnectedClient(Protocol):
    """A connected client.

    Attributes:
        client: its name.
        task: what occupies it.
        progress: how far it reports its training is.
    """

    client: str
    task: TaskId | None
    progress: ReportedProgress | None


class Clients(Protocol):
    """All connected clients; `fedloom.server.fleet.sessions.Fleet` is the one of a server."""

    def get(self, client: str) -> ConnectedClient | None:
        """A client, if it is connected."""

    def available(self) -> list[str]:
        """Connected clients without a task, by name."""

    def listen(self, listener: Listener) -> None:
        """Notify a run about clients from now on, and about those that are available now."""

    def forget(self, listener: Listener) -> None:
        """A run has ended."""

    def occupy(self, client: str, task: TaskId, owner: Listener) -> bool:
        """Give a client's time to a run; False if it is gone or works for another."""

    def free(self, client: str, task: TaskId) -> None:
        """A client no longer works on a task."""

    def rest(self, client: str, seconds: float) -> None:
        """Offer a client nothing new for a while, as it asked for."""

    def send(self, client: str, message: fleet_pb2.ServerMessage) -> None:
        """Send without waiting."""
