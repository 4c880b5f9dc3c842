"""Renewal of the certificate before it expires, and the switch to the new one.

Expiry is judged by the server's clock, because a device's clock may be wrong by hours or years.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from fedloom.client.network.connection import CONNECT_S, JITTER, Connection
from fedloom.client.state.store import ClientStore
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal, UnavailableError
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import identity, late_renewal
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Renews the certificate of a client.

    Attributes:
        connection: to the server.
        store: of the certificate.
        busy: returns the tasks that a reconnection would interrupt.
        jitter: from 0 to 1, of this client.
        enrolment: host:port where devices enrol; empty if unknown.
    """

    connection: Connection
    store: ClientStore
    busy: Callable[[], Collection["asyncio.Task[None]"]]
    jitter: float
    enrolment: str = ""

    async def when_due(self, channel: grpc.aio.Channel, stream: Any) -> None:
        """Renew when due, then end the stream to reconnect with the new certificate."""
        try:
            await self._renew_in_time(channel)
            log.info("reconnecting with the renewed certificate")
            stream.cancel()
        except Refusal:
            log.exception("the certificate was not renewed")

    async def learn_key(self, channel: grpc.aio.Channel) -> None:
        """Renew at once if the signing key is unknown: an enrolment older than signed offers."""
        trust = self.connection.trust
        if trust is not None and not trust.knows_key:
            # With the present key, which the server certifies at any time.
            await self._renew(channel, self.store.identity()[0])

    async def _renew_in_time(self, channel: grpc.aio.Channel) -> None:
        """Renew at two thirds of the certificate's life; return when it is time to reconnect."""
        here = self.connection
        await here.connected.wait()
        pem, _ = self.store.identity()
        start, end = identity.validity(pem)
        due_s = identity.seconds_until_renewal(start, end, here.now(), self.jitter)
        await asyncio.sleep(due_s)
        await here.persist(lambda: self._renew(channel))
        left_s = (end - here.now()).total_seconds()
        # Spread reconnections of a fleet that enrolled together over the old certificate's life.
        await asyncio.sleep(JITTER.uniform(0, max(0.0, left_s / 2)))
        while (work := self.busy()) and (end - here.now()).total_seconds() > left_s / 4:
            await asyncio.wait(list(work), timeout=1.0)

    async def _renew(self, channel: grpc.aio.Channel, key_pem: bytes = b"") -> None:
        method: Any = channel.unary_unary(
            methods.RENEW,
            request_serializer=enrolment_pb2.RenewRequest.SerializeToString,
            response_deserializer=enrolment_pb2.IssuedCertificate.FromString,
        )
        await self._ask(
            method,
            lambda csr: enrolment_pb2.RenewRequest(csr_pem=csr),
            self.connection.server,
            key_pem,
        )
        log.info("certificate renewed")

    async def renew_if_expired(self, *, rejected: bool = False) -> None:
        """Renew an expired certificate at the enrolment port, the only one that accepts it.

        Args:
            rejected: the server rejected the certificate; otherwise the clock decides.

        Raises:
            Refusal: it cannot be renewed any more.
            UnavailableError: the enrolment port cannot be reached.
        """
        pem, root = self.store.identity()
        _, end = identity.validity(pem)
        if not rejected and self.connection.now() < end:
            return
        if not self.enrolment:
            raise Refusal(
                Code.EXPIRED,
                f"The certificate expired on {end:%Y-%m-%d %H:%M} UTC. Set `enrolment` in "
                "client.toml to renew it, or enrol again with a new token, and check this device's "
                "clock.",
            )
        await self._late(pem, root)
        log.info("certificate renewed after it had expired")

    async def _late(self, pem: bytes, root: bytes) -> None:
        """Renew an expired certificate: the request is signed with its key."""
        credentials = grpc.ssl_channel_credentials(root_certificates=root)
        async with grpc.aio.secure_channel(
            self.enrolment, credentials, methods.COMMON_OPTIONS
        ) as channel:
            method: Any = channel.unary_unary(
                methods.RENEW_LATE,
                request_serializer=enrolment_pb2.LateRenewRequest.SerializeToString,
                response_deserializer=enrolment_pb2.IssuedCertificate.FromString,
            )

            def request(csr: bytes) -> enrolment_pb2.LateRenewRequest:
                return enrolment_pb2.LateRenewRequest(
                    protocol_versions=PROTOCOL_VERSIONS,
                    certificate_pem=identity.leaf_pem(pem),
                    csr_pem=csr,
                    signature=late_renewal.sign(pem, csr),
                )

            await self._ask(method, request, self.enrolment)

    async def _ask(
        self, method: Any, request: Callable[[bytes], Message], server: str, key_pem: bytes = b""
    ) -> None:
        try:
            self.store.make_room()  # before the server issues a certificate
            key = identity.key_from_pem(key_pem or self.store.renewal_key())
        except OSError as error:
            raise _no_room(error) from error
        try:
            issued = await method(request(identity.build_csr(key)), timeout=CONNECT_S)
        except grpc.aio.AioRpcError as error:
            raise methods.error_from_rpc(error, server) from error
        crossing("client.renew.issued")
        try:
            self.store.save_identity(identity.key_to_pem(key), issued.chain_pem, issued.root_pem)
        except OSError as error:
            raise _no_room(error) from error
        self.connection.set_server_time(issued.unix_time)
        _, until = identity.validity(issued.chain_pem)
        text = f"Got a new certificate from {server}, valid until {until:%Y-%m-%d %H:%M} UTC."
        self.store.journal.note("renewed", text, server=server, until=until.timestamp())
        if self.connection.trust is not None:
            self.connection.trust.learn(issued)


def _no_room(error: OSError) -> UnavailableError:
    return UnavailableError(f"Expected room for a certificate, got: {error}.")
