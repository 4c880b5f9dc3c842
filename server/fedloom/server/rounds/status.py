"""Where a round stands right now, as people see it: beyond what the ledger holds, and told live."""

from collections.abc import Callable
from typing import Any

from fedloom.server.engine import Phase, RoundEngine
from fedloom.server.event_hub import Hub
from fedloom.server.fleet.sessions import Fleet, TaskId
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds import progress

_OF_EACH = ("members", "progress")
"""What is told of each member, and grows with their number."""


def status(
    plan: RoundPlan, engine: RoundEngine, told: dict[str, progress.Told], now: float
) -> dict[str, Any]:
    """Where a round stands.

    Args:
        plan: of the round.
        engine: its.
        told: what its members said last, of `said`.
        now: of the engine's clock, seconds.
    """
    return {
        "progress": {client: each.view() for client, each in told.items()},
        "training": progress.mean(told.values()),
        "number": plan.number,
        "kind": plan.kind.value,
        "state": engine.state.value,
        "paused": engine.clock.paused,
        "clients": {phase.value: n for phase, n in engine.cohort.counts().items()},
        "members": {client: phase.value for client, phase in engine.cohort.phases.items()},
        "available": len(engine.candidates),
        "accepted": engine.cohort.accepted,
        "goal": engine.config.goal,
        "quorum": engine.config.quorum,
        "deadline_left_s": engine.clock.deadline_left_s(now),
    }


def brief(status: dict[str, Any]) -> dict[str, Any]:
    """What a watcher is told each time: where the round stands, without each member."""
    return {name: value for name, value in status.items() if name not in _OF_EACH}


def said(
    engine: RoundEngine, fleet: Fleet, key_of: Callable[[str], TaskId]
) -> dict[str, progress.Told]:
    """What the members that are training said last.

    Args:
        engine: of the round.
        fleet: knows who is connected.
        key_of: the task that a member works on.
    """
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


class Watchers:
    """Those who watch a run's rounds.

    Args:
        live: tells them.
        run: id.
    """

    def __init__(self, live: Hub, run: str) -> None:
        self._live = live
        self._run = run
        self._last: tuple[object, ...] = ()

    def tell(self, engine: RoundEngine, look: Callable[[], dict[str, Any]]) -> None:
        """Something has happened in a round.

        Numbers travel with the event; where the round stands changes what pages show.

        Args:
            engine: of the round.
            look: its numbers, of `brief`; called if anybody watches.
        """
        self._live.changed("round", self._run, look)
        standing = (engine.state, engine.clock.paused, engine.config.goal, engine.config.quorum)
        if standing != self._last:
            self._last = standing
            self._live.changed("run", self._run)
