"""One masked task from its trained update to the end of its session.

The server calls the steps; this device answers each, and repeats its last answer after every
reconnection. Secrets are in the member's memory alone.

    update on disk ── ready ──► roster ──► shares of peers ──► body masked and stored
    ──► marker synced ──► plain update removed ──► upload ──► agree ──► reveal ──► done

Invariants: no byte of a masked body leaves before the marker is synced and the plain update is off
the disk; nothing is revealed for a session that was given up, nor after a restart.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fedloom.client.masking.outbox import MaskedOutbox
from fedloom.client.masking.ready_list import ReadyListFile
from fedloom.client.masking.record import MaskedRecord, MaskedUpdate
from fedloom.client.masking.sentences import masked_account
from fedloom.client.masking.update_plan import UpdatePlan, integers
from fedloom.client.state.store import ClientStore
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, FedloomError, Refusal, printable
from fedloom.protocol.masking import (
    Identify,
    Member,
    MemberPhase,
    SealedShare,
    Survivors,
    from_bitmap,
    to_bitmap,
)
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

_ONCE: Final = frozenset({"ready_list", "shares", "survivors", "signatures"})
CLOSING_S: Final = 60.0
"""Time after a session was given up in which the proof that it is dead may come."""


class Ending(Enum):
    """How a session ended for this device."""

    DONE = "done"
    CLOSED = "closed"
    GIVEN_UP = "given up"
    LATE = "late"


class NotMaskedError(Exception):
    """This device takes no part in the session, and nothing of the update has left it."""


class _Event(Enum):
    RECONNECTED = 1
    UPLOADED = 2


_Item = fleet_pb2.MaskingStep | _Event | FedloomError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """What a session needs of the agent.

    Attributes:
        send: a message on the stream of offers; it may be lost.
        download: a file into a sink; it is tried again until it is there.
        upload: a masked body; likewise.
        identify: verifies an advert's chain of certificates, now.
        server: host:port, for the journal.
    """

    send: Callable[[fleet_pb2.MaskingMessage], Awaitable[None]]
    download: Callable[[fleet_pb2.ModelRef, ReadyListFile], Awaitable[None]]
    upload: Callable[[fleet_pb2.UpdateHeader, MaskedOutbox], Awaitable[None]]
    identify: Callable[[], Identify]
    server: str


class MaskedSession:
    """One masked task whose update is trained and checked.

    Args:
        member: of the session, with fresh secrets.
        offer: of the task.
        update: what is masked.
        plan: of the update.
        header: of the update before it is masked.
        store: of the client.
        record: of masked updates.
        repeats: of the device's owner.
        line: to the server.
    """

    def __init__(
        self,
        member: Member,
        offer: fleet_pb2.Task,
        update: MaskedUpdate,
        plan: UpdatePlan,
        header: fleet_pb2.UpdateHeader,
        *,
        store: ClientStore,
        record: MaskedRecord,
        repeats: int,
        line: SessionLine,
    ) -> None:
        self._member, self._offer, self._update = member, offer, update
        self._plan, self._header, self._repeats = plan, header, repeats
        self._store, self._record, self._line = store, record, line
        self._outbox = MaskedOutbox(store, offer.key)
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue()
        self._last: list[fleet_pb2.MaskingMessage] = []
        self._uploading: asyncio.Task[None] | None = None
        self._ends_at: float | None = None
        self._given_up = False
        self._shared: frozenset[int] = frozenset()
        self._survivors: Survivors | None = None
        self.body_left = False
        """Whether a byte of the masked body may have left."""

    # ---- from the agent ------------------------------------------------------------------------

    def take(self, step: fleet_pb2.MaskingStep) -> None:
        """Take a step of the server; it is worked on in its turn."""
        self._inbox.put_nowait(step)

    def reconnected(self) -> None:
        """Repeat the last message: it may have been lost with the connection."""
        self._inbox.put_nowait(_Event.RECONNECTED)

    async def settled(self) -> None:
        """Wait until all steps that were taken so far are answered."""
        await self._inbox.join()

    async def run(self) -> Ending:
        """Take part until the session ends; on return, and when cancelled, all secrets are wiped.

        Raises:
            NotMaskedError: this device does not take part; nothing has left.
            Refusal: the server refused the masked body for good, and the session ended later.
        """
        try:
            crossing("client.masking.ready")
            await self._say(ready=self._member.advert.to_bytes())
            while True:
                try:
                    async with asyncio.timeout_at(self._ends_at):
                        item = await self._inbox.get()
                except TimeoutError:
                    return Ending.GIVEN_UP if self._given_up else Ending.LATE
                try:
                    ending = await self._handled(item)
                finally:
                    self._inbox.task_done()
                if ending is not None:
                    return ending
        finally:
            self._member.end("This device has left the session.")
            self._last.clear()
            self._stop_upload()

    # ---- steps ---------------------------------------------------------------------------------

    async def _handled(self, item: _Item) -> Ending | None:
        match item:
            case _Event.RECONNECTED:
                for message in self._last:
                    await self._line.send(message)
            case _Event.UPLOADED:
                crossing("client.masking.body")
                self._note("accepted", f"The server has the masked update of {self._of}.")
            case FedloomError():
                what = f"the masked update of {self._of}"
                self._note("rejected", f"The server rejected {what}: {item}")
                self._member.end(f"The server rejected the body: {item}")
            case fleet_pb2.MaskingStep():
                return await self._stepped(item)
        return None

    async def _stepped(self, step: fleet_pb2.MaskingStep) -> Ending | None:
        kind, mine = step.WhichOneof("kind"), self._offer.masking.attempt
        if step.attempt != mine:
            got = f"Expected a step of try {mine}, got one of try {step.attempt}."
            self._refused(f"{kind}", Refusal(Code.STALE_ROUND, got))
            return None
        try:
            return await self._answered(kind, step)
        except (FedloomError, ValueError) as error:
            if kind in _ONCE:  # of what the server may say once, the first counts
                self._member.end(f"{error}")
            self._refused(kind or "an unknown step", error)
        return None

    async def _answered(self, kind: str | None, step: fleet_pb2.MaskingStep) -> Ending | None:
        match kind:
            case "ready_list":
                await self._join(step.ready_list)
            case "shares":
                await self._mask(step.shares)
            case "survivors":
                await self._agree(step.survivors)
            case "signatures":
                await self._reveal(step.signatures)
            case "abandoned":
                return await self._abandoned(printable(step.abandoned))
            case "closed":
                return await self._closed(step.closed)
            case "done":
                return Ending.DONE if self.body_left else Ending.GIVEN_UP
        return None

    async def _join(self, listed: fleet_pb2.ModelRef) -> None:
        file = ReadyListFile(self._store, self._offer.key)
        await self._line.download(listed, file)
        ready, identify = await asyncio.to_thread(file.read), self._line.identify()
        shares = await asyncio.to_thread(self._member.join, ready, identify)
        if self._ends_at is None:
            session_s = self._offer.masking.session_s
            self._ends_at = asyncio.get_running_loop().time() + session_s
        await self._say(shares=shares.to_bytes())

    async def _mask(self, forwarded: fleet_pb2.SharesForMember) -> None:
        member, size = self._member, self._size
        shared = from_bitmap(forwarded.shared, size)
        sealed = {i: SealedShare.from_bytes(raw) for i, raw in forwarded.shares.items()}
        complaints = await asyncio.to_thread(member.receive, shared, sealed)
        self._shared = shared
        self._last.clear()
        if complaints:
            await self._say(complaint=to_bitmap(complaints, size))
        if member.phase is not MemberPhase.RECEIVED:
            return  # the same again
        self.body_left = True  # from here on, no withdrawal ends the session
        try:
            header = await asyncio.to_thread(self._masked)
        except (OSError, FedloomError, ValueError) as error:
            self.body_left = False
            raise self._nothing_left(f"The update could not be masked: {error}") from error
        crossing("client.masking.marked")
        self._uploading = asyncio.ensure_future(self._line.upload(header, self._outbox))
        self._uploading.add_done_callback(self._uploaded)

    def _masked(self) -> fleet_pb2.UpdateHeader:
        """Mask the update; then it is on the disk masked and marked, and in no other form."""
        member, outbox = self._member, self._outbox
        roster = member.roster
        assert roster is not None
        body = integers(self._plan, self._header, outbox.plain, roster.size)
        member.mask(body, self._plan.layout)
        header = outbox.store(self._offer, self._header.client, body, roster.sid, self._plan.slices)
        reports = (self._header.training, self._header.evaluation)
        measured = {name for each in reports for name in each.values}
        text, facts = masked_account(
            header, measured & set(self._plan.words.bounds), roster,
            self._line.server, self._update.federation,
        )  # fmt: skip
        self._record.leaves(self._update, roster.sid, self._repeats)
        crossing("client.masking.left")
        self._store.journal.note("sent", text, **facts)
        outbox.remove_plain()
        return header

    def _uploaded(self, upload: "asyncio.Task[None]") -> None:
        if upload.cancelled():
            return
        error = upload.exception()
        if error is None:
            self._inbox.put_nowait(_Event.UPLOADED)
        elif isinstance(error, FedloomError):
            self._inbox.put_nowait(error)
        else:
            log.error("the upload of %s failed", self._of, exc_info=error)
            self._member.end(f"The upload failed: {type(error).__name__}.")

    async def _agree(self, survivors: bytes) -> None:
        masked = from_bitmap(survivors, self._size)
        signature = await asyncio.to_thread(self._member.agree, masked)
        self._survivors = Survivors(shared=self._shared, masked=masked)
        crossing("client.masking.agree")
        await self._say(agreement=signature)

    async def _reveal(self, signatures: fleet_pb2.Signatures) -> None:
        member = self._member
        revealed = await asyncio.to_thread(member.reveal, dict(signatures.by_member))
        crossing("client.masking.reveal")
        assert self._survivors is not None
        await self._say(reveal=revealed.to_bytes(self._survivors))

    async def _abandoned(self, reason: str) -> Ending | None:
        if self._member.roster is None:
            self._note("withdrawn", f"The server gave {self._of} up: {reason}")
            return Ending.GIVEN_UP
        if self.body_left:
            now = asyncio.get_running_loop().time()
            self._ends_at = min(self._ends_at or now, now + CLOSING_S)
        signature = self._member.close()
        self._stop_upload()
        if not self._given_up:
            self._given_up = True
            self._note(
                "withdrawn",
                f"The server gave the masking session of {self._of} up: {reason} This device has "
                "wiped its secrets, and reveals nothing of it.",
            )
        self._last.clear()
        await self._say(closing=signature)
        return None if self.body_left else Ending.GIVEN_UP

    async def _closed(self, proof: fleet_pb2.Signatures) -> Ending:
        self._member.check_closing_proof(dict(proof.by_member))
        roster = self._member.roster
        assert roster is not None
        self._member.end("The session was proved dead.")
        if self.body_left:
            await asyncio.to_thread(self._record.closed, self._update, roster.sid)
            self._outbox.remove_masked()
            self.body_left = False
        self._note(
            "withdrawn",
            f"The masking session of {self._of} can never be read, as at least "
            f"{roster.threshold} members signed: this device's update counts as not sent.",
        )
        return Ending.CLOSED

    # ---- common --------------------------------------------------------------------------------

    @property
    def _of(self) -> str:
        return f"round {self._offer.key.round} of {self._offer.key.run}"

    @property
    def _size(self) -> int:
        """Members of the session."""
        if self._member.roster is None:
            raise Refusal(
                Code.MASKING_REFUSED, "Expected the list of ready devices first, got a later step."
            )
        return self._member.roster.size

    async def _say(self, **kind: bytes) -> None:
        """Send a message, and keep it to be repeated."""
        message = fleet_pb2.MaskingMessage(
            task=self._offer.key, attempt=self._offer.masking.attempt, **kind
        )
        self._last = [message]
        await self._line.send(message)

    def _refused(self, what: str, error: Exception) -> None:
        """Journal a step that this device refuses; without a session, it takes no part."""
        log.warning("%s: refused %s of a masking session: %s", self._of, what, error)
        self._note("refused", f"Refused {what} of the masking session of {self._of}: {error}")
        if self._member.phase is not MemberPhase.ENDED:
            return
        if not self._given_up:
            self._last.clear()
            self._stop_upload()
        if self._member.roster is None:
            raise NotMaskedError(f"{error}")

    def _nothing_left(self, why: str) -> NotMaskedError:
        self._member.end(why)
        self._outbox.remove_masked()
        return NotMaskedError(why)

    def _stop_upload(self) -> None:
        if self._uploading is not None:
            self._uploading.cancel()

    def _note(self, event: str, text: str) -> None:
        self._store.journal.note(
            event,
            printable(text, 1000),
            run=self._offer.key.run,
            round=self._offer.key.round,
            server=self._line.server,
        )
