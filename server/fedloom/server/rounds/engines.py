"""Builds the engine of a round, or restores it from the ledger.

Training rounds of a buffered run are buffers; all other rounds are synchronous.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from fedloom.server.engine import (
    Buffer,
    BufferConfig,
    MaskedConfig,
    MaskedRound,
    MemberSnapshot,
    Phase,
    Round,
    RoundEngine,
    RoundKind,
    RoundState,
    Select,
    SessionSnapshot,
    SiteRound,
)
from fedloom.server.engine.masked_round import Divide
from fedloom.server.ledger.member_summary import error_of
from fedloom.server.ledger.rows import AcceptedRow, CohortRow, RoundRow
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.context import RoundsContext


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRound:
    """The ledger's rows of a round that is continued.

    Attributes:
        row: of the round; None between two buffers.
        members: rows of its cohort.
        accepted: rows of the updates that count in it.
        at_work: with buffers, rows of members that may still be at work, of earlier rounds too.
    """

    row: RoundRow | None
    members: Sequence[CohortRow] = ()
    accepted: Sequence[AcceptedRow] = ()
    at_work: Sequence[CohortRow] = ()


def buffer_settings(plan: RoundPlan) -> BufferConfig | None:
    """The settings of a round that is a buffer; None for a synchronous round."""
    return plan.spec.buffer_config() if plan.kind is RoundKind.TRAIN else None


def lacks(engine: RoundEngine, plan: RoundPlan, client: str, counted: int) -> bool:
    """Whether an engine has yet to count an accepted update, which is in the sum of one round.

    The driver may learn late of what a gate has accepted: after it has closed that round, and so
    read of the update, or after its next one has opened.

    Args:
        engine: of the open round.
        plan: of that round.
        client: whose update it is.
        counted: the round whose sum it is in.
    """
    return counted == plan.number and engine.cohort.phases.get(client) is not Phase.REPORTED


def is_last(plan: RoundPlan) -> bool:
    """Whether it is the last training round of the run."""
    return plan.trained + 1 >= plan.spec.rounds


def begin(
    plan: RoundPlan,
    *,
    select: Select,
    now: float,
    available: Iterable[str],
    devices_of: Callable[[str], int],
    connected: Collection[str] = (),
) -> RoundEngine:
    """Build the engine of a new round; it opens as soon as enough clients are available.

    `devices_of` returns the devices of a client that is a site.
    """
    config = buffer_settings(plan)
    if plan.spec.sites:
        return SiteRound(
            plan.config, select=select, now=now, devices_of=devices_of,
            least=plan.spec.least_devices, available=available,
        )  # fmt: skip
    if config is None:
        named = sorted(plan.messages)
        return Round(
            plan.config, select=select, now=now, available=available, named=named, busy=connected
        )
    return Buffer(
        config, number=plan.number, select=select, now=now, available=available, last=is_last(plan)
    )


def begin_masked(
    plan: RoundPlan, *, select: Select, divide: Divide, now: float, available: Iterable[str]
) -> MaskedRound:
    """Build the engine of a new masked round."""
    config = plan.config
    assert isinstance(config, MaskedConfig)
    return MaskedRound(config, select=select, divide=divide, now=now, available=available)


async def read(
    plan: RoundPlan, row: RoundRow | None, first: int, context: RoundsContext
) -> StoredRound:
    """Read what is needed to restore the engine of a round, or between two buffers without a row.

    `first` is the number of the first round whose clients may still be at work.
    """
    ledger, at_work = context.ledger, list[CohortRow]()
    if row is None or buffer_settings(plan) is not None:
        at_work = await context.in_ledger(ledger.at_work, plan.run, first)
    if row is None:
        return StoredRound(row=None, at_work=at_work)
    members = await context.in_ledger(ledger.cohort, *plan.key)
    accepted = await context.in_ledger(ledger.accepted, *plan.key)
    return StoredRound(row=row, members=members, accepted=accepted, at_work=at_work)


def restore(
    plan: RoundPlan,
    stored: StoredRound,
    *,
    select: Select,
    now: float,
    wall: float,
    available: Iterable[str],
    devices_of: Callable[[str], int],
    paused: bool = False,
) -> RoundEngine:
    """Build the engine of a round that continues after a restart.

    `now` is in seconds of the engine's clock, `wall` of the ledger's.

    Members get their whole grace period again: the time without a server does not count.
    """
    row, config = stored.row, buffer_settings(plan) or plan.config
    state = RoundState.COMMITTED if row is None else RoundState(row.state)
    left_s = 0.0 if row is None else max(row.deadline_at - wall, config.patience_s)
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
    phases = {m.client: Phase(m.phase) for m in stored.members}
    if plan.spec.sites:
        return SiteRound.rebuild(
            config,
            select=select,
            devices_of=devices_of,
            least=plan.spec.least_devices,
            state=state,
            cohort=phases,
            places={m.client: m.places or 1 for m in stored.members},
            reasons={m.client: error_of(m) for m in stored.members},
            accepted={u.client: u.num_devices for u in stored.accepted},
            deadline_left_s=left_s,
            now=now,
            available=available,
            paused=paused,
        )
    return Round.restore(
        config,
        select=select,
        state=state,
        cohort=phases,
        reasons={m.client: error_of(m) for m in stored.members},
        accepted={u.client for u in stored.accepted},
        deadline_left_s=left_s,
        now=now,
        available=available,
        paused=paused,
    )


def restore_masked(
    plan: RoundPlan,
    stored: StoredRound,
    sessions: Sequence[SessionSnapshot],
    *,
    select: Select,
    divide: Divide,
    now: float,
    wall: float,
    available: Iterable[str],
    paused: bool = False,
) -> MaskedRound:
    """Build the engine of a masked round that continues after a restart, as `restore` does."""
    row, config = stored.row, plan.config
    assert row is not None
    assert isinstance(config, MaskedConfig)
    return MaskedRound.rebuild(
        config,
        select=select,
        divide=divide,
        state=RoundState(row.state),
        cohort={m.client: Phase(m.phase) for m in stored.members},
        sessions=sessions,
        deadline_left_s=max(row.deadline_at - wall, config.patience_s),
        now=now,
        available=available,
        paused=paused,
        reasons={m.client: error_of(m) for m in stored.members},
    )


def _snapshots(stored: StoredRound, grace_s: float) -> dict[str, MemberSnapshot]:
    """Members by name; a later task ends an earlier one of the same client, an update ends both."""
    members = {m.client: _snapshot(m, grace_s) for m in (*stored.at_work, *stored.members)}
    reported = {u.client: MemberSnapshot(u.round, Phase.REPORTED) for u in stored.accepted}
    return members | reported


def _snapshot(row: CohortRow, grace_s: float) -> MemberSnapshot:
    phase = Phase(row.phase)
    grace = grace_s if phase is Phase.OFFERED else None
    return MemberSnapshot(row.round, phase, grace, error_of(row))
