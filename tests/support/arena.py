"""A run with an open round and three members, and the expected bits of its model."""

import io
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.tensors.container import read_params, write_params
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.status import grpc_status
from fedloom.server.engine.errors import OperatorRefused
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, FedAvg, Partial, weight_units
from support.federation import upload
from support.forgery import coverages, examples_of, honest, values_of

SPEC = {
    "name": "refusals",
    "rounds": 1,
    "evaluate": False,
    "cohort": {"goal": 3, "quorum": 1, "patience_s": 3600.0, "deadline_s": 3600.0},
    "train": {"epochs": 1, "learning_rate": 0.1},
    "max_abs": 100.0,
    "max_norm": 200.0,
    "max_weight": 1000.0,
}
GOOD = ("alice", "bob")


@dataclass
class Arena:
    """A federation with a stored model, in which alice, bob and mallory are connected."""

    federation: object
    model: str
    identities: dict
    streams: dict
    channels: dict

    @asynccontextmanager
    async def open_round(self, **settings):
        """Submit a run and wait until its first round has asked all three."""
        runs = self.federation.server.runs
        run = await runs.submit(SPEC | settings, self.model)
        try:
            offers = {name: await s.offer_of(run) for name, s in self.streams.items()}
            yield OpenRound(self, run, offers)
        finally:
            if runs.get(run) is not None:  # the test has failed: the next one needs the clients
                with suppress(OperatorRefused):  # or the run is ending just now
                    await runs.command(run, "stop")

    @property
    def digest(self):
        """The model of alice's and bob's updates, computed by hand."""
        path = self.federation.contexts.models.path(self.model)
        return expected_digest(path, GOOD)


@dataclass
class OpenRound:
    """A run whose first round is open."""

    arena: Arena
    run: str
    offers: dict

    def honest(self, client):
        return honest(client, self.offers[client])

    async def send(self, client, forged, body=None):
        """Upload from a client, its body in one message."""
        body = forged.body() if body is None else body
        chunks = [
            body[i : i + methods.CHUNK_BYTES] for i in range(0, len(body), methods.CHUNK_BYTES)
        ]
        return await upload(self.arena.channels[client], forged.header, chunks)

    async def finish(self):
        """Alice and bob report, the operator closes the round; returns the model's digest."""
        for name in GOOD:
            forged = self.honest(name)
            answer = await self.send(name, forged)
            assert [reply.WhichOneof("kind") for reply in answer.replies][-1] == "accepted", answer
        return await self.close()

    async def close(self):
        federation = self.arena.federation
        with suppress(UsageError):  # it may have closed already
            await federation.server.runs.command(self.run, "close")
        await federation.ended(self.run)
        row = federation.ledger.run(self.run)
        assert row.state == "finished", row
        return row.model


def expected_digest(path, clients):
    """The digest after a run of one round with these clients' valid updates."""
    manifest = read_manifest(path)
    specs = {(DELTA, name): spec for name, spec in manifest.specs.items()}
    total = Partial(specs, parse(SPEC).exponent())
    for client in clients:
        for name, coverage in coverages().items():
            units = weight_units(examples_of(client))
            total.add_array((DELTA, name), coverage, units, values_of(client)[name])
    params = read_params(path)
    strategy = FedAvg()
    new, _ = strategy.finish(strategy.init(params), params, total)
    return write_params(io.BytesIO(), new, manifest.dtypes)


def assert_refused(answer, code):
    """Check that the peer got this code and its gRPC status."""
    assert (answer.code, answer.status) == (code, grpc_status(code)), answer


def assert_recorded(arena, caplog, code, client, run=None):
    """Check that the newest refusal in the ledger and the log have this code."""
    newest = arena.federation.refusals()[0]
    assert (newest.code, newest.client) == (code, client)
    assert run is None or newest.run == run
    assert len(newest.message) <= 1000
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    ours = [line for line in lines if str(code) in line]
    assert ours, lines
    assert all("\n" not in line and len(line) < 3000 for line in ours)
    assert not client or any(client in line for line in ours)
