"""Rounds of an honest fleet beside hostile clients, of every registered kind.

The honest fleet is real agents in processes of their own. An attack is a function registered with
`kind`; it speaks the documented wire by grpcio alone, in one process on one core, with identities
that the server issued, until it is ended. Rounds are measured without and with each attack in
turns. Prints a table of the honest rounds, the server's processor, memory, files and ledger, and
writes out/hostile.json.

To add a kind, write `async def name(attackers)` under `@kind(clients=N)`; it may run for ever.
"""

import argparse
import asyncio
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from deployment import cpu_s, deployed, memory_bytes, model, report
from rounds import attend as run_agent
from upload import make_body

from fedloom.cli.connection.api_client import Control
from fedloom.client.config import load
from fedloom.client.state.store import ClientStore
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS

SPAWN = multiprocessing.get_context("spawn")
OPTIONS = (
    ("grpc.max_receive_message_length", methods.MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
WARM_UP = 2
"""Rounds before the first measurement: they make the spool's files."""


# ---- what an attack works with -----------------------------------------------------------------


@dataclass(frozen=True)
class Attackers:
    """The identities of an attack, and what its parent knows about the run.

    Attributes:
        configs: client.toml of each identity, by name.
        server: host:port of the fleet.
        enrolment: host:port for devices with a token.
        digest: of a model that the server sends.
        header: of a valid update to that model, without task, client and digest.
        settled: sends the parent the number of places held, once they are.
    """

    configs: dict[str, Path]
    server: str
    enrolment: str
    digest: str
    header: bytes
    settled: Callable[[int], None]

    def channel(self, name):
        """A connection of an identity of its own, over mTLS."""
        pem, root = ClientStore(load(self.configs[name]).state_dir).identity()
        credentials = grpc.ssl_channel_credentials(root, pem, pem)
        return grpc.aio.secure_channel(self.server, credentials, OPTIONS)

    def header_for(self, name, offer):
        """A valid header of an update for an offer."""
        header = fleet_pb2.UpdateHeader.FromString(self.header)
        header.client, header.model_digest = name, offer.model.digest
        header.task.CopyFrom(offer.key)
        return header


class Member:
    """A hostile client that attends, so that rounds ask it."""

    def __init__(self, name, channel):
        self.name, self.channel = name, channel
        self._stream = channel.stream_stream(
            methods.ATTEND,
            request_serializer=fleet_pb2.ClientMessage.SerializeToString,
            response_deserializer=fleet_pb2.ServerMessage.FromString,
        )()

    async def begin(self):
        hello = fleet_pb2.Hello(
            protocol_versions=PROTOCOL_VERSIONS, client=self.name, nonce=bytes(NONCE_BYTES)
        )
        await self._stream.write(fleet_pb2.ClientMessage(hello=hello))
        await self._stream.read()
        return self

    async def offers(self):
        """Every offer, unanswered."""
        while (message := await self._stream.read()) is not grpc.aio.EOF:
            if message.HasField("signed_offer"):
                raw = fleet_pb2.OfferStatement.FromString(message.signed_offer.statement).task
                yield fleet_pb2.Task.FromString(raw)

    async def accept(self, offer):
        reply = fleet_pb2.OfferReply(task=offer.key, accepted=True)
        await self._stream.write(fleet_pb2.ClientMessage(offer_reply=reply))


@dataclass(frozen=True)
class Kind:
    """A registered attack.

    Attributes:
        attack: runs until it is cancelled.
        clients: identities that it has.
        members: whether these attend and are asked by rounds, beside the honest fleet.
    """

    attack: Callable[[Attackers], Awaitable[None]]
    clients: int
    members: bool


KINDS: dict[str, Kind] = {}


def kind(clients, *, members=False):
    """Register an attack under the name of its function."""

    def register(attack):
        KINDS[attack.__name__] = Kind(attack, clients, members)
        return attack

    return register


# ---- the attacks -------------------------------------------------------------------------------


@kind(clients=1)
async def downloads_that_read_nothing(attackers):
    """One client opens 31 downloads of the model and reads none."""
    (name,) = attackers.configs
    request = fleet_pb2.DownloadRequest(digest=attackers.digest).SerializeToString()
    async with attackers.channel(name) as channel:

        async def hold():
            while True:
                call = channel.unary_stream(methods.DOWNLOAD)(request)
                await call.code()  # the end; until then nothing is read
                await asyncio.sleep(0.1)

        holding = [asyncio.ensure_future(hold()) for _ in range(31)]
        await asyncio.sleep(1.0)
        attackers.settled(31)
        await asyncio.gather(*holding)


@kind(clients=8, members=True)
async def uploads_of_a_header_alone(attackers):
    """Members send the header of an update, then nothing."""

    async def one(name):
        async with attackers.channel(name) as channel:
            member = await Member(name, channel).begin()
            async for offer in member.offers():
                await member.accept(offer)
                call = channel.stream_stream(methods.UPLOAD)()
                await call.write(attackers.header_for(name, offer).SerializeToString())
                held.append(call)

    held = []
    working = [asyncio.ensure_future(one(name)) for name in attackers.configs]
    attackers.settled(len(working))
    await asyncio.gather(*working)


@kind(clients=2, members=True)
async def offers_left_unanswered(attackers):
    """Members read their offers and say nothing."""

    async def one(name):
        async with attackers.channel(name) as channel:
            member = await Member(name, channel).begin()
            async for _ in member.offers():
                pass

    working = [asyncio.ensure_future(one(name)) for name in attackers.configs]
    attackers.settled(len(working))
    await asyncio.gather(*working)


@kind(clients=1)
async def uploads_outside_the_cohort(attackers):
    """One client sends headers of updates that nobody asked it for, 5,000 streams at a time."""
    (name,) = attackers.configs
    header = fleet_pb2.UpdateHeader(client=name, weight=1.0, size_bytes=100)
    header.task.run, header.task.round = "none", 1

    async def one(channel):
        call = channel.stream_stream(methods.UPLOAD)()
        await call.write(header.SerializeToString())
        await call.read()

    async with attackers.channel(name) as channel:
        await _bulk(lambda: one(channel), 5000, attackers)


@kind(clients=1)
async def guessed_tokens(attackers):
    """A stranger enrols with tokens that nobody gave out, 64 calls at a time."""
    (config,) = attackers.configs.values()
    _, root = ClientStore(load(config).state_dir).identity()
    csr, pin = build_csr(generate_key()), secrets.token_bytes(32)

    async def one(channel):
        request = enrolment_pb2.EnrolRequest(
            protocol_versions=PROTOCOL_VERSIONS, token=tokens.make_token(pin).text(), csr_pem=csr
        )
        await channel.unary_unary(methods.ENROL)(request.SerializeToString())

    credentials = grpc.ssl_channel_credentials(root)
    async with grpc.aio.secure_channel(attackers.enrolment, credentials, OPTIONS) as channel:
        await _bulk(lambda: one(channel), 64, attackers)


async def _bulk(call, at_once, attackers):
    """Make calls for ever, so many at a time."""

    async def calling():
        while True:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call()

    working = [asyncio.ensure_future(calling()) for _ in range(at_once)]
    attackers.settled(at_once)
    await asyncio.gather(*working)


# ---- measurement -------------------------------------------------------------------------------


def attacking(name, configs, addresses, pipe, update):
    """The process of an attack, on the last core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    attackers = Attackers(configs, *addresses, *update, pipe.send)
    asyncio.run(KINDS[name].attack(attackers))


@contextmanager
def attack_of(name, deployment, identities, update):
    """An attack under way."""
    here, there = SPAWN.Pipe()
    chosen = dict(list(identities.items())[: KINDS[name].clients])
    addresses = (deployment.config.fleet, deployment.config.enrolment)
    arguments = (name, chosen, addresses, there, update)
    process = SPAWN.Process(target=attacking, args=arguments, daemon=True)
    process.start()
    try:
        if not here.poll(30):
            raise RuntimeError(f"{name} does not begin")
        here.recv()
        yield
    finally:
        process.kill()
        process.join()


@contextmanager
def honest_fleet(configs):
    """A process for every honest agent."""
    processes = [SPAWN.Process(target=run_agent, args=(config,), daemon=True) for config in configs]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def measure(deployment, params, arguments, *, members=0, rounds=None):
    """Seconds of each honest round, and what the server spent on the run."""
    honest = arguments.honest
    everyone = honest + members
    deployment.wait_online(everyone)
    spec = {
        "name": "hostile",
        "rounds": rounds or arguments.rounds,
        "evaluate": False,
        "cohort": {
            "goal": honest,
            "quorum": 1,
            "over_selection": everyone / honest,
            "candidates": everyone,
            "patience_s": arguments.patience_s,
            "deadline_s": arguments.deadline_s,
        },
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    cpu, begun = cpu_s(deployment.pid), time.monotonic()
    run = deployment.submit(params, spec)
    while (row := deployment.status(run))["state"] == "running":
        if time.monotonic() - begun > arguments.limit_s:
            Control(deployment.state).post("runs", run, "stop")
            break
        time.sleep(0.1)
    rows = deployment.rounds(run)
    seconds = sorted(r.closed_at - r.opened_at for r in rows if r.closed_at is not None)
    ledger = deployment.state / "ledger.sqlite"
    return {
        "state": row["state"],
        "seconds": seconds,
        "server_cpu": (cpu_s(deployment.pid) - cpu) / (time.monotonic() - begun),
        "mib": memory_bytes(deployment.pid)[0] / 2**20,
        "files": len(list(Path(f"/proc/{deployment.pid}/fd").iterdir())),
        "ledger_kib": sum(p.stat().st_size for p in ledger.parent.glob("ledger.sqlite*")) / 1024,
    }


def line(label, found):
    seconds = found["seconds"] or [float("inf")]
    p99 = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return (
        label, len(found["seconds"]), statistics.median(seconds), p99, seconds[-1],
        found["server_cpu"], found["mib"], found["files"], found["ledger_kib"],
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--honest", type=int, default=20)
    parser.add_argument("--values", type=int, default=1_000_000, help="float32 of the model")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--patience-s", type=float, default=30.0)
    parser.add_argument("--deadline-s", type=float, default=600.0)
    parser.add_argument("--limit-s", type=float, default=300.0, help="for one measurement")
    arguments = parser.parse_args()
    names = [f"honest{i:02d}" for i in range(arguments.honest)]
    hostile = [f"hostile{i:02d}" for i in range(max(KINDS[k].clients for k in arguments.kinds))]
    params, rows, found = model(arguments.values), [], []
    with tempfile.TemporaryDirectory() as temporary, deployed([*names, *hostile]) as deployment:
        header = make_body(Path(temporary), params).header
        configs = deployment.clients
        identities = {name: configs[name] for name in hostile}
        with honest_fleet([configs[name] for name in names]):
            measure(deployment, params, arguments, rounds=WARM_UP)
            for name in arguments.kinds:
                quiet = measure(deployment, params, arguments)
                digest = next(iter((deployment.state / "models").glob("*.safetensors"))).stem
                members = KINDS[name].clients if KINDS[name].members else 0
                with attack_of(name, deployment, identities, (digest, header)):
                    loud = measure(deployment, params, arguments, members=members)
                after = measure(deployment, params, arguments)
                for label, each in (("quiet", quiet), (name, loud), ("after it", after)):
                    found.append({"label": label, "kind": name, **each})
                    rows.append(line(label, each))
                    print(*rows[-1][:5], file=sys.stderr)
    columns = (
        "", "rounds", "p50 s", "p99 s", "most s", "server CPU", "MiB", "files", "ledger KiB",
    )  # fmt: skip
    report("hostile", columns, rows, found=found)


if __name__ == "__main__":
    main()
