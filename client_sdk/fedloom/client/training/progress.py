"""How far a training is: what the training code says, passed on at most once a second.

Invariant: nothing waits for it, and nothing depends on it; what is said while nobody listens or too
soon after the last word is dropped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 1.0
"""Seconds between two words to the server."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far a training is.

    Attributes:
        fraction: from 0 to 1.
        loss: of late; None where it was not said.
    """

    fraction: float
    loss: float | None = None


def note(done: float | tuple[float, float], loss: object = None) -> TrainingProgress:
    """Make a note of what training code says, whatever it says: progress must not fail a round.

    Args:
        done: a fraction from 0 to 1, or how much of how much.
        loss: what becomes a number by `float`; left out where that is not finite.
    """
    if hasattr(loss, "detach"):  # PyTorch warns of what is still part of a graph
        loss = loss.detach()
    try:
        part, whole = done if isinstance(done, tuple) else (done, 1.0)
        fraction = float(part / whole if whole else 1.0)
    except Exception:  # noqa: BLE001 - whatever was given as one
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
    """Passes on what training code says of itself, from the thread that trains.

    Attributes:
        heard: called in that thread with a note, at most once in `EVERY_S`; None where nobody asks.
    """

    __slots__ = ("_next_at", "heard")

    def __init__(self) -> None:
        self.heard: Callable[[TrainingProgress], None] | None = None
        self._next_at = -math.inf

    def say(self, done: float | tuple[float, float], loss: object = None) -> None:
        """Pass on how far the training is, unless something was just said.

        What is not passed on is not looked at: a loss on a GPU is then not waited for.
        """
        if self.heard is None:
            return
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + EVERY_S
            self.heard(note(done, loss))
