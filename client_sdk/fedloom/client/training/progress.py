"""Progress of a training, as the training code reports it, at most once a second.

Invariant: reporting never blocks or fails a training; a report without a listener, or too soon
after the last one, is dropped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 1.0
"""Seconds between two reports to the server."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training.

    Attributes:
        fraction: from 0 to 1.
        loss: recent; None if not reported.
    """

    fraction: float
    loss: float | None = None


def note(done: float | tuple[float, float], loss: object = None) -> TrainingProgress:
    """Convert what training code reports; invalid values never fail a round.

    Args:
        done: a fraction from 0 to 1, or (done, total).
        loss: what `float` accepts; None if it is not finite.
    """
    if hasattr(loss, "detach"):  # PyTorch warns if it is still part of a graph
        loss = loss.detach()
    try:
        part, whole = done if isinstance(done, tuple) else (done, 1.0)
        fraction = float(part / whole if whole else 1.0)
    except Exception:  # noqa: BLE001 - any object may be given
        fraction = 0.0
    try:
        value = None if loss is None else float(loss)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - likewise
        value = None
    return TrainingProgress(
        min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0,
        value if value is not None and math.isfinite(value) else None,
    )


class Reporter:
    """Passes on reports of the training code, in the training thread.

    Attributes:
        listener: called in that thread, at most once in `EVERY_S`; None without a listener.
    """

    __slots__ = ("_next_at", "listener")

    def __init__(self) -> None:
        self.listener: Callable[[TrainingProgress], None] | None = None
        self._next_at = -math.inf

    def report(self, done: float | tuple[float, float], loss: object = None) -> None:
        """Pass on progress, unless a report was just passed on.

        A dropped report is not evaluated, so it does not wait for a loss on a GPU.
        """
        if self.listener is None:
            return
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + EVERY_S
            self.listener(note(done, loss))
