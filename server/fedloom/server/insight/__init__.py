"""Pure functions of the ledger's data: curves, pace, and alerts for operators."""
