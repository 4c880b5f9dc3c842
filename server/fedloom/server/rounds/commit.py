"""The outcome of a round, and the steps that commit its model.

Every step may be repeated, since the process may crash after any of them.

Invariants: the committed sum is of exactly the updates that the ledger held when the round left
`reporting`; the model is on disk before the ledger says that the round is committed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedloom.protocol.crash_points import crossing
from fedloom.server.engine import BestModel, RoundKind
from fedloom.server.engine.conduct import PastSession
from fedloom.server.ledger.rows import AcceptedRow, ObservationRow
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import EARLY, GOAL, STOPPED
from fedloom.server.planning.advance import counts
from fedloom.server.planning.best import mark
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.messages.replies import Replies
from fedloom.server.rounds.round_sum import RoundSum
from fedloom.strategies.privacy import Participations

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended; `model` is None when it was abandoned.

    Attributes:
        model: digest of the run's model after it.
        strategy_state: the ledger's note of the state that belongs to the model.
        reason: why it was abandoned.
        fault: whether another attempt would fail the same way.
        observed: what selection learns of the cohort; see `Ledger.observations`.
        participations: of the clients after it.
        cause: a code of `fedloom.server.metrics.meters.REASONS`.
        best: the best model after it; None in a run that has none.
        sessions: its masking sessions.
    """

    model: str | None
    strategy_state: str | None
    reason: str = ""
    fault: bool = False
    observed: Sequence[ObservationRow] = ()
    participations: Participations = field(default_factory=Participations)
    cause: str = STOPPED
    best: BestModel | None = None
    sessions: Sequence[PastSession] = ()


async def commit(
    plan: RoundPlan, total: RoundSum | Replies, context: RoundsContext, goal: int
) -> tuple[Outcome, Sequence[AcceptedRow]]:
    """Compute the next model from a round's updates, store it, and commit the round.

    Returns:
        How the round ended, at its goal of updates or early; and the rows of the accepted updates.

    Raises:
        TooFewUpdatesError: the aggregation needs more updates; another round may have them.
        Exception: any error of the strategy or the storage.
    """
    ledger = context.ledger
    updates = await context.in_ledger(ledger.close_round, *plan.key)
    crossing("round.closing")
    done = await total.finish(updates)
    trains = plan.kind is RoundKind.TRAIN
    result = {
        "model_out": done.model.digest,
        "strategy_state": done.note,
        "training": done.metrics.training,
        "evaluation": done.metrics.evaluation,
        "privacy": done.metrics.privacy,
        "underflow": done.metrics.underflow,
        "reason": done.remark,
        "counts": counts(plan.spec, plan.kind),
        "trained": trains,
        "best": mark(plan.spec, done.best),
    }
    if done.remark:
        log.warning("round %d: %s", plan.number, done.remark, extra=about("", *plan.key))
    if plan.upstream is not None:  # the parent commits it, or not
        await context.in_ledger(ledger.send_round, *plan.key, result)
    else:
        await context.in_ledger(ledger.commit_round, *plan.key, result, done.model.size_bytes)
    crossing("commit.ledger")
    observed: Sequence[ObservationRow] = ()
    if trains and plan.spec.build_selection().needs:
        observed = await context.in_ledger(ledger.observations, plan.run, plan.number - 1)
    counted = sum(update.num_devices for update in updates)
    cause, model = GOAL if counted >= goal else EARLY, done.model.digest
    outcome = Outcome(
        model, done.note, observed=observed, participations=done.participations, cause=cause,
        best=done.best,
    )  # fmt: skip
    return outcome, updates
