"""How long a local training is, and when it ends before that: asked to, out of time, in vain.

Plain numbers, so that every framework's training shares it.
"""

import time
from collections.abc import Callable
from typing import Any

from fedloom.strategies import RoundSettings

Report = Callable[[tuple[float, float], Any], None]
"""Of (steps done and wanted) and the last loss, such as `Task.progress`."""


def silent(_done: tuple[float, float], _loss: Any) -> None:
    """Report nothing."""


def never() -> bool:
    """Ask nothing of a training."""
    return False


def num_batches(
    num_examples: int, *, epochs: int | None, steps: int | None, batch_size: int
) -> int:
    """The number of batches in a local training.

    Args:
        num_examples: at least 1.
        epochs: passes over the examples, or None where `steps` counts.
        steps: batches, whatever that is in epochs.
        batch_size: 0 for every example in one batch.
    """
    per_epoch = -(-num_examples // batch_size) if batch_size else 1
    return steps if steps is not None else (epochs or 0) * per_epoch


class StopRule:
    """Watches one local training.

    Args:
        settings: whose `patience` and `time_budget_s` are kept.
        num_examples: trained on in an epoch.
        asked: whether somebody wants it to stop.
        most_steps: that there is time for, in place of a clock; 0 to look at the clock.
        report: told after each step.

    Attributes:
        epoch: steps in one.
    """

    def __init__(
        self,
        settings: RoundSettings,
        num_examples: int,
        asked: Callable[[], bool] = never,
        most_steps: int = 0,
        report: Report = silent,
    ) -> None:
        budget_s = None if most_steps else settings.time_budget_s
        self._most_steps = most_steps
        self._ends_at = None if budget_s is None else time.monotonic() + budget_s
        self._asked = asked
        self._patience = settings.patience
        self.epoch = num_batches(num_examples, epochs=1, steps=None, batch_size=settings.batch_size)
        self._wanted = most_steps or num_batches(
            num_examples,
            epochs=settings.epochs,
            steps=settings.steps,
            batch_size=settings.batch_size,
        )
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
        """Be told of a step: the mean loss of its examples, and how many they were.

        Args:
            loss: a number, or what becomes one by `float` and can be added up.
            size: of the batch.
        """
        self._steps += 1
        self._report((self._steps, self._wanted), loss)
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
        """What the rest of a training's stops depend on."""
        left_s = None if self._ends_at is None else self._ends_at - time.monotonic()
        return {
            "left_s": left_s,
            "steps": self._steps,
            "sum": self._sum,
            "least": self._least,
            "in_vain": self._in_vain,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        left_s = state["left_s"]
        self._ends_at = None if left_s is None else time.monotonic() + left_s
        self._steps, self._sum = state["steps"], state["sum"]
        self._least, self._in_vain = state["least"], state["in_vain"]
