"""What stands between an offer and its download: each gate may say why this device should not.

Declining is normal and costs a round nothing: the server asks another client instead.
"""

from collections.abc import Iterable
from typing import Protocol

from fedloom.protocol.v1 import fleet_pb2


class Gate(Protocol):
    """Something that an offer has to pass before anything of it is downloaded."""

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """Why not to take an offer, as a sentence for the operator; None for yes.

        May block for a second or two: it is asked in a thread.
        """


def first_objection(gates: Iterable[Gate], offer: fleet_pb2.Task) -> str | None:
    """Ask gates in their order, up to the first that objects."""
    found = (gate.objection(offer) for gate in gates)
    return next((reason for reason in found if reason), None)
