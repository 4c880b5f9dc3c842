"""A server that is a client of another one: it sums its devices' updates for its parent."""
