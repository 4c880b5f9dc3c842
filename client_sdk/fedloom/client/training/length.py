"""The length of a local training, and reasons to stop early: a request, time, or no improvement.

It uses only plain numbers, so that the trainings of all frameworks share it.
"""

import time
from collections.abc import Callable
from typing import Any

from fedloom.strategies import RoundSettings

Report = Callable[[tuple[float, float], Any], None]
"""Of (steps done, steps in total) and the last loss, such as `Task.progress`."""


def silent(_done: tuple[float, float], _loss: Any) -> None:
    """Report nothing."""


def never() -> bool:
    """Never ask a training to stop."""
    return False


def batches_of(num_examples: int, batch_size: int) -> int:
    """The number of batches in an epoch.

    Args:
        num_examples: at least 1.
        batch_size: 0 for every example in one batch.
    """
    return -(-num_examples // batch_size) if batch_size else 1


def steps_of(per_epoch: int, settings: RoundSettings) -> int:
    """The number of batches in a round's local training, of the batches in an epoch."""
    return settings.steps if settings.steps is not None else (settings.epochs or 0) * per_epoch


def num_steps(num_examples: int, settings: RoundSettings) -> int:
    """The number of batches in a round's local training, of the examples in an epoch."""
    return steps_of(batches_of(num_examples, settings.batch_size), settings)


class StopRule:
    """Watches one local training.

    Args:
        settings: with `patience` and `time_budget_s`.
        per_epoch: batches in an epoch.
        asked: returns whether the training was asked to stop.
        most_steps: steps that the time budget allows, instead of a clock; 0: use the clock.
        report: called after each step.

    Attributes:
        epoch: steps in an epoch.
        wanted: steps in the whole training.
    """

    def __init__(
        self,
        settings: RoundSettings,
        per_epoch: int,
        asked: Callable[[], bool] = never,
        most_steps: int = 0,
        report: Report = silent,
    ) -> None:
        budget_s = None if most_steps else settings.time_budget_s
        self._most_steps = most_steps
        self._ends_at = None if budget_s is None else time.monotonic() + budget_s
        self._asked = asked
        self._patience = settings.patience
        self.epoch = per_epoch
        self.wanted = steps_of(per_epoch, settings)
        self._most = most_steps or self.wanted
        self._report = report
        self._steps = 0
        self._sum: Any = 0.0
        self._least: float | None = None
        self._in_vain = 0

    def should_stop(self) -> bool:
        """Whether to take no further step."""
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            return True
        if self._most_steps and self._steps >= self._most_steps:
            return True
        return self._asked() or (self._patience is not None and self._in_vain >= self._patience)

    def watch(self, loss: Any, size: int) -> None:
        """Record a step.

        Args:
            loss: mean over its examples: a number, or what `float` converts and `+` adds.
            size: of the batch.
        """
        self._steps += 1
        self._report((self._steps, self._most), loss)
        if self._patience is None:
            return
        self._sum = self._sum + self._exact(loss) * size
        if self._steps % self.epoch == 0:
            self._epoch_is_over(float(self._sum))
            self._sum = 0.0

    def _exact(self, loss: Any) -> Any:
        """A loss as it is summed."""
        return loss

    def _epoch_is_over(self, loss: float) -> None:
        if self._least is None or loss < self._least:
            self._least, self._in_vain = loss, 0
        else:
            self._in_vain += 1

    def state_dict(self) -> dict[str, Any]:
        """State to resume from a checkpoint."""
        left_s = None if self._ends_at is None else self._ends_at - time.monotonic()
        return {
            "left_s": left_s,
            "steps": self._steps,
            "sum": self._sum,
            "least": self._least,
            "in_vain": self._in_vain,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        left_s = state["left_s"]
        self._ends_at = None if left_s is None else time.monotonic() + left_s
        self._steps, self._sum = state["steps"], state["sum"]
        self._least, self._in_vain = state["least"], state["in_vain"]
