"""The ledger's part of the privacy ledger: who was in which run's population, and budgets."""
