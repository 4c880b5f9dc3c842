"""Downloads of the models that a task needs, and how often each is retried.

A model is made from a stored one if the offer has differences to it; otherwise it is downloaded
whole. A lost connection is retried without limit, bytes that fail their checksum
`MAX_MISMATCHES` times.
"""

import asyncio
from collections.abc import Callable

from fedloom.client.budgets import Pace
from fedloom.client.network import transfer
from fedloom.client.network.connection import Connection
from fedloom.client.network.off_loop import off_loop
from fedloom.client.state.model_check import UnfitError, check_room
from fedloom.client.state.store import KEEP_MODELS, ClientStore
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.model_differences import first_step
from fedloom.protocol.tracing import Tracer
from fedloom.protocol.v1 import fleet_pb2

MAX_MISMATCHES = 3
"""Downloads that may fail their checksum before the offer is refused."""


class ModelDownloads:
    """Downloads the models of offers into the store.

    Args:
        connection: to the server.
        store: of models.
        pace: limit of the download rate.
        tracer: records how long each download takes.
        refused: called with an offer's key and what the server sent that cannot be used.
    """

    def __init__(
        self,
        connection: Connection,
        store: ClientStore,
        *,
        pace: Pace,
        tracer: Tracer,
        refused: Callable[[fleet_pb2.TaskKey, str], None],
    ) -> None:
        self._connection = connection
        self._store = store
        self._pace = pace
        self._tracer = tracer
        self._refused = refused

    async def obtain(self, offer: fleet_pb2.Task, model: bytes = b"") -> None:
        """Have all models of an offer in the store, whole and checked.

        Args:
            offer: of the task.
            model: of the offer, if it came with it.

        Raises:
            UnfitError: one cannot be used, or has no room.
            Refusal: the server does not give it.
        """
        if model:
            await off_loop(len(model), self._keep, offer, model)
        await self._advance(offer)
        for wanted in (m for m in (offer.model, offer.received) if m.digest):
            size_bytes, digest = wanted.size_bytes, wanted.digest
            if not await off_loop(size_bytes, self._store.has_model, digest):
                await self._fetch(wanted)
            await off_loop(size_bytes, self._store.check, digest, wanted is offer.model)

    def _keep(self, offer: fleet_pb2.Task, model: bytes) -> None:
        """Store a model that came with its offer; if the bytes are others, it is downloaded."""
        if self._store.has_model(offer.model.digest):
            return
        check_room(self._store.directory, len(model))
        try:
            self._store.keep_model(offer.model, model)
        except IntegrityError as error:
            self._refused(offer.key, f"{error} It is downloaded instead.")

    async def _advance(self, offer: fleet_pb2.Task) -> None:
        """Make the offered model from one that is here, where differences lead to it.

        A failure costs nothing: the whole model is downloaded then.
        """
        store, steps = self._store, list(offer.differences)
        # The model that they start from must stay while they are downloaded.
        store.keep = KEEP_MODELS + len(steps)
        size_bytes = offer.model.size_bytes
        if not steps or await off_loop(size_bytes, store.has_model, offer.model.digest):
            return
        known = [await off_loop(size_bytes, store.has_model, step.base) for step in steps]
        sizes = [step.difference.size_bytes for step in steps]
        first = first_step(known, sizes, size_bytes)
        if first is None:
            return
        del steps[:first]
        digests = [step.difference.digest for step in steps]
        try:
            for step in steps:
                await self._fetch(step.difference)
            base, digest = steps[0].base, offer.model.digest
            await asyncio.to_thread(store.advance, base, digests, digest)
        except Exception as error:  # noqa: BLE001 - the bytes may be anything
            what = f"a difference that does not lead to the model: {error}"
            self._refused(offer.key, f"{what} The whole model is downloaded instead.")

    async def _fetch(self, model: fleet_pb2.ModelRef) -> None:
        mismatches = 0

        async def attempt() -> None:
            nonlocal mismatches
            here = self._connection
            try:
                async with here.channel_for(model.size_bytes) as channel:
                    await transfer.download(
                        channel, model, self._store, here.server, here.metadata, pace=self._pace
                    )
            except IntegrityError as error:
                mismatches += 1
                if mismatches == MAX_MISMATCHES:
                    raise UnfitError(f"{error} This happened {mismatches} times.") from error
                raise

        check_room(self._store.directory, model.size_bytes)
        with self._tracer.span("download", bytes=model.size_bytes):
            await self._connection.persist(attempt)
