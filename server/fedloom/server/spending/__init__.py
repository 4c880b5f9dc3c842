"""The privacy ledger: what every client has spent over all runs, and the budgets that limit it."""
