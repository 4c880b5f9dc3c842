"""The context of the gRPC services: storage, sessions, transfer slots, the audit trail."""

from dataclasses import dataclass, field

from fedloom.protocol.tracing import Tracer
from fedloom.server.access.audit_log import AuditLog
from fedloom.server.config import ServerConfig
from fedloom.server.event_hub import Hub
from fedloom.server.fleet.device_reports import DeviceReports
from fedloom.server.fleet.last_seen import Presence
from fedloom.server.fleet.pacing import PeerPace, SharedRate
from fedloom.server.fleet.refusal_log import RefusalLog
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.fleet.transfer_slots import TransferSlots
from fedloom.server.ledger.directory import CheckInCounts
from fedloom.server.metrics.meters import Meters
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.rounds.member_records import Records
from fedloom.server.storage.context import StorageContext


@dataclass(slots=True, kw_only=True)
class FleetContext(StorageContext):
    """The context of the gRPC services.

    Attributes:
        fleet: sessions of the connected clients.
        presence: connects and disconnects that are not stored yet.
        devices: the latest readings of devices whose owners let them leave.
        check_in_counts: devices that check in, counted by study; read now and then.
        refusals: refused calls, counted, and those that are not stored yet.
        pace: of calls and refusals of each client and address.
        renewing: clients whose certificates are being renewed.
        records: progress of the members of open rounds.
        signing: signs what clients receive; None on plaintext loopback.
        audit_log: of enrolments, renewals and departures.
        uploads: transfer slots for updates.
        downloads: transfer slots for the files of clients' tasks.
        extra_downloads: transfer slots for models that no task of the client needs.
        extra_rate: of these, while a round is open.
    """

    config: ServerConfig
    fleet: Fleet
    presence: Presence = field(default_factory=Presence)
    devices: DeviceReports = field(default_factory=DeviceReports)
    check_in_counts: dict[str, CheckInCounts] = field(default_factory=dict)
    refusals: RefusalLog
    pace: PeerPace = field(default_factory=PeerPace)
    renewing: set[str] = field(default_factory=set)
    records: Records
    live: Hub
    meters: Meters
    tracer: Tracer
    signing: SigningKey | None
    audit_log: AuditLog
    uploads: TransferSlots
    downloads: TransferSlots
    extra_downloads: TransferSlots
    extra_rate: SharedRate
