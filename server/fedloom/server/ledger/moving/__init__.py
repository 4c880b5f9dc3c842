"""A ledger as a whole: its copy in another database."""
