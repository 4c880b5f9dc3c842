"""The engine of a round: begun, or restored from what the ledger holds of it.

A round of training is a buffer where the run has buffers; every other round is synchronous.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedloom.server.engine import (
    Buffer,
    BufferConfig,
    MemberSnapshot,
    Phase,
    Round,
    RoundEngine,
    RoundKind,
    RoundState,
    Select,
)
from fedloom.server.ledger.rows import CohortRow, RoundRow, UpdateRow
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.context import RoundsContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRound:
    """What the ledger holds of a round that is continued.

    Attributes:
        row: of the round; None between two buffers.
        members: rows of its cohort.
        accepted: rows of the updates that count in it.
        at_work: rows of members that may still be at work, in earlier rounds too; of buffers.
    """

    row: RoundRow | None
    members: Sequence[CohortRow] = ()
    accepted: Sequence[UpdateRow] = ()
    at_work: Sequence[CohortRow] = ()


def buffer_settings(plan: RoundPlan) -> BufferConfig | None:
    """The settings of the buffer that a round is; None for a synchronous round."""
    return plan.spec.buffer_config() if plan.kind is RoundKind.TRAIN else None


def is_last(plan: RoundPlan) -> bool:
    """Whether the run wants no other training round after this one."""
    return plan.trained + 1 >= plan.spec.rounds


def begin(plan: RoundPlan, *, select: Select, now: float, available: Iterable[str]) -> RoundEngine:
    """The engine of a round that opens as soon as enough clients are available."""
    config = buffer_settings(plan)
    if config is None:
        return Round(plan.config, select=select, now=now, available=available)
    return Buffer(
        config, number=plan.number, select=select, now=now, available=available, last=is_last(plan)
    )


async def read(
    plan: RoundPlan, row: RoundRow | None, first: int, context: RoundsContext
) -> StoredRound:
    """Read what is needed to restore the engine of a round.

    Args:
        plan: of the round.
        row: of the round; None between two buffers.
        first: number of the first round whose clients may still be at work.
        context: storage, connected clients, and what observes rounds.
    """
    ledger, key = context.ledger, plan.key
    if row is None:
        return StoredRound(
            row=None, at_work=await context.in_ledger(ledger.at_work, plan.run, first)
        )
    members = await context.in_ledger(ledger.cohort, *key)
    accepted = await context.in_ledger(ledger.accepted, *key)
    at_work: Sequence[CohortRow] = ()
    if buffer_settings(plan) is not None:
        at_work = await context.in_ledger(ledger.at_work, plan.run, first)
    return StoredRound(row=row, members=members, accepted=accepted, at_work=at_work)


def restore(
    plan: RoundPlan,
    stored: StoredRound,
    *,
    select: Select,
    now: float,
    available: Iterable[str],
    paused: bool = False,
) -> RoundEngine:
    """The engine of a round that continues after a restart.

    The time that the server was down does not count: members get their whole grace period.

    Args:
        plan: of the round.
        stored: of `read`.
        select: draws replacements.
        now: of the engine's clock, seconds.
        available: clients that are idle.
        paused: whether the run is.
    """
    row, config = stored.row, buffer_settings(plan) or plan.config
    state = RoundState.COMMITTED if row is None else RoundState(row.state)
    left_s = 0.0 if row is None else max(row.deadline_at - time.time(), config.patience_s)
    if isinstance(config, BufferConfig):
        return Buffer.rebuild(
            config,
            number=plan.number,
            select=select,
            state=state,
            members=_snapshots(stored, config.patience_s),
            now=now,
            deadline_left_s=left_s,
            available=available,
            paused=paused,
            last=is_last(plan),
        )
    return Round.restore(
        config,
        select=select,
        state=state,
        cohort={m.client: Phase(m.phase) for m in stored.members},
        accepted={u.client for u in stored.accepted},
        deadline_left_s=left_s,
        now=now,
        available=available,
        paused=paused,
    )


def _snapshots(stored: StoredRound, grace_s: float) -> dict[str, MemberSnapshot]:
    """Members by name: a later task of a client ends its earlier one, and its update ends both."""
    members = {m.client: _snapshot(m, grace_s) for m in (*stored.at_work, *stored.members)}
    reported = {u.client: MemberSnapshot(u.round, Phase.REPORTED) for u in stored.accepted}
    return members | reported


def _snapshot(row: CohortRow, grace_s: float) -> MemberSnapshot:
    phase = Phase(row.phase)
    return MemberSnapshot(row.round, phase, grace_s if phase is Phase.OFFERED else None)
