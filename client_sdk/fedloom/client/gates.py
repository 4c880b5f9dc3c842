"""Gates: checks of an offer before its model is downloaded; each may decline with a reason.

Declining is normal: the server asks another client instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedloom.protocol.v1 import fleet_pb2


class Gate(Protocol):
    """A check that an offer must pass before its model is downloaded.

    A gate that declines every offer for a while may have an attribute `again_s`: seconds in which
    the server need not send this client offers.
    """

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline an offer, a sentence for the operator; None to accept.

        May block for a second or two: it is called in a thread.
        """


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an offer is declined.

    Attributes:
        reason: a sentence.
        again_s: seconds in which the server need not offer tasks of any run; 0: no pause.
    """

    reason: str
    again_s: float = 0.0


class MayTrain(Protocol):
    """A client, or what runs its code."""

    def can_train(self) -> bool:
        """Whether it trains; if not, it only evaluates."""


@dataclass(frozen=True, slots=True)
class Able:
    """Declines training tasks of a client that only evaluates.

    Attributes:
        client: the client, or what runs its code.
    """

    client: MayTrain

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline a training task, if the client has no `train`."""
        if offer.kind == fleet_pb2.TASK_KIND_TRAIN and not self.client.can_train():
            return "this client only evaluates"
        return None


def first_objection(gates: Iterable[Gate], offer: fleet_pb2.Task) -> Objection | None:
    """Ask gates in order, up to the first that objects."""
    for gate in gates:
        if reason := gate.objection(offer):
            return Objection(reason, getattr(gate, "again_s", 0.0))
    return None
