"""Privacy budgets: the most that a client may spend over all runs."""

import time
from dataclasses import dataclass

import sqlalchemy as sa

from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import privacy_budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """A budget.

    Attributes:
        label: of the clients that it covers, name or name=value; empty for all clients.
        epsilon: most that each of them may spend over all runs.
        delta: at which it is computed.
        allow_public: whether runs without [privacy] may draw them.
        set_at: seconds since the epoch.
        set_by: name of the administrator.
    """

    label: str
    epsilon: float
    delta: float
    allow_public: bool
    set_at: float
    set_by: str


class PrivacyBudgets(Store):
    """Methods about privacy budgets."""

    def privacy_budgets(self) -> list[BudgetRow]:
        """All budgets, that of all clients first."""
        query = sa.select(privacy_budgets).order_by(privacy_budgets.c.label)
        return self._rows(query, BudgetRow)

    def set_privacy_budget(
        self, label: str, epsilon: float, delta: float, *, allow_public: bool, who: str
    ) -> None:
        """Set the budget of a label, or of all clients if it is empty."""
        its = privacy_budgets.c.label == label
        values = {
            "label": label, "epsilon": epsilon, "delta": delta, "allow_public": allow_public,
            "set_at": time.time(), "set_by": who,
        }  # fmt: skip
        with self._write() as connection:
            connection.execute(privacy_budgets.delete().where(its))
            connection.execute(privacy_budgets.insert().values(values))

    def remove_privacy_budget(self, label: str) -> bool:
        """Remove a budget; False if there is none."""
        return self._change(privacy_budgets.delete().where(privacy_budgets.c.label == label)) == 1
