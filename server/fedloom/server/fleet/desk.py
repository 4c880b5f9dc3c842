"""Handles what clients say on their streams: tells sessions and open rounds."""

from collections.abc import Sequence

from fedloom.protocol.errors import Code, Refusal, printable
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.background_tasks import to_the_end
from fedloom.server.fleet.check_ins.waiting import CheckIns
from fedloom.server.fleet.context import FleetContext
from fedloom.server.fleet.sessions import Session
from fedloom.server.rounds.manager import Runs
from fedloom.server.rounds.round_driver import RoundDriver

MAX_SITE_RUNS = 500
"""Most runs that a site asks about at once."""


class Desk:
    """Handles the messages of clients on the server that drives their rounds.

    Attributes:
        check_ins: the devices that check in.
    """

    def __init__(self, server: FleetContext, runs: Runs) -> None:
        self._server = server
        self._runs = runs
        self.check_ins = CheckIns(server, runs.draw, runs.wanted)

    def came(self, session: Session) -> None:
        """A client's stream has begun."""
        self.check_ins.came(session)
        self._server.fleet.attend(session)

    def left(self, session: Session) -> None:
        """A client's stream has ended."""
        self.check_ins.left(session)
        self._server.fleet.leave(session)

    async def said(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        """A client sent a message.

        Raises:
            Refusal: it is not allowed.
        """
        if message.HasField("masking"):
            await self._mask(session.client, message.masking)
        elif message.HasField("site"):
            await self._tell_site(session.client, message.site.runs)
        else:
            self._handle(session, message)

    async def _mask(self, client: str, message: fleet_pb2.MaskingMessage) -> None:
        """Pass on a message of a masking session; its sender learns if the round is over."""
        if driver := self._driver(client, message.task):
            await to_the_end(driver.masking_message(client, message))
        elif message.WhichOneof("kind") != "closing":
            withdraw = fleet_pb2.Withdraw(task=message.task, reason="The round is over.")
            self._server.fleet.send(client, fleet_pb2.ServerMessage(withdraw=withdraw))

    async def _tell_site(self, client: str, runs: Sequence[str]) -> None:
        if len(runs) > MAX_SITE_RUNS:
            raise Refusal(
                Code.MALFORMED, f"Expected at most {MAX_SITE_RUNS} runs of a site, got {len(runs)}."
            )
        await self._runs.tell_site(client, runs)

    def _handle(self, session: Session, message: fleet_pb2.ClientMessage) -> None:
        match message.WhichOneof("kind"):
            case "offer_reply":
                reply = message.offer_reply
                if driver := self._driver(session.client, reply.task):
                    driver.client_replied(session.client, reply)
            case "task_failed":
                failed = message.task_failed
                if driver := self._driver(session.client, failed.task):
                    driver.client_failed(session.client, printable(failed.reason))
            case "progress":
                if driver := self._driver(session.client, message.progress.task):
                    driver.client_progressed(session, message.progress)
            case "device":
                if self._server.config.clients.device_report_s:
                    self._server.devices.put(session.client, message.device)
            case _:
                raise Refusal(
                    Code.MALFORMED,
                    "Expected an offer_reply, a task_failed, a progress, a device, a masking "
                    "message or the runs of a site.",
                )

    def _driver(self, client: str, key: fleet_pb2.TaskKey) -> RoundDriver | None:
        """The open round that a client's message is about; None if it has ended."""
        task = (key.run, key.round)
        try:
            driver = self._runs.round(task)
        except Refusal:
            return None
        return driver if driver.key_of(client) == task else None
