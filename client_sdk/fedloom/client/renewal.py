"""Renewing the certificate before it ends, and going over to the new one at leisure."""

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc

from fedloom.client.connection import CONNECT_S, Connection
from fedloom.client.store import ClientStore
from fedloom.protocol import identity, wire
from fedloom.protocol.errors import Refusal
from fedloom.protocol.v1 import enrolment_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """How a client renews.

    Attributes:
        connection: to renew by.
        store: has the certificate, and gets the new one.
        busy: the work that a new connection would disturb.
        jitter: from 0 to 1, of this client.
    """

    connection: Connection
    store: ClientStore
    busy: Callable[[], Collection["asyncio.Task[None]"]]
    jitter: float

    async def when_due(self, channel: grpc.aio.Channel, stream: Any) -> None:
        """Renew in time; ends the stream when there is a new certificate to connect with."""
        try:
            await self._renew_in_time(channel)
            log.info("reconnecting with the renewed certificate")
            stream.cancel()
        except Refusal:
            log.exception("the certificate was not renewed")

    async def learn_key(self, channel: grpc.aio.Channel) -> None:
        """Renew at once where there is no key to check offers by: an enrolment from before them."""
        trust = self.connection.trust
        if trust is not None and not trust.knows_key:
            await _renew(channel, self.store, self.connection)

    async def _renew_in_time(self, channel: grpc.aio.Channel) -> None:
        """Renew at two thirds of the certificate's life; return when to reconnect."""
        await self.connection.connected.wait()
        pem, _ = self.store.identity()
        start, end = identity.validity(pem)
        due_s = identity.seconds_until_renewal(start, end, datetime.now(UTC), self.jitter)
        await asyncio.sleep(due_s)
        await self.connection.persist(lambda: _renew(channel, self.store, self.connection))
        left_s = (end - datetime.now(UTC)).total_seconds()
        # Within the rest of the old one's life, so that a fleet enrolled together spreads out.
        await asyncio.sleep(random.uniform(0, max(0.0, left_s / 2)))  # noqa: S311
        while (work := self.busy()) and (end - datetime.now(UTC)).total_seconds() > left_s / 4:
            await asyncio.wait(list(work), timeout=1.0)


async def _renew(channel: grpc.aio.Channel, store: ClientStore, connection: Connection) -> None:
    key = identity.generate_key()
    method: Any = channel.unary_unary(
        wire.RENEW,
        request_serializer=enrolment_pb2.RenewRequest.SerializeToString,
        response_deserializer=enrolment_pb2.IssuedCertificate.FromString,
    )
    request = enrolment_pb2.RenewRequest(csr_pem=identity.build_csr(key))
    try:
        issued = await method(request, timeout=CONNECT_S)
    except grpc.aio.AioRpcError as error:
        raise wire.error_from_rpc(error, connection.server) from error
    store.save_identity(identity.key_to_pem(key), issued.chain_pem, issued.root_pem)
    log.info("certificate renewed")
    _, until = identity.validity(issued.chain_pem)
    text = f"Got a new certificate from {connection.server}, good until {until:%Y-%m-%d %H:%M} UTC."
    store.journal.note("renewed", text, server=connection.server, until=until.timestamp())
    if connection.trust is not None:
        connection.trust.learn(issued)
