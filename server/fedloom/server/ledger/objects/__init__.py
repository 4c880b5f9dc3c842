"""The objects of the store that count: those that a row of the ledger names."""
