"""The context of the JSON routes and the console pages."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedloom.protocol.errors import FedloomError, UsageError, printable
from fedloom.server.access.context import AccessContext
from fedloom.server.access.gate import Gate
from fedloom.server.access.principal import Principal
from fedloom.server.access.studies import NO_STUDY, matching_studies, sees, studies
from fedloom.server.config import ServerConfig
from fedloom.server.event_hub import Hub
from fedloom.server.fleet.device_reports import DeviceReports
from fedloom.server.fleet.refusal_log import RefusalLog
from fedloom.server.fleet.sessions import Fleet
from fedloom.server.fleet.transfer_slots import TransferSlots
from fedloom.server.ledger.directory import CheckInCounts
from fedloom.server.ledger.rows import ModelRow, RunRow
from fedloom.server.metrics.log_buffer import LogRing
from fedloom.server.metrics.meters import Meters
from fedloom.server.metrics.replica import ReplicaState
from fedloom.server.pki.authority import Authority
from fedloom.server.pki.signing_key import SigningKey
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.views import Acted
from fedloom.server.rounds.manager import Runs
from fedloom.server.rounds.member_records import Records
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.model_norms import Inspector

Model = TypeVar("Model", bound=ModelRow)

_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,64}")

_last_action: ContextVar[tuple[Principal, str, str] | None] = ContextVar(
    "_last_action", default=None
)
"""The latest action that this request recorded in the audit trail."""


@dataclass(slots=True, kw_only=True)
class ConsoleContext(StorageContext):
    """The context of operators' requests.

    Attributes:
        fleet: sessions of the connected clients.
        devices: the latest readings of devices whose owners let them leave.
        check_in_counts: devices that check in, counted by study.
        uploads: transfer slots for updates.
        downloads: transfer slots for the files of clients' tasks.
        extra_downloads: transfer slots for models that no task needs.
        records: progress of the members of open rounds.
        refusals: refused calls, counted, and those that are not stored yet.
        log_ring: the latest lines of the log.
        signing: the federation's signing key; None on plaintext loopback.
        authority: issues certificates; None on plaintext loopback.
        gate: authenticates operators.
        fleet_address: host:port for enrolled clients.
        enrolment_address: host:port for devices with a token.
        console_url: of the console; empty if it does not listen.
        replica: who drives; None for a server alone.
        steering: run actions in progress that carry a request id, by that id.
        inspector: computes the norms of a model's tensors.
    """

    config: ServerConfig
    access: AccessContext
    fleet: Fleet
    devices: DeviceReports
    check_in_counts: Mapping[str, CheckInCounts]
    uploads: TransferSlots
    downloads: TransferSlots
    extra_downloads: TransferSlots
    records: Records
    refusals: RefusalLog
    live: Hub
    log_ring: LogRing
    meters: Meters
    signing: SigningKey | None
    runs: Runs
    authority: Authority | None
    gate: Gate
    fleet_address: str
    enrolment_address: str
    console_url: str = ""
    replica: ReplicaState | None = None
    inspector: Inspector = field(default_factory=Inspector)
    started_at: float = field(default_factory=time.time)
    steering: dict[str, asyncio.Future[Acted]] = field(default_factory=dict)

    async def audit(
        self,
        principal: Principal,
        action: str,
        subject: str,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an action in the audit trail, durably. Call it before the action.

        Args:
            principal: who acts.
            action: `thing.verb`, as `run.pause`.
            subject: id or name of the object.
            detail: the action's arguments as JSON values, without secrets.
        """
        log, who = self.access.audit_log, principal
        await log.record(who.name, who.how, action, subject, detail or {})
        _last_action.set((principal, action, subject))

    async def audit_failure(self, error: Exception) -> None:
        """Record in the audit trail that the action of this request failed."""
        last = _last_action.get()
        _last_action.set(None)
        if last is None:
            return
        principal, action, subject = last
        text = str(error) if isinstance(error, FedloomError) else type(error).__name__
        detail = {"error": printable(text)}
        with suppress(Exception):  # a failure of the trail must not replace the answer
            await self.access.audit_log.record(
                principal.name, principal.how, f"{action}.failed", subject, detail
            )

    async def run_id(self, reference: str) -> str:
        """The id of the one run whose id is, or begins with, `reference`.

        Raises:
            NotFoundError: no run matches.
            UsageError: several runs match.
        """
        ledger = self.ledger
        found = await self.in_reader(ledger.run, reference)
        if found is not None and sees(found.study):
            return reference
        rows = await self.runs_seen()
        return _only(reference, [r.id for r in rows if r.id.startswith(reference)], "run")

    async def runs_seen(self, study: str = "") -> list[RunRow]:
        """The runs that this request sees and a filter leaves, in order of creation."""
        found, rows = matching_studies(study), await self.in_reader(self.ledger.list_runs)
        return rows if found is None else [row for row in rows if (row.study or "") in found]

    def studies_seen(self) -> list[str]:
        """The studies that this request is limited to, or all, by name."""
        limited = studies()
        return sorted(self.fleet.studies | self.runs.studies if limited is None else limited)

    def study_choices(self) -> list[str]:
        """What a list is filtered by; empty if this request sees one study or none."""
        known = self.studies_seen()
        if studies() is None:
            known.append(NO_STUDY)
        return known if len(known) > 1 else []

    async def models_seen(self, limit: int = 0) -> list[ModelRow]:
        """The newest models of the runs that this request sees, oldest first; 0 for all."""
        if studies() is None:
            return await self.in_reader(self.ledger.list_models, limit=limit)
        rows = await self.in_reader(self.ledger.list_models)
        seen = {row.id for row in await self.runs_seen()}
        return [row for row in rows if row.run in seen][-limit:]

    async def digest(self, reference: str) -> str:
        """The digest of the one stored model whose digest is, or begins with, `reference`.

        Raises:
            NotFoundError: no model matches, or its file was pruned.
            UsageError: several models match, or it is not a digest.
        """
        if studies() is not None:
            reference = await self._seen_digest(reference)
        _check_digest(reference)
        found = await self.in_disk(self.models.find, reference)
        known = [] if found else await self.in_reader(self.ledger.find_models, reference)
        if len(known) == 1:
            raise NotFoundError(
                f"The file of the model {known[0][:12]} was pruned. "
                f"`fedloom model lineage {known[0][:12]}` shows its lineage."
            )
        return _only(reference, found, "model")

    async def known_digest(self, reference: str) -> str:
        """Like `digest`, also for a model whose file was pruned."""
        if studies() is not None:
            return await self._seen_digest(reference)
        known = await self.in_reader(self.ledger.find_models, reference)
        return known[0] if len(known) == 1 else await self.digest(reference)

    async def _seen_digest(self, reference: str) -> str:
        """The digest of the one model of the seen runs that `reference` begins."""
        _check_digest(reference)
        models = await self.models_seen()
        known = {m.digest for m in models if m.digest.startswith(reference)}
        return _only(reference, sorted(known), "model")

    async def with_kept(self, rows: Sequence[Model]) -> list[Model]:
        """Models, of which those whose file is kept do not count as pruned.

        A file is kept for another run, a promotion, or as the best after a rollback.
        """
        pruned = [row.digest for row in rows if row.pruned is not None]
        kept = await self.in_disk(self.models.kept, pruned) if pruned else set()
        return [replace(row, pruned=None) if row.digest in kept else row for row in rows]

    async def hold(self, digest: str) -> None:
        """Protect a model's file from pruning while a row that refers to it is written.

        Raises:
            NotFoundError: it was pruned already.
        """
        if not await self.in_disk(self.models.hold, digest):
            raise NotFoundError(f"The model {digest[:12]} was pruned.")


def _check_digest(reference: str) -> None:
    if not _DIGEST_PREFIX.fullmatch(reference):
        raise UsageError(
            f"Expected a model's digest or at least its first 4 digits, got {reference[:80]!r}."
        )


def _only(reference: str, found: list[str], what: str) -> str:
    if not found:
        raise NotFoundError(
            f"There is no {what} {reference[:80]!r} on this server: see `fedloom {what} list`."
        )
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:5]) + (", ..." if len(found) > 5 else "")
        raise UsageError(f"{len(found)} {what}s begin with {reference!r}, expected one: {shown}.")
    return found[0]
