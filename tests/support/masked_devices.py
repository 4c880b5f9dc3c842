"""Devices of masked rounds over real gRPC, without the agent: what a test says they do.

A device holds a `fedloom.protocol.masking.Member` and answers each step of the server. It connects
again whenever its stream ends. `stops` names the message that it does not send any more; `twists`
change a message on its way, and `cuts` names steps at which it loses its connection once.
"""

import asyncio
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction

import grpc
import numpy as np
from crc32c import crc32c

from fedloom.protocol import masking
from fedloom.protocol.errors import Refusal
from fedloom.protocol.task_message import from_message
from fedloom.protocol.task_words import words_of
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import key_from_pem, peer_from_pem
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.updates.masked_parts import to_parts
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.strategies import Slice
from support import federation as wire

READY, SHARES, BODY, AGREEMENT, REVEAL, CLOSING = (
    "ready", "shares", "body", "agreement", "reveal", "closing",
)  # fmt: skip
PHASES = (READY, SHARES, BODY, AGREEMENT, REVEAL)


def integers(values, exponent, weight):
    """What a device adds to a sum, in rationals: rint(x · w · 2^s), half to even."""
    scale = Fraction(2) ** exponent * weight
    flat = np.asarray(values, np.float32).reshape(-1)
    return np.array([round(Fraction(float(x)) * scale) for x in flat], np.int64)


class CutError(Exception):
    """The stream was lost."""


class Device:
    """One device.

    Args:
        federation: a `support.federation.Federation`.
        name: of the device; it is enrolled.
        update: tensor → the difference that it sends.
        weight: of its update, and its number of examples.
        loss: that it had in training.
        slices: tensor → the ranges that the difference covers; the others are whole.

    Attributes:
        said: the messages that it sent, in order.
        told: the steps that it got, by kind.
        answers: how its uploads ended.
        refusals: why its member refused a step.
    """

    def __init__(
        self, federation, name, update, *, weight=1, loss=0.25, identity=None, slices=None
    ):
        self.federation, self.name, self.update, self.weight = federation, name, update, weight
        self.loss = loss
        self.slices = {("delta", tensor): Slice(each) for tensor, each in (slices or {}).items()}
        self.identity = identity or federation.enrol(name)
        self.stops, self.twists = None, {}
        self.said, self.told, self.answers, self.refusals = [], [], [], []
        self.withdrawn, self.steps = [], []
        self.task = self.member = self.body = self.header = self.proof = None
        self.cuts = set()
        self._call = self._loop = self._channel = None
        self._uploading = None

    # ---- life --------------------------------------------------------------------------------

    def start(self):
        self._loop = asyncio.ensure_future(self._live())
        return self

    async def stop(self):
        for task in (self._loop, self._uploading):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._loop = self._uploading = None

    async def _live(self):
        while True:
            with suppress(
                CutError, grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError
            ):
                await self._attend()
            await asyncio.sleep(0.05)

    async def _attend(self):
        channel = self._channel = self.federation.channel(self.identity)
        call = self._call = channel.stream_stream(
            methods.ATTEND,
            request_serializer=fleet_pb2.ClientMessage.SerializeToString,
            response_deserializer=fleet_pb2.ServerMessage.FromString,
        )()
        try:
            hello = fleet_pb2.Hello(
                protocol_versions=PROTOCOL_VERSIONS, client=self.name,
                nonce=secrets.token_bytes(NONCE_BYTES),
            )  # fmt: skip
            await call.write(fleet_pb2.ClientMessage(hello=hello))
            while (message := await call.read()) is not grpc.aio.EOF:
                await self._handle(message)
        finally:
            call.cancel()

    # ---- messages ----------------------------------------------------------------------------

    async def _handle(self, message):
        match message.WhichOneof("kind"):
            case "signed_offer":
                raw = fleet_pb2.OfferStatement.FromString(message.signed_offer.statement).task
                await self._offered(fleet_pb2.Task.FromString(raw))
            case "withdraw":
                self.withdrawn.append(message.withdraw.reason)
            case "masking":
                step = message.masking
                self.told.append(step.WhichOneof("kind"))
                self.steps.append(step)
                if step.WhichOneof("kind") in self.cuts:
                    self.cuts.discard(step.WhichOneof("kind"))
                    raise CutError
                try:
                    await getattr(self, f"_{step.WhichOneof('kind')}")(step)
                except Refusal as refusal:
                    self.refusals.append(str(refusal))

    async def _offered(self, task):
        if self.task is None or self.task.key != task.key:
            self.task, self.member, self.body, self.header = task, None, None, None
        reply = fleet_pb2.OfferReply(task=task.key, accepted=True)
        await self._call.write(fleet_pb2.ClientMessage(offer_reply=reply))
        if self.member is None:
            self.member = self.new_member()
        await self.say(READY, self.member.advert.to_bytes())

    def new_member(self):
        """A member with fresh secrets."""
        terms = masking.terms_of(self.task, self.federation.authority.federation)
        key, width = key_from_pem(self.identity.key_pem), terms.width(self.name)
        return masking.Member(
            terms,
            name=self.name,
            serial=peer_from_pem(self.identity.chain_pem).serial,
            sign=masking.signer(key),
            coverage="" if width is None else self.coverage(width),
            floors=masking.MaskingFloors(min_group=3),
            chain=self.identity.chain_pem,
        )

    def coverage(self, width):
        """The class that it states."""
        return masking.width_class(width, self.slices)

    async def say(self, kind, content):
        """Send a message of its session, unless it stopped before."""
        if self._stopped(kind):
            return
        content = self.twists.get(kind, lambda c: c)(content)
        message = fleet_pb2.MaskingMessage(task=self.task.key, attempt=1, **{kind: content})
        await self._call.write(fleet_pb2.ClientMessage(masking=message))
        self.said.append(kind)  # then a test may write: gRPC takes one message at a time

    def _stopped(self, kind):
        stops = self.stops is not None and kind in PHASES
        return stops and PHASES.index(kind) >= PHASES.index(self.stops)

    # ---- steps -------------------------------------------------------------------------------

    async def _ready_list(self, step):
        ref = step.ready_list
        request = fleet_pb2.DownloadRequest(digest=ref.digest).SerializeToString()
        answer = await wire.download(self._channel, request)
        raw = b"".join(answer.replies)
        if len(raw) != ref.size_bytes:
            raise CutError  # the server ended as it sent the list
        adverts = [
            masking.Advert.from_bytes(a) for a in fleet_pb2.ReadyList.FromString(raw).adverts
        ]
        federation = self.federation.authority
        identify = masking.ChainVerifier(
            federation.root_pem, federation.federation, datetime.now(UTC)
        )
        await self.say(SHARES, self.member.join(adverts, identify).to_bytes())

    async def _shares(self, step):
        shared = masking.from_bitmap(step.shares.shared, self.member.roster.size)
        sealed = {i: masking.SealedShare.from_bytes(r) for i, r in step.shares.shares.items()}
        complaint = self.member.receive(shared, sealed)
        if complaint:
            await self.say("complaint", masking.to_bitmap(complaint, self.member.roster.size))
        if self.body is None:
            self.body, layout = self.plain_body()
            self.member.mask(self.body, layout)
            self.twists.get("masked", lambda b: b)(self.body)
        if self._uploading is None or self._uploading.done():
            self._uploading = asyncio.ensure_future(self.upload())

    def plain_body(self):
        """The body before it is masked, and its layout."""
        task = from_message(self.task)
        words = words_of(task)
        reports = {
            "training": (self.weight, {"loss": self.loss}),
            "evaluation": (self.weight, {"loss": 0.5}),
        }
        said = words.of(float(self.weight), reports)
        sent = sorted(self.update) if task.train else []
        counted = self.weight if words.weighted else 1
        values = [integers(self.update[n], task.masking.exponent, counted) for n in sent]
        layout = masking.BodyLayout(
            sum_bits=task.masking.sum_bits,
            num_values=sum(v.size for v in values),
            num_words=len(words.names),
        )
        return masking.write_body(layout, values, [said[n] for n in words.names]), layout

    async def upload(self):
        """Send the masked body; returns how that ended."""
        if self._stopped(BODY):
            return None
        raw = self.body.tobytes()
        header = self.twists.get("header", lambda h: h)(self.described(raw))
        raw = self.twists.get(BODY, lambda b: b)(raw)
        chunks = [raw[i : i + 4096] for i in range(0, len(raw), 4096)]
        answer = await wire.upload(self._channel, header, chunks)
        self.said.append(BODY)
        self.answers.append(answer)
        return answer

    def described(self, raw):
        """The header of a masked body, which it makes once."""
        self.header = self.header or fleet_pb2.UpdateHeader(
            task=self.task.key, client=self.name, model_digest=self.task.model.digest,
            size_bytes=len(raw), crc32c=crc32c(raw), masking_session=self.member.roster.sid,
            parts=to_parts(self.slices) if self.task.kind == fleet_pb2.TASK_KIND_TRAIN else (),
        )  # fmt: skip
        return self.header

    async def _survivors(self, step):
        masked = masking.from_bitmap(step.survivors, self.member.roster.size)
        await self.say(AGREEMENT, self.member.agree(masked))

    async def _signatures(self, step):
        revealed = self.member.reveal(dict(step.signatures.by_member))
        await self.say(REVEAL, revealed.to_bytes(self.member._survivors))

    async def _abandoned(self, _):
        await self.say(CLOSING, self.member.close())

    async def _closed(self, step):
        self.member.check_closing_proof(dict(step.closed.by_member))
        self.proof = step

    async def _done(self, _):
        self.member.end("done")
