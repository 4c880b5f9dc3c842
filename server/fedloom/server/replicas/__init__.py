"""Several servers of one ledger and one object store: one drives, the others are ready."""
