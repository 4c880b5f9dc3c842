"""The tasks of a run that clients may work on: of the open round and of earlier ones.

A synchronous round has one. With buffers each client works on the task of the round in which it was
asked (`RoundEngine.origin`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedloom.protocol.task_message import offered, to_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import BufferConfig
from fedloom.server.planning.round_plan import RoundPlan, task_of


class TaskTable:
    """Plans and task messages by the number of their round.

    Args:
        plan: of the open round, or of the last committed one.
        earlier: plans of earlier rounds that clients may still work on.
    """

    def __init__(self, plan: RoundPlan, earlier: Iterable[RoundPlan] = ()) -> None:
        self.plan = plan
        self._plans = {each.number: each for each in (*earlier, plan)}
        self._messages: dict[int, fleet_pb2.Task] = {}
        self.message(plan)  # a task that cannot be encoded fails the run now, not a later offer

    def __contains__(self, number: int) -> bool:
        return number in self._plans

    @property
    def first(self) -> int:
        """The number of the earliest round."""
        return min(self._plans)

    @property
    def plans(self) -> list[RoundPlan]:
        """Of every round."""
        return list(self._plans.values())

    def plan_of(self, number: int | None) -> RoundPlan:
        """The plan of a round; None stands for the open one."""
        return self.plan if number is None else self._plans.get(number, self.plan)

    def message(self, plan: RoundPlan) -> fleet_pb2.Task:
        """The task of a round, the same for all its clients."""
        if plan.number not in self._messages:
            self._messages[plan.number] = to_message(task_of(plan))
        return self._messages[plan.number]

    def files(self, plan: RoundPlan, client: str) -> dict[str, int]:
        """The files that a client's task in a round offers for download: bytes by digest."""
        own = plan.messages.get(client)
        return offered(self.message(plan)) if own is None else {own.digest: own.size_bytes}

    def names(self, digest: str) -> bool:
        """Whether a task offers the file of this digest: a model or a difference."""
        return self.offering(digest) is not None

    def offering(self, digest: str) -> RoundPlan | None:
        """The round whose task offers the file of this digest; the latest of several."""
        its = (
            plan
            for plan in self.plans
            if digest in offered(self.message(plan))
            or any(digest == file.digest for file in plan.messages.values())
        )
        return max(its, key=lambda plan: plan.number, default=None)

    def open(self, plan: RoundPlan) -> None:
        """Add the plan of the next round."""
        self.plan = self._plans[plan.number] = plan

    def drop_before(self, number: int) -> list[RoundPlan]:
        """Remove the rounds before this one; returns their plans."""
        dropped = [plan for plan in self.plans if plan.number < number]
        for plan in dropped:
            del self._plans[plan.number]
            self._messages.pop(plan.number, None)
        return dropped


def plans_before(
    plan: RoundPlan, models: Mapping[int, str], config: BufferConfig
) -> list[RoundPlan]:
    """Plans of the rounds before a buffer whose models clients may still work on.

    Args:
        plan: of the buffer.
        models: digest by number of the rounds that are committed and not undone.
        config: of the run's buffers.
    """
    before: list[RoundPlan] = []
    for number in range(plan.number - 1, plan.number - config.max_staleness - 1, -1):
        if number not in models:
            break  # abandoned, undone or missing: work on earlier models has ended
        trained = plan.trained - (plan.number - number)
        before.append(replace(plan, number=number, trained=trained, model=models[number]))
    return before
