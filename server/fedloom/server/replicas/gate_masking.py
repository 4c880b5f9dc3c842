"""The sessions of masked rounds as a gate knows them: it serves their lists, and takes bodies in.

Rosters and lists follow from the adverts that the ledger holds, as those of the driver do: they are
written once, before anything of a session is sent. What a session's members may send now is read of
each upload, and checked again in the transaction that accepts it.
"""

from pathlib import Path
from typing import Protocol

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import terms_of
from fedloom.protocol.updates.body import Checker
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.updates.masked_body import MaskedBodyChecker
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.server.fleet.context import FleetContext
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.masking.bodies import MaskedUpload
from fedloom.server.ledger.masking.sessions import READY
from fedloom.server.planning.admission import check_masked, check_masked_update
from fedloom.server.planning.masked_form import MaskedForm
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.masking.adverts import verified_before
from fedloom.server.rounds.masking.sessions import OpenSession, open_sessions
from fedloom.server.rounds.task_table import TaskTable
from fedloom.server.storage.objects.parts import num_parts

Key = tuple[str, int]


class GateMasking:
    """The sessions of the masked rounds that a gate serves.

    Args:
        server: context of the gate's services.

    Attributes:
        spool: with the bodies that arrive.
    """

    def __init__(self, server: FleetContext) -> None:
        self._server = server
        self.spool = server.spool
        self._forms: dict[Key, MaskedForm] = {}
        self._sessions: dict[Key, dict[str, OpenSession]] = {}  # of each member
        self._states: dict[Key, dict[int, tuple[str, tuple[str, ...]]]] = {}

    async def session_of(self, table: TaskTable, client: str) -> OpenSession | None:
        """The session of a member of a round; None before it is in one."""
        key = table.plan.key
        if key not in self._sessions and (found := await self._read(table)):
            self._sessions[key] = found
        return self._sessions.get(key, {}).get(client)

    async def _read(self, table: TaskTable) -> dict[str, OpenSession]:
        server, plan = self._server, table.plan
        terms, rosters = terms_of(table.message(plan), server.config.federation), []
        ledger = server.ledger
        for number, session in enumerate(await server.in_ledger(ledger.sessions, *plan.key)):
            at = (*plan.key, number)
            found = verified_before(await server.in_ledger(ledger.session_messages, at, READY))
            # None of a session that is done.
            members = tuple(found[name] for name in sorted(found))
            rosters.append((session.width_class, members))
        opened = open_sessions(plan.key, terms.pid, rosters)
        return {name: each for each in opened.values() for name in each.roster.names}

    async def follow(self, key: Key) -> None:
        """Read what the members of a round's sessions may send now."""
        server = self._server
        self._states[key] = await server.in_ledger(server.ledger.session_states, *key)

    def check_open(self, of: OpenSession, client: str) -> None:
        """Check that a session took bodies of a member when the ledger was read last.

        Raises:
            Refusal: ROUND_CLOSED.
        """
        run, number, session = of.at
        state, shared = self._states.get((run, number), {}).get(session, ("over", ()))
        if state != SessionState.MASKING.value or client not in shared:
            raise Refusal(
                Code.ROUND_CLOSED,
                f"Expected a session of round {number} that takes the body of {client!r}, got one "
                f"that is {state}.",
            )

    async def file_for(self, table: TaskTable, client: str, digest: str) -> Path | None:
        """The list of ready members with this digest, for those of a session; else None."""
        of = await self.session_of(table, client)
        if of is None or of.ready.digest != digest:
            return None
        run, number = table.plan.key
        path = self.spool.path(f"{run}.{number}..ready-{digest[:16]}")
        of.ready.write(path)
        return path

    def lists(self, client: str, digest: str) -> bool:
        """Whether this is the list of a member, which a round offers for download."""
        its = (found.get(client) for found in self._sessions.values())
        return any(of is not None and of.ready.digest == digest for of in its)

    def form_of(self, plan: RoundPlan) -> MaskedForm:
        """The form of the bodies of whole models in a round."""
        if plan.key not in self._forms:
            self._forms[plan.key] = MaskedForm.of(plan)
        return self._forms[plan.key]

    def forget(self, key: Key) -> None:
        """Forget a round that is over, and what this disk has of it."""
        self._sessions.pop(key, None)
        self._states.pop(key, None)
        self._forms.pop(key, None)
        self.spool.drop_copies(*key)


class MaskedRounds(Protocol):
    """What a masked round at a gate needs of all rounds there."""

    def refused(self, client: str, refusal: Refusal, key: Key) -> None:
        """Tell the driver that an update was refused."""

    async def accept_masked(self, upload: MaskedUpload) -> bool:
        """Accept a body; the driver is told in the same transaction."""


class MaskedGateRound:
    """A masked round for one upload; see `fedloom.server.fleet.reporting_rounds`.

    Args:
        rounds: all rounds of the gate.
        masking: the sessions of all of them.
        plan: of the round.
        of: the session of the body's member.
    """

    def __init__(
        self, rounds: MaskedRounds, masking: GateMasking, plan: RoundPlan, of: OpenSession
    ) -> None:
        self._rounds = rounds
        self._masking = masking
        self.plan = plan
        self._of = of
        self._raw = b""

    def plan_of(self, number: int | None) -> RoundPlan:  # noqa: ARG002 - of this update's task
        """The plan of the round."""
        return self.plan

    def _form(self, header: fleet_pb2.UpdateHeader) -> MaskedForm:
        form = self._masking.form_of(self.plan)
        return form.covering(header.parts, self._of.roster.advert(0).coverage)

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """Admit a masked update by its header.

        Raises:
            Refusal: in clear, too late, of another session or model, or a bad header.
        """
        check_masked(header)
        self._raw = header.SerializeToString(deterministic=True)
        self.check_open(header.client, header.task.round)
        check_masked_update(header, self.plan, self._form(header).layout, self._of.roster.sid)
        return []

    def checker(self, header: fleet_pb2.UpdateHeader, planned: list[PlannedPart]) -> Checker:  # noqa: ARG002 - it has none
        """The checker of an admitted body, at its start."""
        return MaskedBodyChecker(header, self._form(header).layout)

    def check_open(self, client: str, number: int) -> None:  # noqa: ARG002 - of this update's task
        """Check that the session took this body when the ledger was read last.

        Raises:
            Refusal: ROUND_CLOSED.
        """
        self._masking.check_open(self._of, client)

    def refused(self, client: str, refusal: Refusal, number: int) -> None:
        """A body of a client was refused."""
        if refusal.code.blames_update:
            self._rounds.refused(client, refusal, (self.plan.run, number))

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Accept a body whose parts are durable; False if it was accepted before.

        Raises:
            Refusal: the session takes no more, or another body was accepted.
        """
        crossing("accept.before")
        spool = self._masking.spool
        upload = MaskedUpload(
            at=self._of.at,
            client=update.client,
            file=update.file,
            header=self._raw,
            parts=num_parts(update.size_bytes),
        )
        try:
            first = await self._rounds.accept_masked(upload)
        except Refusal as refusal:
            if refusal.code is Code.ROUND_CLOSED:
                spool.discard_late(update.file, *self.plan.key)  # unread
            raise
        crossing("accept.after")
        spool.drop_copy(update.file)  # the driver adds it
        return first
