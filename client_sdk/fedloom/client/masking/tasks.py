"""The masked tasks of an agent: from a trained update to the end of its session."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fedloom.client.masking.offers import floors_of
from fedloom.client.masking.outbox import MaskedOutbox
from fedloom.client.masking.ready_list import ReadyListFile
from fedloom.client.masking.record import MaskedRecord, MaskedUpdate
from fedloom.client.masking.session import Ending, MaskedSession, SessionLine
from fedloom.client.masking.update_plan import UpdatePlan, fitted, plan_of
from fedloom.client.network import transfer
from fedloom.client.network.connection import Connection
from fedloom.client.owner.policy import Policy
from fedloom.client.state.store import ClientStore
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.masking import Member, RoundTerms, signer, terms_of
from fedloom.protocol.masking.certificates import ChainVerifier
from fedloom.protocol.task_message import from_message
from fedloom.protocol.trust import identity
from fedloom.protocol.v1 import fleet_pb2

TaskId = tuple[str, int]
Upload = Callable[[fleet_pb2.UpdateHeader, MaskedOutbox], Awaitable[None]]


class MaskedTasks:
    """Runs masked tasks.

    Args:
        connection: to the server.
        store: of the client.
        upload: sends a masked body; tried again until the server has it or refuses it.
    """

    def __init__(self, connection: Connection, store: ClientStore, upload: Upload) -> None:
        self._connection, self._store, self._upload = connection, store, upload
        self._record = MaskedRecord(store.directory)
        self._sessions: dict[TaskId, MaskedSession] = {}

    # ---- before and while training ---------------------------------------------------------------

    def unsent(self, offer: fleet_pb2.Task) -> fleet_pb2.UpdateHeader | None:
        """The update of a task that was trained before a restart, if it is whole."""
        outbox = MaskedOutbox(self._store, offer.key)
        return self._store.unsent(offer) if outbox.is_of(offer) else None

    def trains(self, offer: fleet_pb2.Task) -> None:
        """Note, before the training, which task the update will be of."""
        outbox = MaskedOutbox(self._store, offer.key)
        outbox.remove_plain()
        outbox.remove_masked()
        self._record.trains(MaskedUpdate.of(offer, self._federation))
        outbox.note_task(offer)

    # ---- sessions ------------------------------------------------------------------------------

    async def run(
        self, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, policy: Policy
    ) -> Ending:
        """Check a trained update, and take part in its session.

        Raises:
            UnfitUpdateError: a server would refuse the update.
            NotMaskedError: this device takes no part; nothing has left.
            FedloomError: likewise.
        """
        key, update = _key(offer.key), MaskedUpdate.of(offer, self._federation)
        model = self._store.model_path(offer.model.digest)
        terms = terms_of(offer, update.federation)
        manifest = await asyncio.to_thread(read_manifest, model)
        plan = plan_of(from_message(offer), manifest, terms.width(self._connection.name))
        plain = MaskedOutbox(self._store, offer.key).plain
        plan = await asyncio.to_thread(fitted, plan, header, plain)
        member = await asyncio.to_thread(self._member, terms, plan, update, policy)
        session = MaskedSession(
            member,
            offer,
            update,
            plan,
            header,
            store=self._store,
            record=self._record,
            repeats=policy.masking.repeats,
            line=self._line(),
        )
        self._sessions[key] = session
        try:
            ending = await session.run()
        finally:
            del self._sessions[key]
        if ending in (Ending.CLOSED, Ending.GIVEN_UP):
            MaskedOutbox(self._store, offer.key).remove_masked()
        return ending

    def take(self, step: fleet_pb2.MaskingStep) -> bool:
        """Pass a step on to its session; whether there is one."""
        session = self._sessions.get(_key(step.task))
        if session is None:
            return False
        session.take(step)
        return True

    def reconnected(self) -> None:
        """Have every session repeat its last message."""
        for session in self._sessions.values():
            session.reconnected()

    def body_left(self, key: TaskId) -> bool:
        """Whether the masked body of a running task may have left."""
        return key in self._sessions and self._sessions[key].body_left

    async def settled(self, key: TaskId, timeout_s: float) -> None:
        """Wait until the steps that a session has taken are answered."""
        session = self._sessions.get(key)
        if session is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(session.settled(), timeout_s)

    async def finish_upload(self, step: fleet_pb2.MaskingStep) -> bool:
        """Send what is left of a masked body after a restart; whether there was one.

        The session's secrets went with the former process: this device signs and reveals nothing.

        Raises:
            FedloomError: the server refuses the body, or the record is damaged.
        """
        outbox = MaskedOutbox(self._store, step.task)
        header = await asyncio.to_thread(outbox.unsent)
        if header is None or not self._record.has_left(
            self._federation, step.task.run, header.masking_session
        ):
            return False
        await asyncio.to_thread(outbox.remove_plain)  # the kill may have come before
        await self._upload(header, outbox)
        return True

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def _federation(self) -> str:
        trust = self._connection.trust
        assert trust is not None, "masked tasks are declined without TLS"
        return trust.federation

    def _member(
        self, terms: RoundTerms, plan: UpdatePlan, update: MaskedUpdate, policy: Policy
    ) -> Member:
        """A member with fresh secrets, whose try is on the disk."""
        pem, _ = self._store.identity()
        return Member(
            terms,
            name=self._connection.name,
            serial=identity.peer_from_pem(pem).serial,
            sign=signer(identity.key_from_pem(pem)),
            coverage=plan.coverage,
            floors=floors_of(policy.masking),
            last_attempt=self._record.begin(update),
            chain=identity.chain_pem(pem),
        )

    def _line(self) -> SessionLine:
        async def send(message: fleet_pb2.MaskingMessage) -> None:
            await self._connection.send(fleet_pb2.ClientMessage(masking=message))

        return SessionLine(
            send=send,
            download=self._download,
            upload=self._upload,
            identify=self._verifier,
            server=self._connection.server,
        )

    def _verifier(self) -> ChainVerifier:
        _, root = self._store.identity()
        return ChainVerifier(root, self._federation, self._connection.now())

    async def _download(self, listed: fleet_pb2.ModelRef, file: ReadyListFile) -> None:
        here = self._connection

        async def attempt() -> None:
            async with here.channel_for(listed.size_bytes) as channel:
                await transfer.download(channel, listed, file, here.server, here.metadata)

        await here.persist(attempt)


def _key(key: fleet_pb2.TaskKey) -> TaskId:
    return key.run, key.round
