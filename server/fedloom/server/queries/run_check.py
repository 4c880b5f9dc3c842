"""Checks a new run against the clients: gathers what is known of each, and asks `check_fleet`."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.server.access.studies import sees
from fedloom.server.ledger.rows import ClientRow, LastPartRow
from fedloom.server.planning.fleet_check import (
    FleetFinding,
    KnownClient,
    Phrase,
    Shapes,
    check_fleet,
)
from fedloom.server.planning.spec import RunSpec
from fedloom.server.queries import views
from fedloom.server.queries.check_ins import is_due
from fedloom.server.queries.clients import study_of_failure
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError

_NAMED = 20
"""Names of clients in a finding."""
_LONGEST = 120
"""Characters of a client's error in a remark."""


async def check_run(
    context: ConsoleContext,
    spec: RunSpec,
    model: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> views.RunCheck:
    """Check a run against the clients.

    Args:
        context: of the server.
        spec: of the run.
        model: full digest of the stored initial model; empty if there is none.
        shapes: of an initial model that is not stored, by tensor.

    Raises:
        UsageError: both a model and shapes are given, or a shape is not valid.
        NotFoundError: its file was pruned.
    """
    if model and shapes is not None:
        raise UsageError("Expected either `model` or `tensors`, got both.")
    wanted: Shapes | None = None
    if model:
        if not await context.in_disk(context.models.find, model):
            raise NotFoundError(f"The model {model[:12]} was pruned.")
        wanted = await _shapes(context, model)
    elif shapes is not None:
        wanted = _given(shapes)
    active = await context.in_reader(context.ledger.active_clients)
    rows = [row for row in active if (row.study or "") == spec.study]  # a run draws no others
    last = await _parts(context)
    reported = await _parts(context, "reported")
    trained = await _trained(context, reported)
    parts = {part.client: part for part in last}
    found = check_fleet(
        [_known(context, row, spec, trained, parts.get(row.name)) for row in rows],
        wanted,
        spec.round_config().goal,
    )
    return views.RunCheck(
        summary=found.summary,
        total=found.total,
        able=found.able,
        online=found.online,
        goal=found.goal,
        is_enough=found.is_enough,
        obstacles=[_view(each) for each in found.obstacles],
        remarks=[_view(each) for each in found.remarks],
    )


async def _parts(context: ConsoleContext, phase: str | None = None) -> list[LastPartRow]:
    """The last part of each client; none in a run that is not seen, as of its former study."""
    found = await context.in_reader(context.ledger.last_parts, phase)
    return [part for part in found if sees(context.runs.study_of(part.run))]


async def _shapes(context: ConsoleContext, digest: str) -> Shapes:
    manifest = await context.in_disk(context.models.manifest, digest)
    return {name: spec.shape for name, spec in manifest.specs.items()}


def _given(shapes: Mapping[str, Sequence[int]]) -> Shapes:
    for name, shape in shapes.items():
        if any(size < 0 for size in shape):
            raise UsageError(f"Expected sizes of {name!r} of 0 or more, got {list(shape)}.")
    return {name: tuple(shape) for name, shape in shapes.items()}


async def _trained(
    context: ConsoleContext, reported: Sequence[LastPartRow]
) -> dict[str, Shapes | None]:
    """The shapes of the model that each client last sent an update for.

    All models of a run have the same tensors, so the run's current one stands for any; it is None
    if its file is gone.
    """
    of_run: dict[str, Shapes | None] = {}
    for run in sorted({part.run for part in reported}):
        of_run[run] = None
        row = await context.in_reader(context.ledger.run, run)
        if row is not None and not row.spec.get("flower"):
            with suppress(IntegrityError):
                of_run[run] = await _shapes(context, row.model)
    return {part.client: of_run[part.run] for part in reported}


def _known(
    context: ConsoleContext,
    row: ClientRow,
    spec: RunSpec,
    trained: Mapping[str, Shapes | None],
    last: LastPartRow | None,
) -> KnownClient:
    expired = row.certificate_until is not None and row.certificate_until < time.time()
    return KnownClient(
        name=row.name,
        online=context.fleet.get(row.name) is not None or is_due(context, row.due_at),
        unfit=row.due_at is not None and not spec.draws_check_ins,
        hold=row.hold,
        cools=context.runs.cools_off(row.name, private=bool(spec.privacy)),
        has_certificate=not expired,
        shapes=trained.get(row.name),
        remark=_remark(row, last) if sees(study_of_failure(context, row)) else None,
    )


def _remark(row: ClientRow, last: LastPartRow | None) -> Phrase | None:
    """How the client's last task ended, if not well."""
    if row.failures:
        why = _short(row.failed_why or "no reason")
        return f"failed its last task: {why}", f"failed their last task: {why}"
    if last is not None and last.phase == "declined":
        why = _short(last.reason or "no reason")
        return f"declined its last offer: {why}", f"declined their last offer: {why}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _view(finding: FleetFinding) -> views.CheckFinding:
    names = list(finding.clients[:_NAMED])
    return views.CheckFinding(text=finding.text, count=len(finding.clients), clients=names)
