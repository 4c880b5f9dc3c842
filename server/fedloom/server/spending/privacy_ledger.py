"""Keeps runs within the privacy budgets: refuses to start them, and bars clients from their draws.

A run is refused at its start if a budget has no room for it, for any client that it could draw. A
client that it could not draw then, since it was on hold, revoked or without the label, is checked
when it comes: it is barred from the draws of runs whose plan its budget has no room for. So the
sum over runs stays within a budget whoever joins.

Invariants: the ledger is read, the run is checked and its row is written under one lock, so of two
runs that are submitted at once the second one sees the first. Whom a run may not draw follows from
the ledger alone, so a restart changes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.privacy.budgets import BudgetRow
from fedloom.server.ledger.privacy.populations import PopulationFacts
from fedloom.server.ledger.rows import RunRow
from fedloom.server.planning.privacy_budget import (
    Bar,
    Covered,
    PrivacyBudget,
    RunSpending,
    barred,
    cover,
    refusal,
)
from fedloom.server.threads import Thread

log = logging.getLogger(__name__)

ACTIVE = ("running", "paused", "queued")
"""States of runs that may open further rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBook:
    """The spending of all runs, and whom the budgets cover, at one time.

    Attributes:
        facts: of the ledger.
        runs: by id.
        budgets: all.
    """

    facts: PopulationFacts
    runs: Mapping[str, RunSpending]
    budgets: Sequence[PrivacyBudget]

    def everyone(self) -> list[Covered]:
        """Each budget with all clients that it covers, also those on hold or revoked."""
        names = self.facts.member_of.keys() | self.facts.drawable
        return [cover(each, self._of(each, names), self.facts.member_of) for each in self.budgets]

    def drawable(self) -> list[Covered]:
        """Each budget with the clients of it that a run could draw now."""
        names = self.facts.drawable
        return [
            cover(each, self._of(each, names) & names, self.facts.member_of)
            for each in self.budgets
        ]

    def _of(self, budget: PrivacyBudget, names: Iterable[str]) -> frozenset[str]:
        return self.facts.labelled[budget.label] if budget.label else frozenset(names)


def read_book(
    ledger: Ledger, rows: Sequence[BudgetRow], *, labels: Iterable[str] = (), client: str = ""
) -> PrivacyBook:
    """Read the spending of all clients, or of one.

    Args:
        ledger: the server's.
        rows: of the budgets.
        labels: further ones to read the clients of.
        client: name; all if empty.
    """
    budgets = [
        PrivacyBudget(
            label=row.label, epsilon=row.epsilon, delta=row.delta, allow_public=row.allow_public
        )
        for row in rows
    ]
    asked = {*labels, *(each.label for each in budgets)} - {""}
    facts = ledger.population_facts(asked, client)
    return PrivacyBook(
        facts=facts, runs={row.id: spending_of(row) for row in facts.runs}, budgets=budgets
    )


def spending_of(row: RunRow) -> RunSpending:
    """The spending of a stored run."""
    return RunSpending.of(
        row.id,
        row.spec,
        row.privacy,
        order=row.created_at,
        active=row.state in ACTIVE,
        committed=row.committed,
        opened=row.last_round,
    )


class PrivacyGuard:
    """Checks runs against the budgets.

    Args:
        ledger: the server's.
        in_ledger: its thread.

    Attributes:
        lock: held while a run is checked and stored, or a budget is changed.
    """

    def __init__(self, ledger: Ledger, in_ledger: Thread) -> None:
        self.lock = asyncio.Lock()
        self._ledger = ledger
        self._in_ledger = in_ledger

    async def book(self) -> PrivacyBook | None:
        """The spending of all clients; None without budgets."""
        rows = await self._in_ledger(self._ledger.privacy_budgets)
        return await asyncio.to_thread(read_book, self._ledger, rows) if rows else None

    async def refusal(self, run: RunSpending) -> str:
        """Why no budget has room for a run that is to start or to go on; empty if all have."""
        book = await self.book()
        if book is None:
            return ""
        return await asyncio.to_thread(refusal, book.runs, run, book.drawable())

    async def bars(self) -> dict[str, Bar]:
        """The clients that each active run may not draw, by its id; only runs that have some."""
        book = await self.book()
        return {} if book is None else await asyncio.to_thread(_bars, book)


def _bars(book: PrivacyBook) -> dict[str, Bar]:
    everyone = book.everyone()
    active = (run for run in book.runs.values() if run.active)
    found = {run.id: barred(book.runs, run, everyone) for run in active}
    return {run: bar for run, bar in found.items() if bar.everyone or bar.names}
