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
"""How much of the round's learning rate counts, by the share of the training that is done."""

NAMED: dict[str, Schedule] = {
    "constant": lambda _: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
OF_TASK = "task"
"""In place of a name: the run's `[config]` has it, under `schedule`."""
_NEED_CONSTANT = {"scaffold", "qfedavg"}
"""Client rules that compute with the round's learning rate."""


def schedule_of(wanted: str | Schedule | None, task: Task) -> Schedule | None:
    """The schedule of a training; None for a constant rate.

    Raises:
        UsageError: there is none of this name, or the client rule needs a constant rate.
    """
    if wanted == OF_TASK:
        wanted = str(task.config.get("schedule", "constant"))
    if wanted is None or wanted == "constant":
        return None
    if task.rule.name in _NEED_CONSTANT:
        raise UsageError(
            f"Expected a constant learning rate with the client rule {task.rule.name}, which "
            "computes with it, got a schedule. Leave it out, or run with another strategy."
        )
    if isinstance(wanted, str) and wanted not in NAMED:
        raise UsageError(
            f"Expected a schedule of {', '.join(NAMED)}, or a function, got {wanted!r}."
        )
    return NAMED[wanted] if isinstance(wanted, str) else wanted


class Scheduled:
    """Sets an optimizer's learning rate, from the first step on.

    Args:
        optimizer: has `param_groups`, as torch's optimizers do.
        schedule: from 0 before the first step to 1 after the last.
        num_steps: of the training.
    """

    def __init__(self, optimizer: Any, schedule: Schedule, num_steps: int) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise UsageError(
                f"Expected an optimizer with param_groups with a schedule, got "
                f"{type(optimizer).__name__}. Use one of torch.optim."
            )
        self._optimizer = optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._schedule, self._steps, self._done = schedule, max(1, num_steps), 0
        self._set()

    def step(self) -> None:
        """Take note of a step."""
        self._done += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """How many steps were taken."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._done = state["done"]
        self._set()

    def _set(self) -> None:
        share = self._schedule(min(1.0, self._done / self._steps))
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
