"""What several servers of one ledger share: who drives, and their keys."""
