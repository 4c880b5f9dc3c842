"""Takes the messages of sessions' members: each is checked, then stored, then told to the engine.

Invariants: what is stored passed every check that the server can make. A message is stored once: a
repeat changes nothing, and another content for its slot is refused.
"""

from collections.abc import Mapping

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import RevealMessage, Survivors, from_bitmap, misfits
from fedloom.protocol.masking.statements import MAX_SIGNATURE_BYTES
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import MaskingSession, session_events
from fedloom.server.ledger.masking.blames import FALSE_REVEAL
from fedloom.server.ledger.masking.sessions import AGREEMENT, CLOSING, COMPLAINT, REVEAL, SHARES
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.masking.sessions import OpenSession
from fedloom.server.rounds.masking.unmask import Exchanged

Event = session_events.MemberEvent

_EVENTS: Mapping[str, type[Event]] = {
    SHARES: session_events.SharesStored,
    AGREEMENT: session_events.AgreementStored,
    CLOSING: session_events.ClosingStored,
}
"""What the engine is told of a phase, beside `RevealStored`; nothing of a complaint."""


class Exchange:
    """Takes and reads the messages of members."""

    def __init__(self, context: RoundsContext) -> None:
        self._context = context

    async def take(
        self, of: OpenSession, session: MaskingSession, client: str,
        message: fleet_pb2.MaskingMessage,
    ) -> Event | None:  # fmt: skip
        """Check and store a message of a member; returns the event for the engine, if any.

        Raises:
            Refusal: it is not valid, too late, or not the one that was stored before.
        """
        if client not in of.roster.names:
            raise Refusal(Code.NOT_IN_COHORT, "Expected a member of the session, got another.")
        phase, complete = message.WhichOneof("kind"), True
        match phase:
            case "shares":
                content = message.shares
                of.shares(client, content)
            case "complaint":
                content = message.complaint
                of.complaint(client, content, session.shared)
            case "agreement":
                content = _signature(message.agreement)
                signed = {of.index(client): content}
                of.roster.check_agreement(of.survivors(session), signed, quorum=False)
            case "closing":
                content = _signature(message.closing)
                of.roster.check_closed({of.index(client): content}, quorum=False)
            case "reveal":
                content = message.reveal
                complete = await self._check_reveal(of, session, client, content)
            case _:
                raise Refusal(Code.MALFORMED, "Expected a message of a masking session, got none.")
        context = self._context
        await context.in_ledger(context.ledger.store_session_message, of.at, phase, client, content)
        crossing("masking.stored")
        if phase == REVEAL:
            return session_events.RevealStored(client, complete)
        return _EVENTS[phase](client) if phase in _EVENTS else None

    async def _check_reveal(
        self, of: OpenSession, session: MaskingSession, client: str, content: bytes
    ) -> bool:
        """Check the shares of a member; returns whether it never complained about one.

        Of a session that is over, the shares to compare with are deleted, perhaps while they are
        read here. Nothing is checked then: the ledger takes a repeat of what was stored, and no
        other reveal.
        """
        complaint: frozenset[int] = frozenset()
        if not session.state.is_over:
            await self._read_shares(of, session)
            complaint = (await self._complaints(of)).get(of.index(client), complaint)
        if session.state.is_over:
            return True
        survivors = of.survivors(session)
        reveal = RevealMessage.from_bytes(content, survivors)
        wrong = misfits(
            of.roster, survivors, of.dealt, of.index(client), reveal, complaint=complaint
        )
        if wrong:
            names = ", ".join(of.roster.names[i] for i in sorted(wrong))
            ledger = self._context.ledger
            await self._context.in_ledger(ledger.blame, of.at, client, FALSE_REVEAL)
            raise Refusal(
                Code.MASKING_REFUSED,
                f"Expected shares as they were dealt, got others of the secrets of {names}.",
            )
        return not complaint

    async def _read_shares(self, of: OpenSession, session: MaskingSession) -> None:
        if len(of.dealt) < len(session.shared):
            stored = await self._read(of, SHARES)
            of.read_shares({c: raw for c, raw in stored.items() if c in session.shared})

    async def _complaints(self, of: OpenSession) -> Mapping[int, frozenset[int]]:
        stored = await self._read(of, COMPLAINT)
        return {of.index(c): from_bitmap(raw, of.roster.size) for c, raw in stored.items()}

    async def exchanged(self, of: OpenSession, session: MaskingSession) -> Exchanged:
        """All that the sum of a session is computed from, but the bodies."""
        survivors: Survivors = of.survivors(session)
        await self._read_shares(of, session)
        stored = of.by_index(await self._read(of, REVEAL), session.revealed)
        return Exchanged(
            roster=of.roster,
            survivors=survivors,
            dealt=dict(of.dealt),
            reveals={i: RevealMessage.from_bytes(raw, survivors) for i, raw in stored.items()},
            complaints=await self._complaints(of),
        )

    async def _read(self, of: OpenSession, phase: str) -> dict[str, bytes]:
        context = self._context
        return await context.in_ledger(context.ledger.session_messages, of.at, phase)


def _signature(raw: bytes) -> bytes:
    if not 0 < len(raw) <= MAX_SIGNATURE_BYTES:
        raise Refusal(Code.BAD_SIGNATURE, f"Expected a signature, got {len(raw)} bytes.")
    return raw
