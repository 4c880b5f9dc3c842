"""Training progress that members of a round report: the latest of each, for the console.

It is kept in memory while the client is connected. Nothing depends on it, so invalid reports are
dropped silently.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedloom.protocol.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The last progress report of a client.

    Attributes:
        task: run and round.
        fraction: from 0 to 1.
        loss: recent training loss; None if not reported, or if the run is private.
    """

    task: tuple[str, int]
    fraction: float
    loss: float | None

    def view(self) -> dict[str, float | None]:
        """The values that the API returns."""
        return {"fraction": self.fraction, "loss": self.loss}


def read(message: fleet_pb2.Progress, *, private: bool) -> ReportedProgress | None:
    """Read a progress message; None if it is invalid. A private run keeps the fraction alone."""
    if not 0 <= message.fraction <= 1:
        return None
    has_loss = not private and message.HasField("loss") and math.isfinite(message.loss)
    task = (message.task.run, message.task.round)
    return ReportedProgress(task, message.fraction, message.loss if has_loss else None)


def mean(reported: Iterable[ReportedProgress]) -> float | None:
    """The mean fraction; None without any report."""
    fractions = [each.fraction for each in reported]
    return sum(fractions) / len(fractions) if fractions else None
