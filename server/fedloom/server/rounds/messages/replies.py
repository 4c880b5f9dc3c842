"""The replies of one round of messages, in place of a sum: each is kept for the `ServerApp`."""

import os
import shutil
from collections.abc import Iterable

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.trust.private_files import private_opener
from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.engine import Phase
from fedloom.server.ledger.rows import AcceptedRow, CohortRow
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.round_result import RoundMetrics
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.messages.board import ABANDONED, MessageBoard
from fedloom.server.rounds.round_sum import StoredResult

_ENDED = frozenset({Phase.DECLINED, Phase.FAILED, Phase.REFUSED})
"""Phases of a member that will not reply; the ledger does not store who is lost."""


class Replies:
    """The replies of one round; the methods are those of `RoundSum`.

    Invariant: a reply is durable, in a file of its own, before the app gets it.
    """

    def __init__(self, plan: RoundPlan, context: RoundsContext, board: MessageBoard) -> None:
        self._plan, self._context, self._board = plan, context, board
        self._ids = board.ids(plan.number)
        self._copying = BackgroundTasks()
        self._added: set[str] = set()
        self._error: Exception | None = None

    async def begin(self) -> None:
        """Store which messages the round sends, before it opens."""
        context, (run, number) = self._context, self._plan.key
        await context.in_ledger(context.ledger.assign_messages, run, number, self._ids.values())

    async def restore(self, accepted: Iterable[AcceptedRow]) -> None:
        """Copy the replies that were accepted before."""
        for update in accepted:
            self.add(update.client, update.file)

    def add(self, client: str, file: str, staleness: int = 0) -> None:  # noqa: ARG002 - none is
        """Copy an accepted reply, and give it to the app."""
        if client not in self._added:
            self._added.add(client)
            self._copying.start(self._copy(client, file))

    async def _copy(self, client: str, file: str) -> None:
        context, name = self._context, self._ids[client]
        try:
            await context.in_disk(self._copy_in_thread, client, file)
            await context.in_ledger(context.ledger.end_messages, self._plan.run, {name: ""})
        except Exception as error:  # noqa: BLE001 - `finish` raises it
            self._error = error
            self._added.discard(client)
            return
        self._board.end(name)

    def _copy_in_thread(self, client: str, file: str) -> None:
        spool, path = self._context.spool, self._board.reply_path(self._ids[client])
        if path.exists():
            return
        draft = path.with_suffix(".tmp")
        with (
            spool.path(file).open("rb") as source,
            open(draft, "wb", opener=private_opener) as copy,
        ):
            shutil.copyfileobj(source, copy)
            copy.truncate(spool.header(file).size_bytes)  # a footer follows the body
            copy.flush()
            os.fsync(copy.fileno())
        draft.replace(path)
        sync_directory(path.parent)

    async def finish(self, accepted: Iterable[AcceptedRow]) -> StoredResult:
        """Store the end of every message of the round.

        Raises:
            Exception: a reply could not be copied.
        """
        context, plan = self._context, self._plan
        self._error = None
        for update in accepted:
            self.add(update.client, update.file)
        await self._copying.settled()
        if self._error is not None:
            raise self._error
        members = await context.in_ledger(context.ledger.cohort, *plan.key)
        errors = {
            self._ids[each.client]: "" if each.client in self._added else _error(each)
            for each in members
        }
        await context.in_ledger(context.ledger.end_messages, plan.run, errors)
        for name, error in errors.items():
            self._board.end(name, error)
        return StoredResult(
            model=FileRef(digest=plan.model, size_bytes=0),
            note=plan.strategy_state,
            metrics=RoundMetrics(),
            participations=plan.participations,
        )

    async def abandon(self) -> None:
        """Store the end of messages that were not answered: the round has no result."""
        await self._copying.settled()
        context = self._context
        errors = {
            name: ABANDONED for client, name in self._ids.items() if client not in self._added
        }
        await context.in_ledger(context.ledger.end_messages, self._plan.run, errors)
        for name, error in errors.items():
            self._board.end(name, error)

    def clean(self, files: Iterable[str] | None = None) -> None:  # noqa: ARG002 - all of them
        """Delete the files of a round that is over; its unanswered messages end."""
        self._context.spool.release_round(*self._plan.key)
        for name in self._ids.values():
            self._board.end(name, ABANDONED)
        for file in self._plan.messages.values():
            self._context.models.path(file.digest).unlink(missing_ok=True)

    async def stop(self) -> None:
        """Stop; replies that are not copied yet stay in the spool."""
        self._copying.cancel()
        await self._copying.settled()


def _error(member: CohortRow) -> str:
    """Why a member did not reply."""
    if member.phase in _ENDED:
        return f"{member.phase}: {member.reason}"
    return f"{Phase.LOST}: the client did not answer within the grace period or the deadline"
