"""Assembles the contexts of a server; each package uses its own."""

from dataclasses import dataclass, fields

from fedloom.protocol.tracing import Tracer
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.server.access.audit_log import AuditLog
from fedloom.server.access.context import AccessContext
from fedloom.server.config import ServerConfig
from fedloom.server.cool_off import CoolOffs
from fedloom.server.event_hub import Hub
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.pacing import SharedRate
from fedloom.server.fleet.refusal_log import RefusalLog
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.fleet.transfer_slots import TransferSlots
from fedloom.server.metrics.log_buffer import LogRing
from fedloom.server.metrics.meters import Meters
from fedloom.server.pki.noise_keys import NoiseKeys
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.storage.context import StorageContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """The contexts of one server, which share storage, sessions, events and meters."""

    storage: StorageContext
    access: AccessContext
    rounds: RoundsContext
    fleet: FleetContext
    log_ring: LogRing

    def close(self) -> None:
        """End every thread, and close the database last."""
        self.access.close()
        self.storage.close()


def assemble(
    config: ServerConfig,
    storage: StorageContext,
    noise: NoiseKeys,
    *,
    signing: SigningKey | None = None,
    root_pem: bytes = b"",
    tracer: Tracer | None = None,
) -> ServerContext:
    """Assemble the contexts of a server.

    Args:
        config: of the server.
        storage: its ledger and files.
        noise: keys of the noise of private runs.
        signing: signs what clients receive; None on plaintext loopback.
        root_pem: the root of clients' certificates; empty on plaintext loopback.
        tracer: traces the steps of a round; None for no traces.
    """
    live, meters = Hub(), Meters()
    shared = {each.name: getattr(storage, each.name) for each in fields(StorageContext)}
    storage.in_ledger.observe = meters.ledger_s.observe
    if storage.remote is not None:
        storage.remote.objects.observe = meters.asked_store
    sessions = Fleet(live)

    def offered_again(client: str) -> None:
        sessions.announce(client)
        live.changed("clients")

    rounds = RoundsContext(
        **shared,
        fleet=sessions,
        noise=noise,
        signing=signing,
        live=live,
        cool_offs=CoolOffs(config.clients, offered_again),
        meters=meters,
        tracer=tracer or Tracer(),
        max_running=config.max_running,
        gates=config.gates,
        name_devices=config.name_devices,
        digest_devices=config.digest_devices,
        federation=config.federation,
        root_pem=root_pem,
    )
    audit_log = AuditLog(storage.ledger, storage.in_ledger, live)
    places, chunks = config.max_fast_transfers, Chunks(config.chunk_bytes)
    fleet = FleetContext(
        **shared,
        config=config,
        fleet=sessions,
        refusals=RefusalLog(live),
        records=rounds.records,
        live=live,
        meters=meters,
        tracer=rounds.tracer,
        signing=signing,
        audit_log=audit_log,
        uploads=TransferSlots(places),
        downloads=TransferSlots(places, chunks=chunks),
        extra_downloads=TransferSlots(places, chunks=chunks),
        extra_rate=SharedRate(config.extra_download_bytes_per_s),
    )
    return ServerContext(
        storage=storage,
        access=AccessContext(accounts=storage.ledger.accounts, audit_log=audit_log),
        rounds=rounds,
        fleet=fleet,
        log_ring=LogRing(live),
    )
