"""Reads the devices that check in: how many there are, and which of them are due."""

import time

from fedloom.server.access.studies import sees
from fedloom.server.ledger.rows import ClientRow
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.views import CheckInsView


def due_at(context: ConsoleContext, row: ClientRow) -> float | None:
    """When a client checks in next; None if it is connected, holds a stream, or is missing."""
    if context.fleet.get(row.name) is not None:
        return None
    return row.due_at if is_due(context, row.due_at) else None


def is_due(context: ConsoleContext, due: float | None) -> bool:
    """Whether a client that is not connected comes when it was told, or may still be on its way."""
    return due is not None and time.time() < due + context.config.check_in.missing_after_s


def check_ins(context: ConsoleContext) -> CheckInsView | None:
    """The devices that check in, of the studies that are seen; None if there are none."""
    seen = [counts for study, counts in context.check_in_counts.items() if sees(study)]
    view = CheckInsView(
        expected=sum(each.expected for each in seen),
        missing=sum(each.missing for each in seen),
        soon=sum(each.soon for each in seen),
        waiting=sum(sees(context.fleet.study_of(client)) for client in context.fleet.waiting),
        every_s=context.config.check_in.every_s,
    )
    return view if view.expected or view.missing or view.waiting else None
