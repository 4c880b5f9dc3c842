"""Messages of Flower `ServerApp`s: each is sent in one round, and ends with a reply or an error."""

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from fedloom.server.ledger.rows import MessageRow, values
from fedloom.server.ledger.store import Store
from fedloom.server.ledger.tables import messages


class Messages(Store):
    """Methods about messages."""

    def add_messages(self, rows: Iterable[MessageRow]) -> None:
        """Store new messages."""
        if found := [values(row) for row in rows]:
            with self._write() as connection:
                connection.execute(messages.insert(), found)

    def list_messages(self, run: str) -> list[MessageRow]:
        """The messages of a run in the order in which they were sent."""
        query = sa.select(messages).where(messages.c.run == run)
        return self._rows(query.order_by(messages.c.position), MessageRow)

    def assign_messages(self, run: str, number: int, ids: Iterable[str]) -> None:
        """Store which round sends these messages. A repeat changes nothing."""
        with self._write() as connection:
            for name in ids:  # one statement with all would have too many variables
                its = messages.update().where(messages.c.run == run, messages.c.id == name)
                connection.execute(its.values(round=number))

    def end_messages(self, run: str, errors: Mapping[str, str]) -> None:
        """Store the end of messages: their errors by id, empty for a reply."""
        with self._write() as connection:
            for name, error in errors.items():
                its = messages.update().where(messages.c.run == run, messages.c.id == name)
                connection.execute(its.values(answered=not error, error=error))

    def forget_messages(self, run: str) -> None:
        """Delete the messages of a run that has ended."""
        self._change(messages.delete().where(messages.c.run == run))
