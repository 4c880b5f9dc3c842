"""How far members of a round say their training is: the latest word of each, for people to see.

In memory alone, and with the connection it goes. Nothing depends on it, so nonsense is dropped
without a word.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedloom.protocol.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class Told:
    """What a client said last.

    Attributes:
        task: run and round.
        fraction: from 0 to 1.
        loss: of late; None where it said none, or the run is private.
    """

    task: tuple[str, int]
    fraction: float
    loss: float | None

    def view(self) -> dict[str, float | None]:
        """As the API shows it."""
        return {"fraction": self.fraction, "loss": self.loss}


def read(message: fleet_pb2.Progress, *, private: bool) -> Told | None:
    """What a message says; None where that is nonsense.

    Args:
        message: of a client.
        private: whether the run is, so that no number but the fraction is kept.
    """
    if not 0 <= message.fraction <= 1:
        return None
    has_loss = not private and message.HasField("loss") and math.isfinite(message.loss)
    task = (message.task.run, message.task.round)
    return Told(task, message.fraction, message.loss if has_loss else None)


def mean(told: Iterable[Told]) -> float | None:
    """The mean fraction; None where nobody said anything."""
    fractions = [each.fraction for each in told]
    return sum(fractions) / len(fractions) if fractions else None
