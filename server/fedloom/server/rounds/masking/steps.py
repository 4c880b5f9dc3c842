"""What the server asks of the members of a session, made from what the ledger holds.

Invariant: a step says only what is stored, so a repeat after a restart is the same.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fedloom.protocol.masking import to_bitmap
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import MaskingSession, SessionState
from fedloom.server.ledger.masking.sessions import AGREEMENT, CLOSING, SHARES
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.masking.sessions import OpenSession

Step = fleet_pb2.ServerMessage


class Steps:
    """Makes the steps of one round's sessions.

    Args:
        context: with the ledger.
        task: run and round.
        attempt: of the round.
    """

    def __init__(self, context: RoundsContext, task: fleet_pb2.TaskKey, attempt: int) -> None:
        self._context = context
        self._task = task
        self._attempt = attempt

    def _step(self, **kind: Any) -> Step:
        step = fleet_pb2.MaskingStep(task=self._task, attempt=self._attempt, **kind)
        return fleet_pb2.ServerMessage(masking=step)

    def ready_list(self, of: OpenSession) -> Step:
        """Share your secrets with those of this list that are in your session."""
        return self._step(ready_list=of.ready.ref)

    async def shares(
        self, of: OpenSession, session: MaskingSession, to: Iterable[str]
    ) -> Mapping[str, Step]:
        """Mask against those that shared: for each member of U2 the shares that are for it."""
        ledger = self._context.ledger
        stored = await self._context.in_ledger(ledger.session_messages, of.at, SHARES)
        dealt = of.read_shares({c: raw for c, raw in stored.items() if c in session.shared})
        shared = of.indices(session.shared)
        bitmap, steps = to_bitmap(shared, of.roster.size), {}
        for client in to:
            own = of.index(client)
            its = {i: dealt[i].shares[own].to_bytes() for i in shared - {own}}
            message = fleet_pb2.SharesForMember(shared=bitmap, shares=its)
            steps[client] = self._step(shares=message)
        return steps

    def survivors(self, of: OpenSession, session: MaskingSession) -> Step:
        """Sign that these survive."""
        return self._step(survivors=to_bitmap(of.indices(session.masked), of.roster.size))

    async def signatures(self, of: OpenSession, session: MaskingSession) -> Step:
        """Reveal: these signed the survivors."""
        ledger = self._context.ledger
        stored = await self._context.in_ledger(ledger.session_messages, of.at, AGREEMENT)
        signed = of.by_index(stored, session.signed)
        return self._step(signatures=fleet_pb2.Signatures(by_member=signed))

    def abandoned(self, session: MaskingSession) -> Step:
        """Give the session up, and sign that."""
        return self._step(abandoned=session.reason)

    async def closed(self, of: OpenSession, session: MaskingSession) -> Step:
        """The proof that the session can never be unmasked."""
        ledger = self._context.ledger
        stored = await self._context.in_ledger(ledger.session_messages, of.at, CLOSING)
        closed = of.by_index(stored, session.closed)
        return self._step(closed=fleet_pb2.Signatures(by_member=closed))

    def done(self) -> Step:
        """The sum is known."""
        return self._step(done=True)

    async def last(self, of: OpenSession, session: MaskingSession, client: str) -> list[Step]:
        """What the session asks of a member now, for one that reconnected."""
        match of.state:
            case SessionState.SHARING:
                steps = [self.ready_list(of)]
            case SessionState.MASKING | SessionState.FROZEN if client in session.shared:
                steps = list((await self.shares(of, session, [client])).values())
            case SessionState.REVEALING if client in session.signed:
                steps = [await self.signatures(of, session)]
            case SessionState.AGREEING | SessionState.REVEALING if client in session.masked:
                steps = [self.survivors(of, session)]
            case SessionState.DONE if client in session.masked:
                steps = [self.done()]
            case SessionState.ABANDONED:
                steps = [self.abandoned(session)]
                if len(session.closed) >= session.threshold:
                    steps.append(await self.closed(of, session))
            case _:
                steps = []
        return steps
