"""Learning rates that change within one local training.

Source: Loshchilov and Hutter 2017, SGDR, https://arxiv.org/abs/1608.03983, equation 5, for the
cosine.
"""

import math
from collections.abc import Callable
from typing import Any

from fedloom.client.api import Task
from fedloom.protocol.errors import UsageError

Schedule = Callable[[float], float]
"""The factor of the round's learning rate, by the completed share of the training."""

NAMED: dict[str, Schedule] = {
    "constant": lambda _: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
OF_TASK = "task"
"""In place of a name: use `schedule` of the run's `[config]`."""


def schedule_of(wanted: str | Schedule | None, task: Task) -> Schedule | None:
    """The schedule of a training; None for a constant rate.

    Raises:
        UsageError: the name is unknown.
    """
    if wanted == OF_TASK:
        wanted = str(task.config.get("schedule", "constant"))
    if wanted is None or wanted == "constant":
        return None
    if isinstance(wanted, str) and wanted not in NAMED:
        raise UsageError(
            f"Expected a schedule of {', '.join(NAMED)}, or a function, got {wanted!r}."
        )
    return NAMED[wanted] if isinstance(wanted, str) else wanted


class Scheduled:
    """Sets an optimizer's learning rate before each step.

    Args:
        optimizer: has `param_groups`, as torch's optimizers do.
        schedule: called with 0 before the first step, up to 1 after the last.
        num_steps: of the training.
    """

    def __init__(self, optimizer: Any, schedule: Schedule, num_steps: int) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise UsageError(
                f"A schedule needs an optimizer with param_groups, got {type(optimizer).__name__}. "
                "Use one of torch.optim."
            )
        self._optimizer = optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._schedule, self._steps, self._done = schedule, max(1, num_steps), 0
        self._set()

    def step(self) -> None:
        """Count a step and set the next learning rate."""
        self._done += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """The number of completed steps."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._done = state["done"]
        self._set()

    def _set(self) -> None:
        share = self._schedule(min(1.0, self._done / self._steps))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
