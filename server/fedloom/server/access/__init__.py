"""Who may do what on a server, how they prove it, and the record of what they did."""

import fedloom.server.ledger  # noqa: F401 - the ledger loads these tables, and not the reverse
