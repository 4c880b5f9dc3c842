"""Rounds that report, as transfers see them: on the driving server, or on a gate beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedloom.protocol.errors import Refusal
from fedloom.protocol.updates.body import Checker
from fedloom.protocol.updates.header import PlannedPart
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.rounds.member_records import Record


class ReportingRound(Protocol):
    """A round that admits and accepts updates."""

    @property
    def plan(self) -> RoundPlan:
        """The plan of the round, with buffers of the open one."""

    def plan_of(self, number: int | None) -> RoundPlan:
        """The plan of the round of an update's task."""

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """Admit an update by its header.

        Raises:
            Refusal: its client is no member, the round has closed, or the header is not valid.
        """

    def checker(self, header: fleet_pb2.UpdateHeader, planned: list[PlannedPart]) -> Checker:
        """The checker of an admitted body, at its start."""

    def check_open(self, client: str, number: int) -> None:
        """Check that an update of this client would be accepted, now or soon.

        Raises:
            Refusal: NOT_IN_COHORT, ROUND_CLOSED or STALE_ROUND.
        """

    def refused(self, client: str, refusal: Refusal, number: int) -> None:
        """An update of a client was refused."""

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Accept an update whose bytes are durable; False if it was accepted before.

        Raises:
            Refusal: the round has closed, or another update was accepted.
        """


class ReportingRounds(Protocol):
    """The open rounds of all runs."""

    @property
    def open_rounds(self) -> Sequence[object]:
        """All of them."""

    def longest_header_bytes(self) -> int:
        """The largest header that an update of any active run may have, in bytes."""

    async def find(self, header: fleet_pb2.UpdateHeader) -> ReportingRound:
        """The round of an update.

        Raises:
            Refusal: UNKNOWN_RUN, STALE_ROUND or FUTURE_ROUND.
        """

    def lacks(self, header: fleet_pb2.UpdateHeader) -> bool:
        """Whether it is certain that no update of this member's task was accepted so far.

        If False, the ledger knows.
        """

    def trace_of(self, run: str) -> str:
        """The trace of a run's open round; empty for none."""

    async def offers(self, digest: str) -> bool:
        """Whether an open round offers the file of this digest for download."""

    async def file_for(self, client: str, digest: str) -> Path | None:
        """A file other than a model that this client may download; None if there is none."""

    def record_of(self, client: str, digest: str) -> tuple[Record, bool]:
        """The record that counts a file that a client is sent, and whether the client needs it."""
