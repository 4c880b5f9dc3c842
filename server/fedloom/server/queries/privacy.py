"""Reads the privacy ledger: what populations and clients have spent, and the budgets."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from fedloom.server.ledger.lists.order import Cut, page_of
from fedloom.server.ledger.privacy.budgets import BudgetRow
from fedloom.server.ledger.rows import RunRow
from fedloom.server.planning import privacy_budget as pure
from fedloom.server.queries import privacy_views as views
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.spending.privacy_ledger import PrivacyBook, read_book
from fedloom.strategies.privacy import common_relation

DELTA = 1e-6
"""For figures, where neither a budget nor a run says another."""


async def privacy_ledger(
    context: ConsoleContext, *, label: str = "", delta: float | None = None
) -> views.PrivacyLedger:
    """All populations: of all clients, of each budget, and of a label that is asked for.

    Args:
        context: of the server.
        label: name or name=value; empty for none.
        delta: of the figures; by default that of the budget, or the smallest of the runs.
    """
    rows, book = await _read(context, label)
    return await asyncio.to_thread(_ledger, context, book, rows, label, delta)


async def spenders_page(
    context: ConsoleContext,
    *,
    label: str = "",
    delta: float | None = None,
    after: str = "",
    limit: int = 100,
) -> views.SpenderList:
    """Clients that were in a run, by name, with what they have spent."""
    rows, book = await _read(context, label)
    at = delta or _delta(book, rows, label)
    return await asyncio.to_thread(_spenders, book, label, at, after, limit)


async def ledger_and_spenders(
    context: ConsoleContext, *, label: str, text: str, page: Cut
) -> tuple[views.PrivacyLedger, list[views.SpenderView]]:
    """All populations, and a page of the clients of a label, of one reading of the ledger.

    Args:
        context: of the server.
        label: of the clients, name or name=value; empty for all.
        text: a part of their names; case is ignored.
        page: of the clients, by name unless sorted.
    """
    rows, book = await _read(context, label)
    at = _delta(book, rows, label)
    spenders = await asyncio.to_thread(_listed_spenders, book, label, at, text, page)
    return await asyncio.to_thread(_ledger, context, book, rows, label, None), spenders


def _listed_spenders(
    book: PrivacyBook, label: str, delta: float, text: str, page: Cut
) -> list[views.SpenderView]:
    known = dict[tuple[pure.Runs, bool], dict[str, Any]]()

    def facts(name: str) -> dict[str, Any]:
        """What clients that were in the same runs have in common."""
        its = book.facts.member_of.get(name, frozenset()), name in book.facts.drawable
        if its not in known:
            known[its] = _spender(book, name, delta).model_dump(exclude={"client"})
        return known[its]

    def value(column: str) -> Callable[[str], Any]:
        if column in UNBOUNDED:
            return lambda name: unbounded(facts(name)[column])
        return lambda name: facts(name)[column]

    columns = {each: value(each) for each in views.SpenderView.model_fields}
    names = [name for name in sorted(_members(book, label)) if text.lower() in name.lower()]
    found = page_of(names, page, columns | {"client": str})
    return [views.SpenderView(client=name, **facts(name)) for name in found]


UNBOUNDED = ("spent", "reserved", "epsilon")
"""Figures for which None means that no bound is known."""


def unbounded(epsilon: float | None) -> float:
    """An epsilon to sort by and to write: infinite where no bound is known."""
    return math.inf if epsilon is None else epsilon


async def _read(context: ConsoleContext, label: str) -> tuple[list[BudgetRow], PrivacyBook]:
    rows = await context.in_reader(context.ledger.privacy_budgets)
    return rows, await asyncio.to_thread(read_book, context.ledger, rows, labels=[label])


def _spenders(
    book: PrivacyBook, label: str, delta: float, after: str, limit: int
) -> views.SpenderList:
    names = sorted(_members(book, label))
    rest = [name for name in names if name > after]
    page = rest[:limit]
    return views.SpenderList(
        clients=[_spender(book, name, delta) for name in page],
        total=len(names),
        more=page[-1] if len(rest) > limit else None,
    )


async def one_spender(
    context: ConsoleContext, name: str, delta: float | None = None
) -> views.SpenderDetail:
    """A client with its runs.

    Raises:
        NotFoundError: no client has this name.
    """
    rows = await context.in_reader(context.ledger.privacy_budgets)
    book = await asyncio.to_thread(read_book, context.ledger, rows, client=name)
    if name not in book.facts.member_of and not await context.in_reader(
        context.ledger.look_up, [name]
    ):
        raise NotFoundError(f"There is no client {name[:80]!r}: see `fedloom client list`.")
    mine = book.facts.member_of.get(name, frozenset())
    at = delta or _delta(book, rows, "")
    view = await asyncio.to_thread(_spender, book, name, at)
    runs = [row for row in reversed(book.facts.runs) if row.id in mine]
    shown = await asyncio.to_thread(lambda: [_run(context, book, row, {}, at) for row in runs])
    return views.SpenderDetail(**view.model_dump(), in_runs=shown)


def budget_view(row: BudgetRow) -> views.PrivacyBudgetView:
    """A budget."""
    return views.PrivacyBudgetView.model_validate(asdict(row))


def _ledger(
    context: ConsoleContext,
    book: PrivacyBook,
    rows: Collection[BudgetRow],
    label: str,
    delta: float | None,
) -> views.PrivacyLedger:
    labels = sorted({"", label, *(row.label for row in rows)})
    sizes = _sizes(book)
    return views.PrivacyLedger(
        populations=[
            _population(book, rows, each, delta or _delta(book, rows, each)) for each in labels
        ],
        runs=[
            _run(context, book, row, sizes, delta or _delta(book, rows, ""))
            for row in reversed(book.facts.runs)
            if row.id in sizes or row.privacy is not None
        ],
    )


def _population(
    book: PrivacyBook, rows: Iterable[BudgetRow], label: str, delta: float
) -> views.PopulationView:
    budget = next((row for row in rows if row.label == label), None)
    names = _members(book, label) | (book.facts.labelled[label] if label else book.facts.drawable)
    groups = _groups(book, names)
    spent_most, spent = pure.worst(groups, partial(_spent, book, delta))
    drawable = _groups(book, names & book.facts.drawable)
    away = _groups(book, names - book.facts.drawable)
    _, here = pure.worst(drawable, partial(pure.reserved, book.runs, delta=delta))
    _, there = pure.worst(away, partial(pure.reserved, book.runs, delta=delta, drawable=False))
    reserved = max(here, there)
    over = 0
    if budget is not None:
        limit = pure.PrivacyBudget(label=label, epsilon=budget.epsilon, delta=delta)
        for part, is_drawable in ((drawable, True), (away, False)):
            covered = pure.Covered(budget=limit, groups=part)
            cost = partial(pure.reserved, book.runs, delta=delta, drawable=is_drawable)
            over += sum(len(part[group]) for group in pure.over_budget(covered, cost))
    return views.PopulationView(
        label=label,
        budget=None if budget is None else budget_view(budget),
        delta=delta,
        clients=len(names),
        spent=_finite(spent),
        reserved=_finite(reserved),
        left=None if budget is None else max(budget.epsilon - reserved, 0.0),
        worst=next(iter(groups.get(spent_most, ())), None) if spent else None,
        over=over,
        public=sum(1 for name in names if _public(book, name)),
        relation=_relation(book, frozenset().union(*groups)),
    )


def _groups(book: PrivacyBook, names: Iterable[str]) -> dict[pure.Runs, list[str]]:
    """Clients by the private runs that they were in."""
    found = dict[pure.Runs, list[str]]()
    private = frozenset(run.id for run in book.runs.values() if run.private)
    known = dict[pure.Runs, pure.Runs]()
    for name in sorted(names):
        mine = book.facts.member_of.get(name, frozenset())
        if mine not in known:
            known[mine] = mine & private
        found.setdefault(known[mine], []).append(name)
    return found


def _spender(book: PrivacyBook, name: str, delta: float) -> views.SpenderView:
    mine = book.facts.member_of.get(name, frozenset())
    drawable = name in book.facts.drawable
    public = _public(book, name)
    return views.SpenderView(
        client=name,
        delta=delta,
        spent=_finite(_spent(book, delta, mine)),
        reserved=_finite(pure.reserved(book.runs, mine, delta, drawable=drawable)),
        runs=len(mine) - public,
        public=public,
        relation=_relation(book, mine),
    )


def _run(
    context: ConsoleContext, book: PrivacyBook, row: RunRow, sizes: Mapping[str, int], delta: float
) -> views.PrivateRunView:
    run, bar = book.runs[row.id], context.runs.bars.get(row.id, pure.Bar())
    names = book.facts.member_of.keys() | book.facts.drawable
    return views.PrivateRunView(
        run=row.id,
        state=row.state,
        private=run.private,
        mechanism=str((row.privacy or {}).get("mechanism", "")),
        clients=sizes.get(row.id, 0),
        rounds=row.committed if run.spent is None else run.spent.rounds,
        planned=row.spec["rounds"] if run.planned is None else run.planned.rounds,
        epsilon=_finite(pure.epsilon_of([run.spent], delta)),
        barred=len(names) if bar.everyone else len(bar.names),
    )


def _sizes(book: PrivacyBook) -> dict[str, int]:
    """Number of clients in each run's population."""
    found = dict[str, int]()
    for runs in book.facts.member_of.values():
        for run in runs:
            found[run] = found.get(run, 0) + 1
    return found


def _members(book: PrivacyBook, label: str) -> frozenset[str]:
    members = frozenset(book.facts.member_of)
    return members & book.facts.labelled[label] if label else members


def _public(book: PrivacyBook, name: str) -> int:
    mine = book.facts.member_of.get(name, frozenset())
    return sum(1 for run in mine if not book.runs[run].private)


def _relation(book: PrivacyBook, runs: Iterable[str]) -> str:
    found = (book.runs[run].spent for run in runs)
    return common_relation(each for each in found if each is not None)


def _delta(book: PrivacyBook, rows: Iterable[BudgetRow], label: str) -> float:
    """Of a label's budget, else the smallest of the private runs."""
    found = [row.delta for row in rows if row.label == label]
    of_runs = (row.privacy for row in book.facts.runs)
    return min(found or [float(claim["delta"]) for claim in of_runs if claim], default=DELTA)


def _spent(book: PrivacyBook, delta: float, group: pure.Runs) -> float:
    return pure.spent(book.runs, group, delta)


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
