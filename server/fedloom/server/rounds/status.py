"""Live status of a round for the console and the CLI: what the ledger does not store."""

from collections.abc import Callable
from typing import Any

from fedloom.server.engine import BufferConfig, Phase, RoundEngine, RoundState
from fedloom.server.engine.failures import commonest
from fedloom.server.event_hub import Hub
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds import progress
from fedloom.server.rounds.clients import Clients, TaskId
from fedloom.server.rounds.progress import ReportedProgress

_OF_EACH = ("members", "progress")
"""Keys whose values grow with the number of members."""


def status(
    plan: RoundPlan, engine: RoundEngine, reported: dict[str, ReportedProgress], now: float
) -> dict[str, Any]:
    """The status of a round at `now`, in seconds of the engine's clock."""
    cohort, config = engine.cohort, engine.config
    values = {
        "progress": {client: each.view() for client, each in reported.items()},
        "training": progress.mean(reported.values()),
        "number": plan.number,
        "kind": plan.kind.value,
        "state": engine.state.value,
        "paused": engine.clock.paused,
        "clients": {phase.value: n for phase, n in cohort.counts().items()},
        "members": {client: phase.value for client, phase in cohort.phases.items()},
        "available": len(engine.candidates),
        "held_back": len(plan.participations.excluded),
        "left_to_others": _left_to_others(engine),
        "accepted": cohort.accepted,
        "goal": len(cohort) if config.by_coins and len(cohort) else config.goal,
        "quorum": config.quorum,
        "deadline_left_s": engine.clock.deadline_left_s(now),
        "gives_up_in_s": engine.clock.gives_up_in_s(now),
        "failures": [each.view() for each in commonest(cohort.failures())],
    }
    if isinstance(config, BufferConfig):
        values["concurrency"] = config.concurrency
    return values


def _left_to_others(engine: RoundEngine) -> int:
    """Available clients that a round which has not opened leaves to runs whose turn comes first."""
    if engine.state is not RoundState.SELECTING:
        return 0
    return min(engine.set_aside(), len(engine.candidates))


def brief(status: dict[str, Any]) -> dict[str, Any]:
    """The status without the values of each member, for events."""
    return {name: value for name, value in status.items() if name not in _OF_EACH}


def reported_progress(
    engine: RoundEngine, fleet: Clients, key_of: Callable[[str], TaskId]
) -> dict[str, ReportedProgress]:
    """The last progress report of each member that is training."""
    sessions = (
        (client, fleet.get(client))
        for client, phase in engine.cohort.phases.items()
        if phase is Phase.TRAINING
    )
    return {
        client: session.progress
        for client, session in sessions
        if session and session.progress and session.progress.task == key_of(client)
    }


class StatusPublisher:
    """Publishes the status of a run's rounds to the pages that show the run."""

    def __init__(self, live: Hub, run: str) -> None:
        self._live = live
        self._run = run
        self._last: tuple[object, ...] = ()

    def publish(self, engine: RoundEngine, status: Callable[[], dict[str, Any]]) -> None:
        """Publish that a round has changed.

        The event carries the brief status, which is built only if a page shows the run; pages
        reload the run where more has changed.
        """
        self._live.changed("round", self._run, status)
        config, clock = engine.config, engine.clock
        failed = engine.cohort.failed.bit_length()  # at 1, 2, 4, 8, … failures
        state = (
            engine.state, clock.paused, clock.give_up_at, config.goal, config.quorum, failed
        )  # fmt: skip
        if state != self._last:
            self._last = state
            self._live.changed("run", self._run)
