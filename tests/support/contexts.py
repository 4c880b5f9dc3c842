"""The contexts of a server as one object: a test reaches each part by its name."""

from dataclasses import fields


class Contexts:
    """Parts of a `ServerContext` from any context; an assignment changes all contexts.

    Args:
        server: the contexts of its packages.
        more: other contexts.
    """

    def __init__(self, server, *more):
        every = (server.fleet, server.rounds, server.access, server, *more)
        object.__setattr__(self, "_all", every)

    def __getattr__(self, name):
        for each in self._all:
            if hasattr(each, name):
                return getattr(each, name)
        raise AttributeError(name)

    def __setattr__(self, name, value):
        for each in self._all:
            if name in {field.name for field in fields(each)}:
                setattr(each, name, value)


def rows_of(ledger, query):
    """The rows of a query as dictionaries, for any table."""
    with ledger._engine.connect() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]
