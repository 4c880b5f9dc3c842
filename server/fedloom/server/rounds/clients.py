"""The connected clients, as rounds see them: who is available, and the task of each."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from math import inf
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
        nonce: of its connection, which offers are signed for.
        task: that it works on; None while it is idle.
        progress: its last training report.
    """

    client: str
    nonce: bytes
    task: TaskId | None
    progress: ReportedProgress | None


class Clients(Protocol):
    """All connected clients; a server's is `fedloom.server.fleet.sessions.Fleet`.

    Attributes:
        revision: rises with every change of `reachable` or of a client's study.
    """

    revision: int

    def __len__(self) -> int:
        """Number of connected clients."""

    def get(self, client: str) -> ConnectedClient | None:
        """A client, if it is connected."""

    def available(self) -> list[str]:
        """Connected clients without a task, by name."""

    def connected(self, by: float = inf) -> list[str]:
        """Connected clients that may get offers by this time, by name, with a task or without."""

    def reachable(self) -> Iterator[str]:
        """Connected clients that may get offers and do not rest, with a task or without."""

    def checks_in(self, client: str) -> bool:
        """Whether a client is connected for a check-in alone."""

    def undrawn(self, is_candidate: Callable[[str], bool]) -> int:
        """Number of candidates that check in and whose draw is not due."""

    def study_of(self, client: str) -> str:
        """The study of a client; empty for none."""

    def devices_of(self, client: str) -> int:
        """Most devices in a sum of a site; 0 for a client that is a device."""

    def sites(self) -> Collection[str]:
        """All clients that are sites, connected or not."""

    def held(self, client: str) -> object:
        """The operator's order that excludes a client from offers; None without one."""

    def listen(self, listener: Listener) -> None:
        """Notify a run about clients that are available, now and later."""

    def forget(self, listener: Listener) -> None:
        """Stop notifying a run that has ended."""

    def occupy(self, client: str, task: TaskId, owner: Listener) -> bool:
        """Assign a client to a run; False if it is gone or works for another."""

    def free(self, client: str, task: TaskId) -> None:
        """Record that a client no longer works on a task."""

    def rest(self, client: str, seconds: float) -> None:
        """Offer a client nothing for a while, at its own request."""

    def send(self, client: str, message: fleet_pb2.ServerMessage) -> None:
        """Send without waiting."""
