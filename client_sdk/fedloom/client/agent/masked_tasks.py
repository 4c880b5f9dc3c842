"""Masked tasks in the agent: the cryptography is imported when the first of them comes.

Of a masked task that fails, the server hears one word of `KINDS`; the journal has the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from fedloom.client.network.connection import Connection
from fedloom.client.owner.policy import Policy, PolicyFile
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.v1 import fleet_pb2

if TYPE_CHECKING:
    from fedloom.client.masking.tasks import MaskedTasks

KINDS: Final = ("unfit", "policy", "model", "training", "masking")
SETTLE_S: Final = 10.0
"""Time that an offer of a later try waits for the answers to steps of the earlier one."""


class MaskedTaskError(Exception):
    """A masked task has ended before anything left.

    Attributes:
        kind: what the server hears, of `KINDS`.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class MaskedWork:
    """The masked tasks of an agent, and the gate for their offers.

    Args:
        connection: to the server.
        store: of the client.
        policy: of the device's owner.
        upload: sends a body from a file until the server has it or refuses it.
    """

    def __init__(
        self,
        connection: Connection,
        store: ClientStore,
        policy: PolicyFile,
        upload: Callable[[fleet_pb2.UpdateHeader, Any], Awaitable[None]],
    ) -> None:
        self._connection, self._store = connection, store
        self._policy, self._upload = policy, upload
        self._loaded: MaskedTasks | None = None

    @property
    def tasks(self) -> "MaskedTasks":
        """The masked tasks; imports what they need."""
        if self._loaded is None:
            from fedloom.client.masking.tasks import MaskedTasks  # noqa: PLC0415 - when one comes

            async def upload(header: fleet_pb2.UpdateHeader, outbox: Any) -> None:
                await self._upload(header, outbox.body)

            self._loaded = MaskedTasks(self._connection, self._store, upload)
        return self._loaded

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline an offer; None to accept."""
        trust = self._connection.trust
        federation = "" if trust is None else trust.federation
        if not offer.HasField("masking"):
            return self._objection_to_clear(offer, federation)
        from fedloom.client.masking import offers  # noqa: PLC0415 - when one comes

        try:
            policy = self._policy.current().masking
        except UsageError:
            return "the device's policy cannot be read, so every offer is declined."
        return offers.objection(
            offer,
            client=self._connection.name,
            federation=federation,
            policy=policy,
            directory=self._store.directory,
        )

    def _objection_to_clear(self, offer: fleet_pb2.Task, federation: str) -> str | None:
        """Decline to send in clear what was masked: there is no way back."""
        if not (federation and (self._store.directory / "masking").exists()):
            return None
        from fedloom.client.masking.record import MaskedRecord  # noqa: PLC0415 - where there is one

        if MaskedRecord(self._store.directory).knows(federation, offer.key.run):
            return "this run had masked tasks on this device, and none of it is sent in clear."
        return None

    def take(self, step: fleet_pb2.MaskingStep) -> bool:
        """Pass a step on to its session; whether there is one."""
        return self._loaded is not None and self._loaded.take(step)

    def reconnected(self) -> None:
        """Have every session repeat its last message."""
        if self._loaded is not None:
            self._loaded.reconnected()

    def body_left(self, key: tuple[str, int]) -> bool:
        """Whether the masked body of a running task may have left."""
        return self._loaded is not None and self._loaded.body_left(key)

    async def settled(self, key: tuple[str, int]) -> None:
        """Wait until the steps that a session has taken are answered."""
        if self._loaded is not None:
            await self._loaded.settled(key, SETTLE_S)

    async def send(
        self, offer: fleet_pb2.Task, header: fleet_pb2.UpdateHeader, policy: Policy
    ) -> tuple[str, str, bool]:
        """Take part in the session of a trained update.

        Returns:
            The event and the sentence of the journal about its end, and whether a later try of the
            round may come: then an update that has not left stays on the disk.

        Raises:
            MaskedTaskError: it takes no part; nothing has left.
        """
        tasks = self.tasks
        from fedloom.client.masking.session import Ending, NotMaskedError  # noqa: PLC0415 - likewise
        from fedloom.client.masking.update_plan import UnfitUpdateError  # noqa: PLC0415 - likewise

        try:
            ending = await tasks.run(offer, header, policy)
        except UnfitUpdateError as error:
            raise MaskedTaskError("unfit", f"the update does not fit the run: {error}") from error
        except (NotMaskedError, FedloomError, OSError) as error:
            raise MaskedTaskError("masking", f"{error}") from error
        of = f"round {offer.key.round} of {offer.key.run}"
        return {
            Ending.DONE: ("accepted", f"The server has the sum with the update for {of}.", False),
            Ending.CLOSED: ("withdrawn", f"Nothing that was sent for {of} counts.", True),
            Ending.GIVEN_UP: ("withdrawn", f"The masking session of {of} was given up.", True),
            Ending.LATE: ("withdrawn", f"The masking session of {of} did not end in time.", False),
        }[ending]

    async def begin(self, offer: fleet_pb2.Task) -> None:
        """Note, before the training, which task the update will be of."""
        await asyncio.to_thread(self.tasks.trains, offer)
