"""What stands between an offer and its download: each gate may say why this device should not.

Declining is normal and costs a round nothing: the server asks another client instead.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fedloom.client.api import Client
from fedloom.protocol.v1 import fleet_pb2


class Gate(Protocol):
    """Something that an offer has to pass before anything of it is downloaded.

    One that objects to every offer alike for a while has an attribute `again_s` besides: seconds
    in which the server need not ask this client anything.
    """

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """Why not to take an offer, as a sentence for the operator; None for yes.

        May block for a second or two: it is asked in a thread.
        """


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an offer is not taken.

    Attributes:
        reason: a sentence.
        again_s: seconds in which the server need not ask again, whatever the run; 0: whenever.
    """

    reason: str
    again_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Able:
    """Declines what a client has no code or data for.

    Attributes:
        client: the author's.
    """

    client: Client

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """Whether it is a training for a client that only evaluates."""
        if offer.kind == fleet_pb2.TASK_KIND_TRAIN and not self.client.can_train():
            return "this client only evaluates"
        return None


def first_objection(gates: Iterable[Gate], offer: fleet_pb2.Task) -> Objection | None:
    """Ask gates in their order, up to the first that objects."""
    for gate in gates:
        if reason := gate.objection(offer):
            return Objection(reason, getattr(gate, "again_s", 0.0))
    return None
