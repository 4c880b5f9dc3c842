"""Actions on privacy budgets: set and remove."""

from fedloom.protocol.errors import UsageError
from fedloom.server.access.principal import Principal
from fedloom.server.ledger.privacy.budgets import BudgetRow
from fedloom.server.planning.privacy_budget import counted
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.privacy import budget_view, privacy_ledger
from fedloom.server.queries.privacy_views import NewPrivacyBudget, PrivacyBudgetActed


async def set_budget(
    context: ConsoleContext, principal: Principal, wish: NewPrivacyBudget, *, preview: bool
) -> PrivacyBudgetActed:
    """Set the budget of a label, or of all clients.

    Raises:
        UsageError: the label has no name.
    """
    label = wish.label.strip()
    if label.startswith("="):
        raise UsageError(f"Expected a label as name or name=value, got {label[:80]!r}.")
    before = await _budget(context, label)
    same = before is not None and _values(before) == (wish.epsilon, wish.delta, wish.allow_public)
    words = await _words(context, wish, label)
    if same:
        words = f"{_whose(label)} has this privacy budget already: nothing changes."
    if not (preview or same):
        detail = wish.model_dump(exclude={"label"})
        await context.audit(principal, "privacy-budget.set", label or "all clients", detail)
        await context.in_ledger(
            lambda: context.ledger.set_privacy_budget(
                label, wish.epsilon, wish.delta, allow_public=wish.allow_public, who=principal.name
            )
        )
        await context.runs.apply_budgets()
    return await _acted(context, label, words, changed=not (preview or same))


async def remove_budget(
    context: ConsoleContext, principal: Principal, label: str, *, preview: bool
) -> PrivacyBudgetActed:
    """Remove a budget; what clients have spent stays in the ledger."""
    label = label.strip()
    there = await _budget(context, label) is not None
    words = f"{_whose(label)} has no privacy budget: nothing changes."
    if there:
        words = (
            f"{_whose(label)} has no privacy budget any more: runs are not refused for what these "
            "clients have spent. The privacy ledger keeps it."
        )
    if there and not preview:
        await context.audit(principal, "privacy-budget.remove", label or "all clients")
        await context.in_ledger(context.ledger.remove_privacy_budget, label)
        await context.runs.apply_budgets()
    return await _acted(context, label, words, changed=there and not preview)


async def _acted(
    context: ConsoleContext, label: str, words: str, *, changed: bool
) -> PrivacyBudgetActed:
    now = await _budget(context, label)
    return PrivacyBudgetActed(
        budget=None if now is None else budget_view(now), changed=changed, consequence=words
    )


async def _budget(context: ConsoleContext, label: str) -> BudgetRow | None:
    rows = await context.in_ledger(context.ledger.privacy_budgets)
    return next((row for row in rows if row.label == label), None)


def _values(row: BudgetRow) -> tuple[float, float, bool]:
    return row.epsilon, row.delta, row.allow_public


async def _words(context: ConsoleContext, wish: NewPrivacyBudget, label: str) -> str:
    """What setting a budget does, and for whom."""
    found = await privacy_ledger(context, label=label, delta=wish.delta)
    now = next(each for each in found.populations if each.label == label)
    first = (
        f"Each of {counted(now.clients)} may spend epsilon {wish.epsilon:g} at delta "
        f"{wish.delta:g} over all runs; further runs are refused. So far the largest is "
        f"{_figure(now.spent)}, with active runs {_figure(now.reserved)}."
    )
    parts = [first]
    if now.reserved is None or now.reserved > wish.epsilon:
        parts.append("Active runs no longer draw clients for which that is too much.")
    public = [run.run for run in found.runs if not run.private and run.state in _ACTIVE]
    if wish.allow_public:
        parts.append("Runs without [privacy] may draw them; what those reveal is not counted.")
    else:
        parts.append("Runs without [privacy] that could draw them are refused.")
        if public:
            parts.append(f"Active ones no longer draw them: {', '.join(public)}.")
    if now.public:
        parts.append(
            f"{counted(now.public)} of them took part in runs without [privacy], which is not "
            "counted."
        )
    only_own = await context.in_reader(context.ledger.num_only_own, label) if label else 0
    if only_own:
        parts.append(
            f"Not covered, since only the device itself set the label: {counted(only_own)}."
        )
    return " ".join(parts)


_ACTIVE = ("running", "paused", "queued")


def _whose(label: str) -> str:
    return f"The label {label}" if label else "The federation"


def _figure(epsilon: float | None) -> str:
    return "not bounded" if epsilon is None else f"{epsilon:.4g}"
