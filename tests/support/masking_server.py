"""A scripted server of one masked round, over gRPC with TLS, for real agents.

Nothing here goes through `fedloom.server` but the authority that issues certificates: the test
calls each step, honest or not, with the functions of `fedloom.protocol.masking`.
"""

import asyncio
import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from fractions import Fraction

import grpc
import numpy as np

from fedloom.client.config import ClientConfig
from fedloom.client.state.store import ClientStore
from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.masking.certificates import ChainVerifier
from fedloom.protocol.task_description import FileRef, TaskDescription, TaskMasking, UpdateBounds
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.task_message import for_client, from_message, to_message
from fedloom.protocol.task_words import words_of
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem, peer_from_pem
from fedloom.protocol.trust.signing import Addressee, Signer, signed_offer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server.pki.authority import Authority
from fedloom.strategies.client_rules import Plain
from fedloom.strategies.local_training import RoundSettings
from support.patience import PATIENCE_S
from support.ports import steady_port

FEDERATION = "tests"
RUN = "masked-run"
PARAMS = {"w": np.zeros((2, 3), np.float32), "b": np.ones(3, np.float32)}
SUM_BITS, EXPONENT = 32, 12
METRICS = {"step": 10.0}
POLICY = "[masking]\nmin_group = 3\n"


class ScriptedServer:
    """Streams, files and uploads; the test says what is sent on them.

    Attributes:
        files: digest → bytes to download.
        bodies: client → its masked body, once it is whole.
        headers: client → of that body.
        parts: client → bytes of an upload so far.
        refuses: client → the refusal of its uploads.
        cut_at: bytes of an upload after which the call is cut, once.
        served: digests that were downloaded, in order.
        at_upload: called when an upload begins.
    """

    def __init__(self, directory):
        self.directory = directory
        self.authority = Authority.create(directory / "pki", FEDERATION, datetime.now(UTC))
        self.signer = Signer.new()
        self.port = steady_port()
        self.files, self.bodies, self.headers, self.parts = {}, {}, {}, {}
        self.refuses, self.served, self.cut_at = {}, [], None
        self.at_upload = lambda: None
        self.said = {}
        self._streams, self._nonces, self._issued_us = {}, {}, 0
        self._changed = asyncio.Condition()
        self._server = None
        self.model = self.add(self._model())

    def _model(self):
        path = self.directory / "model"
        write_file(path, PARAMS)
        self.manifest = read_manifest(path)
        return path.read_bytes()

    def add(self, raw):
        """A file to download; returns its reference."""
        digest = hashlib.sha256(raw).hexdigest()
        self.files[digest] = raw
        return FileRef(digest=digest, size_bytes=len(raw))

    async def start(self):
        bundle = self.authority.issue_server(["127.0.0.1"], 3600.0, datetime.now(UTC))
        credentials = grpc.ssl_server_credentials(
            [(bundle.key_pem, bundle.chain_pem)], self.authority.root_pem, True
        )
        self._server = grpc.aio.server(options=methods.COMMON_OPTIONS)
        handlers = {
            "Attend": grpc.stream_stream_rpc_method_handler(
                self._attend,
                fleet_pb2.ClientMessage.FromString,
                fleet_pb2.ServerMessage.SerializeToString,
            ),
            "Download": grpc.unary_stream_rpc_method_handler(
                self._download, fleet_pb2.DownloadRequest.FromString
            ),
            "Upload": grpc.stream_stream_rpc_method_handler(self._upload),
        }
        generic = grpc.method_handlers_generic_handler(methods.FLEET_SERVICE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()
        return self

    async def stop(self):
        await self._server.stop(None)

    def enrol(self, name, policy=POLICY):
        """The settings of an agent with a certificate of this federation."""
        key = generate_key()
        chain, _ = self.authority.issue_client(build_csr(key), name, 3600.0, datetime.now(UTC))
        folder = self.directory / "devices" / name
        store = ClientStore(folder)
        store.save_identity(key_to_pem(key), chain, self.authority.root_pem, self.signer.public)
        path = folder.parent / f"{name}.policy.toml"
        path.write_text(policy)
        return ClientConfig(
            server=f"127.0.0.1:{self.port}", state_dir=folder, policy=path, reconnect_s=0.1
        )

    # ---- methods ---------------------------------------------------------------------------

    @staticmethod
    def _name(context):
        return peer_from_pem(context.auth_context()["x509_pem_cert"][0]).client

    async def _attend(self, _, context):
        name = self._name(context)
        hello = (await context.read()).hello
        self._nonces[name] = hello.nonce
        welcome = fleet_pb2.Welcome(
            protocol_version=max(PROTOCOL_VERSIONS), federation=FEDERATION, server_version="0"
        )
        await context.write(fleet_pb2.ServerMessage(welcome=welcome))
        async with self._changed:
            self._streams[name] = context
            self._changed.notify_all()
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                async with self._changed:
                    self.said.setdefault(name, []).append(message)
                    self._changed.notify_all()
        finally:
            async with self._changed:
                if self._streams.get(name) is context:
                    del self._streams[name]
                self._changed.notify_all()

    async def _download(self, request, context):
        self.served.append(request.digest)
        if request.digest not in self.files:
            await self._abort(context, Refusal(Code.UNKNOWN_MODEL, "Expected another file."))
        yield self.files[request.digest][request.offset :]

    async def _upload(self, _, context):
        name = self._name(context)
        header = fleet_pb2.UpdateHeader.FromString(await context.read())
        self.at_upload()
        if name in self.refuses:
            await self._abort(context, self.refuses[name])
        held = self.parts.setdefault(name, bytearray())
        if name not in self.bodies:
            proceed = fleet_pb2.Proceed(offset=len(held))
            await context.write(fleet_pb2.UploadReply(proceed=proceed).SerializeToString())
            while (chunk := await context.read()) is not grpc.aio.EOF:
                if self.cut_at is not None and len(held) + len(chunk) > self.cut_at:
                    held += chunk[: self.cut_at - len(held)]
                    self.cut_at = None
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                held += chunk
        again = name in self.bodies
        async with self._changed:
            self.bodies[name], self.headers[name] = bytes(held), header
            self._changed.notify_all()
        accepted = fleet_pb2.Accepted(repeated=again)
        await context.write(fleet_pb2.UploadReply(accepted=accepted).SerializeToString())

    @staticmethod
    async def _abort(context, refusal):
        await context.abort(
            getattr(grpc.StatusCode, refusal.code.status),
            str(refusal),
            methods.refusal_metadata(refusal),
        )

    # ---- what a test calls -------------------------------------------------------------------

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(condition)

    async def attends(self, *names):
        await self.until(lambda: set(names) <= set(self._streams))

    async def gone(self, name):
        """Wait until the stream of a process that has ended is gone: what it is sent is lost."""
        await self.until(lambda: name not in self._streams)

    async def send(self, name, **kind):
        await self.attends(name)
        with suppress(grpc.aio.UsageError, asyncio.InvalidStateError):
            await self._streams[name].write(fleet_pb2.ServerMessage(**kind))

    async def offer(self, name, task, change=None):
        """Offer a round's task to a client; `change` makes it differ from what others get."""
        await self.attends(name)
        mine = for_client(task, name, task.masking.run_seed, None)
        if change is not None:
            change(mine)
        self._issued_us += 1
        to = Addressee(FEDERATION, name, self._nonces[name])
        await self.send(name, signed_offer=signed_offer(self.signer, to, mine, self._issued_us))

    async def step(self, name, attempt=1, number=1, **kind):
        key = fleet_pb2.TaskKey(run=RUN, round=number)
        await self.send(name, masking=fleet_pb2.MaskingStep(task=key, attempt=attempt, **kind))

    async def withdraw(self, name, number=1):
        key = fleet_pb2.TaskKey(run=RUN, round=number)
        await self.send(name, withdraw=fleet_pb2.Withdraw(task=key, reason="a test"))

    async def cut(self, name):
        """End a client's stream; it reconnects."""
        stream = self._streams.pop(name)
        with suppress(Exception):
            await stream.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def hears(self, name, kind, attempt=None):
        """The next message of this kind; earlier ones of other kinds are dropped."""

        def found():
            for place, message in enumerate(self.said.get(name, [])):
                which = message.WhichOneof("kind")
                which = message.masking.WhichOneof("kind") if which == "masking" else which
                of = message.masking.attempt if message.HasField("masking") else attempt
                if which == kind and attempt in (None, of):
                    return place + 1
            return 0

        await self.until(found)
        place = found()
        message = self.said[name][place - 1]
        del self.said[name][:place]
        which = message.WhichOneof("kind")
        return getattr(message.masking, kind) if which == "masking" else getattr(message, kind)


def masked_task(server, number=1, attempt=1, kind=Kind.TRAIN, **masking_settings):
    """The part of a task that is the same for all clients."""
    settings = {
        "attempt": attempt,
        "sum_bits": SUM_BITS,
        "exponent": EXPONENT,
        "group": 16,
        "run_seed": 11,
        "metrics": METRICS,
        "max_examples": 1000,
        "session_s": 600.0,
    }
    return to_message(
        TaskDescription(
            run=RUN,
            round=number,
            kind=kind,
            model=server.model,
            settings=RoundSettings(epochs=1, steps=None, batch_size=8, learning_rate=0.1),
            rule=Plain(),
            bounds=UpdateBounds(max_abs=8.0, max_weight=100.0, max_bytes=100_000),
            deadline_s=600.0,
            masking=TaskMasking(**(settings | masking_settings)),
        )
    )


class PlayedRound:
    """The server's side of a session with every client of a round."""

    def __init__(self, server, task, names):
        self.server, self.task, self.names = server, task, sorted(names)
        self.attempt, self.number = task.masking.attempt, task.key.round
        self.terms = masking.terms_of(task, FEDERATION)
        self.identify = ChainVerifier(server.authority.root_pem, FEDERATION, datetime.now(UTC))
        self.adverts, self.dealt, self.complaints, self.reveals = {}, {}, {}, {}
        self.agreements, self.closings = {}, {}
        self.shared = self.masked = frozenset()
        self.roster = None

    def index(self, name):
        return self.roster.names.index(name)

    async def hears(self, name, kind):
        return await self.server.hears(name, kind, self.attempt)

    async def step(self, name, **kind):
        await self.server.step(name, self.attempt, self.number, **kind)

    async def offer(self, *names):
        for name in names or self.names:
            await self.server.offer(name, self.task)
            reply = await self.server.hears(name, "offer_reply")
            assert reply.accepted, reply.reason

    async def ready(self, *names):
        for name in names or self.names:
            self.adverts[name] = masking.Advert.from_bytes(await self.hears(name, "ready"))

    def listed(self, adverts=None):
        raw = [each.to_bytes() for each in (adverts or self.adverts.values())]
        file = self.server.add(fleet_pb2.ReadyList(adverts=raw).SerializeToString())
        return fleet_pb2.ModelRef(digest=file.digest, size_bytes=file.size_bytes)

    def draw(self):
        verified = masking.verify_adverts(self.adverts.values(), self.terms.pid, self.identify)
        (self.roster,) = masking.sessions_of(verified, self.terms.pid, self.terms.group)
        self.layout = masking.BodyLayout(
            sum_bits=self.task.masking.sum_bits,
            num_values=self.values,
            num_words=len(words_of(from_message(self.task)).names),
        )

    @property
    def values(self):
        trains = self.task.kind == fleet_pb2.TASK_KIND_TRAIN
        return sum(value.size for value in PARAMS.values()) if trains else 0

    async def share(self, *names):
        if self.roster is None:
            self.draw()
        listed = self.listed()
        for name in names or self.names:
            await self.step(name, ready_list=listed)
        for name in names or self.names:
            raw = await self.hears(name, "shares")
            me = self.index(name)
            self.dealt[me] = masking.SharesMessage.from_bytes(raw, me, self.roster.size)

    def forwarded(self, name, shared=None):
        shared = self.shared if shared is None else shared
        me = self.index(name)
        return fleet_pb2.SharesForMember(
            shared=masking.to_bitmap(shared, self.roster.size),
            shares={i: self.dealt[i].shares[me].to_bytes() for i in shared if i != me},
        )

    async def forward(self, *names):
        self.shared = self.shared or frozenset(self.dealt)
        for name in names or [self.roster.names[i] for i in sorted(self.shared)]:
            await self.step(name, shares=self.forwarded(name))

    async def bodies(self, *names):
        wanted = names or [self.roster.names[i] for i in sorted(self.shared)]
        await self.server.until(lambda: set(wanted) <= set(self.server.bodies))
        self.masked = frozenset(self.index(name) for name in wanted)

    @property
    def survivors(self):
        return [self.roster.names[i] for i in sorted(self.masked)]

    async def agree(self, *names):
        bitmap = masking.to_bitmap(self.masked, self.roster.size)
        for name in names or self.survivors:
            await self.step(name, survivors=bitmap)
        for name in names or self.survivors:
            self.agreements[self.index(name)] = await self.hears(name, "agreement")

    async def reveal(self, *names):
        signed = fleet_pb2.Signatures(by_member=self.agreements)
        sets = masking.Survivors(shared=self.shared, masked=self.masked)
        for name in names or self.survivors:
            await self.step(name, signatures=signed)
        for name in names or self.survivors:
            raw = await self.hears(name, "reveal")
            self.reveals[self.index(name)] = masking.RevealMessage.from_bytes(raw, sets)

    async def close(self, *names, reason="too few"):
        for name in names or self.names:
            await self.step(name, abandoned=reason)
        for name in names or self.names:
            self.closings[self.index(name)] = await self.hears(name, "closing")

    async def proof(self, *names):
        for name in names or self.names:
            await self.step(name, closed=fleet_pb2.Signatures(by_member=self.closings))

    def unmasked(self):
        """The values and words of the sum of U3."""
        sets = masking.Survivors(shared=self.shared, masked=self.masked)
        total = np.zeros(self.layout.size_bytes, np.uint8)
        for name in self.survivors:
            body = np.frombuffer(self.server.bodies[name], np.uint8)
            masking.add_body(total, self.layout, body)
        found = masking.recover(self.roster, sets, self.dealt, self.reveals, {})
        assert found.complete, found
        streams = masking.leftover_masks(self.roster, sets, found.seeds)
        masking.apply_streams(total, self.layout, streams)
        values = masking.read_values(self.layout, total, 0, self.layout.num_values)
        names = words_of(from_message(self.task)).names
        words = [int(word) for word in masking.read_words(self.layout, total)]
        return values.tolist(), dict(zip(names, words, strict=True))

    async def finish(self):
        for name in self.survivors:
            await self.step(name, done=True)


def expected(clients):
    """The sum of these clients by rational arithmetic: values, and words by name."""
    size = sum(value.size for value in PARAMS.values())
    addend = sum(round(Fraction(c.step) * c.num_examples * 2**EXPONENT) for c in clients)
    examples = sum(c.num_examples for c in clients)
    step = sum(round(Fraction(c.step) * c.num_examples * 2**20) for c in clients)
    words = {
        "weight": examples * 2**20,
        "training.examples": examples,
        "training.step.examples": examples,
        "training.step": step,
    }
    return [addend] * size, words
