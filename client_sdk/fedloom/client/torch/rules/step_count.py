"""The steps of a training, counted as a client rule's formulas need them.

An optimizer of the exact types here takes steps whose gradients have known weights in the update;
of any other the rule must not depend on them. Source: `fedloom.strategies.local_optimizers`.

Invariant: settings are read before every step, as schedules change them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedloom.client.torch.steps import SGD, Correction, Stepper
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule
from fedloom.strategies.compatibility import check_optimizer
from fedloom.strategies.local_optimizers import LocalOptimizer, LocalSteps, StepWeights

_SETTINGS = ("momentum", "dampening", "weight_decay", "nesterov", "maximize")


class StepCount:
    """Counts the steps of one training in `local.steps`.

    Args:
        local: of the rule.
        weight: returns what a step adds; None for a rule that does not read the count.
        weights: whose state the count depends on; None for none.
    """

    def __init__(
        self, local: RuleContext, weight: Callable[[], float] | None, weights: StepWeights | None
    ) -> None:
        self._local, self._weight = local, weight
        self.state = None if weights is None else _State(weights)

    def before(self, correct: Correction) -> Correction:
        """The same correction, which also counts."""
        weight = self._weight
        if weight is None:
            return correct

        def counted() -> None:
            self._local.steps = (self._local.steps or 0) + weight()
            correct()

        return counted


class _State:
    """The weights' state, for checkpoints."""

    def __init__(self, weights: StepWeights) -> None:
        self._weights = weights

    def state_dict(self) -> dict[str, Any]:
        """The velocity."""
        return {"velocity": self._weights.velocity}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restore it."""
        self._weights.velocity = state["velocity"]


def step_count(
    stepper: Stepper, rule: ClientRule, local: RuleContext, rate: float, *, varies: bool
) -> StepCount:
    """Begin to count a training's steps.

    Args:
        stepper: of the training, before its first step.
        rule: of the round.
        local: of the rule.
        rate: the task's learning rate.
        varies: whether a schedule changes it.

    Raises:
        UsageError: the rule's formulas do not hold for this optimizer.
    """
    if rule.is_elementary or rule.picks:
        return StepCount(local, None, None)
    found = described(stepper, rate, varies=varies)
    try:
        check_optimizer(rule, found)
    except ValueError as error:
        raise UsageError(str(error)) from None
    local.steps = 0
    if found.steps is LocalSteps.ANY:
        return StepCount(local, lambda: 1, None)
    weights, has_momentum = StepWeights(), bool(_groups(stepper)[0].get("momentum"))

    def weight() -> float:
        group = _groups(stepper)[0]  # a resumed optimizer has others
        return weights.next(
            float(group["lr"]) / rate,
            group.get("momentum", 0.0),
            group.get("dampening", 0.0),
            nesterov=group.get("nesterov", False),
        )

    return StepCount(local, weight, weights if has_momentum else None)


def described(stepper: Stepper, rate: float, *, varies: bool) -> LocalOptimizer:
    """The kind of an optimizer's steps.

    Args:
        stepper: before its first step.
        rate: the task's learning rate.
        varies: whether a schedule changes it.
    """
    groups = _groups(stepper)
    name, kind = type(stepper).__name__, type(stepper)
    # Exactly these: a subclass may do anything, and so may another optimizer with momentum.
    if kind not in {SGD, torch.optim.SGD} or not groups:
        return LocalOptimizer(name, LocalSteps.ANY)
    group = groups[0]
    chosen = {setting: group[setting] for setting in _SETTINGS if group.get(setting)}
    if chosen:
        name += f" with {', '.join(f'{n} = {value}' for n, value in chosen.items())}"
    no_weights = {
        "other settings for some tensors": any(_of(each) != _of(group) for each in groups),
        "values from an earlier task": bool(getattr(stepper, "state", None)),
        "steps up": bool(group.get("maximize")),
        "dampening outside 0 to 1": not 0 <= group.get("dampening", 0) <= 1,
    }
    if strange := [words for words, there in no_weights.items() if there]:
        return LocalOptimizer(f"{name}, with {' and '.join(strange)}", LocalSteps.ANY)
    if group.get("momentum") or group.get("weight_decay"):
        return LocalOptimizer(name, LocalSteps.LINEAR)
    if varies:
        return LocalOptimizer(f"{name} with a schedule of the learning rate", LocalSteps.DESCENT)
    if float(group["lr"]) != rate:
        return LocalOptimizer(f"{name} at another learning rate", LocalSteps.DESCENT)
    return LocalOptimizer(name, LocalSteps.CONSTANT)


def _groups(stepper: Stepper) -> list[Mapping[str, Any]]:
    return list(getattr(stepper, "param_groups", []))


def _of(group: Mapping[str, Any]) -> tuple[Any, ...]:
    return float(group["lr"]), *(group.get(setting) for setting in _SETTINGS)
