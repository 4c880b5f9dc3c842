"""The context of runs and rounds: storage, connected clients, and what observes a round."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import sqlalchemy as sa

from fedloom.protocol.tracing import Tracer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.cool_off import CoolOffs
from fedloom.server.event_hub import Hub
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.replicas.gate_queues import lock_body
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.metrics.meters import Meters
from fedloom.server.pki.noise_keys import NoiseKeys
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.planning.privacy_budget import Bar
from fedloom.server.rounds.clients import Clients, TaskId
from fedloom.server.rounds.member_records import Records
from fedloom.server.rounds.sharing.turns import Turns
from fedloom.server.rounds.upstream.outbox import FOLDER, SumOutbox
from fedloom.server.rounds.upstream.passed_files import PassedFiles
from fedloom.server.rounds.upstream.sending_times import SendingTimes
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.objects.parts import num_parts
from fedloom.server.threads import Grouped

Sealed: TypeAlias = Callable[[TaskId], Awaitable[list[AcceptedRow]]]


@dataclass(slots=True, kw_only=True)
class RoundsContext(StorageContext):
    """What runs and their rounds use.

    Attributes:
        fleet: the connected clients.
        noise: keys of the noise that private runs add.
        signing: signs what clients receive; None on plaintext loopback.
        live: receives the changes that pages show.
        records: what the members of open rounds do.
        cool_offs: clients that fail, and get no offers for some time if the server is set so.
        bars: clients that a run may not draw, by its id: their privacy budget has no room for it.
        turns: of the runs, in taking idle clients.
        meters: counters for Prometheus.
        tracer: records the steps of a round.
        max_running: runs that run at once in each study; 0 for no limit.
        gates: whether other servers serve devices, too.
        sealed: waits for the sums of gates of a round that has closed; None without gates.
        name_devices: whether a parent server learns the names of the devices in sums.
        digest_devices: whether it learns a salted digest of them.
        apps: folders of the Flower apps whose `ServerApp` runs may name.
        app_runs: folder of what these runs keep.
        federation: its name.
        root_pem: the root of clients' certificates; empty on plaintext loopback.
        outbox: keeps sums for a parent server.
        passed: files of a parent server that rounds here pass on.
        sending: how long sums take to reach a parent server.
        accept: accepts an update with the sum's capacity; those that wait, in one transaction.
    """

    fleet: Clients
    noise: NoiseKeys
    signing: SigningKey | None = None
    live: Hub
    cool_offs: CoolOffs
    records: Records = field(default_factory=Records)
    bars: dict[str, Bar] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    meters: Meters
    tracer: Tracer = field(default_factory=Tracer)
    max_running: int = 0
    gates: bool = False
    sealed: Sealed | None = None
    name_devices: bool = False
    digest_devices: bool = False
    apps: Mapping[str, Path] = field(default_factory=dict)
    app_runs: Path = Path("flower")
    federation: str = ""
    root_pem: bytes = b""
    outbox: SumOutbox = field(default_factory=lambda: SumOutbox(Path(FOLDER)))
    passed: PassedFiles = field(default_factory=PassedFiles)
    sending: SendingTimes = field(default_factory=SendingTimes)
    accept: Grouped[tuple[AcceptedUpdate, int], bool] = field(init=False)

    def __post_init__(self) -> None:
        check = _check_whole if self.gates and self.remote is not None else None
        self.accept = Grouped(self.in_ledger, partial(self.ledger.accept_all, check=check))

    def cools_off(self, client: str, *, private: bool) -> bool:
        """Whether a run may not draw a client now, because it failed again and again.

        Private runs may: their claims assume that availability does not depend on clients' data,
        and failures may.
        """
        return not private and self.cool_offs.left_s(client) > 0

    def offer(self, client: str, task: fleet_pb2.Task) -> fleet_pb2.ServerMessage:
        """The message that offers a task to a client, signed where the server signs."""
        if self.signing is None:
            return fleet_pb2.ServerMessage(offer=task)
        session = self.fleet.get(client)
        return self.signing.offer(client, task, b"" if session is None else session.nonce)


def _check_whole(connection: sa.Connection, update: AcceptedUpdate) -> None:
    """Check that a body is in the object store, as a gate may have begun another one.

    Raises:
        Refusal: BUSY.
    """
    if update.file:
        lock_body(connection, update.file, update.identity, num_parts(update.size_bytes))
