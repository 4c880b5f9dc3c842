"""How a round ends in the world: what it comes to, and the steps by which its model is committed.

Every step may be done again, since a crash may fall behind it as well.

Invariants: the sum that is committed is of exactly the updates that the ledger held when the round
left `reporting`; the model is on disk before the ledger says that the round is committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.protocol.crash_points import crossing
from fedloom.server.context import World
from fedloom.server.engine import RoundKind
from fedloom.server.ledger import Row
from fedloom.server.metrics.meters import STOPPED
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.strategies import MetricsSettings
from fedloom.strategies.metrics import summarize


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended; `model` is None when it was abandoned.

    Attributes:
        fault: trying again would fail again.
        part: who took part.
        observed: what the round tells selection of its cohort; see `Ledger.observations`.
        cause: why, in a word; see `fedloom.server.metrics.meters.REASONS`.
    """

    model: str | None
    strategy_state: str | None
    reason: str = ""
    fault: bool = False
    observed: Sequence[Row] = ()
    part: frozenset[str] = frozenset()
    cause: str = STOPPED


@dataclass(frozen=True, slots=True)
class Result:
    """What a round was committed with.

    Attributes:
        model: digest of the next model.
        strategy_state: the ledger's note of the strategy's state.
        updates: rows of those that count.
        observed: as `Outcome` has it.
    """

    model: str
    strategy_state: str | None
    updates: Sequence[Row]
    observed: Sequence[Row]


async def commit(plan: RoundPlan, total: RoundSum, world: World) -> Result:
    """Make the next model of a round's updates and store that it is.

    Raises:
        TooFewUpdatesError: the aggregation needs others; another round may have them.
        Exception: whatever the strategy raised, or the storage.
    """
    ledger = world.ledger
    updates = await world.in_ledger(ledger.close_round, *plan.key)
    crossing("round.closing")
    model, state, size = await total.finish(updates)
    trained = plan.kind is RoundKind.TRAIN
    result = {
        "model_out": model,
        "strategy_state": state,
        **_told(plan, updates),
        "counts": trained or plan.spec.evaluate_only,
        "trained": trained,
    }
    await world.in_ledger(ledger.commit_round, *plan.key, result, size)
    crossing("commit.ledger")
    observed: Sequence[Row] = ()
    if trained and plan.spec.build_selection().needs:
        observed = await world.in_ledger(ledger.observations, plan.run, plan.number - 1)
    return Result(model, state, updates, observed)


def _told(plan: RoundPlan, updates: Sequence[Row]) -> dict[str, Any]:
    """What is told of the round: the clients' metrics, or what they cost where private."""
    private = plan.spec.privacy_plan()
    if private is None:
        asked = plan.spec.metrics_settings()
        return {what: _measured(updates, what, asked) for what in ("training", "evaluation")}
    return {"training": {}, "evaluation": {}, "privacy": private.spent(plan.trained + 1)}


def _measured(updates: Sequence[Row], what: str, asked: MetricsSettings) -> dict[str, Any]:
    """What the clients measured; see `summarize`."""
    parts = [(u["client"], u[what]) for u in updates if u[what]]
    return summarize([(name, m["num_examples"], m["values"]) for name, m in parts], asked)
