"""Sends readings of the device at a slow pace, where the owner's policy lets them leave.

The policy is read before each report, so an edit applies from the next one. The journal has an
entry when reports begin, and when what they hold changes.
"""

import asyncio
import logging
import math

from fedloom.client.conditions.readings import DeviceReadings
from fedloom.client.network.connection import JITTER, Connection
from fedloom.client.owner.journal import Journal
from fedloom.client.owner.policy import PolicyFile
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

LEAST_S = 10.0
"""Shortest interval of reports, whatever a server asks for."""
FIRST_S = (1.0, 5.0)
"""Time from the connection to the first report, drawn so that a fleet's reports spread."""


class DeviceReporter:
    """The reports of one device.

    Args:
        policy: the owner's.
        connection: to the server.
        journal: of the device.
        readings: of the device.
    """

    def __init__(
        self,
        policy: PolicyFile,
        connection: Connection,
        journal: Journal,
        readings: DeviceReadings | None = None,
    ) -> None:
        self._policy = policy
        self._connection = connection
        self._journal = journal
        self._readings = readings or DeviceReadings()
        self._noted: tuple[object, ...] = ()

    async def send_all(self, every_s: float) -> None:
        """Report until cancelled; at once done if the server takes no reports.

        Args:
            every_s: as the server asks for, seconds; 0 for no reports.
        """
        if not (every_s > 0 and math.isfinite(every_s)):
            return
        every_s = max(LEAST_S, every_s)
        await asyncio.sleep(JITTER.uniform(*FIRST_S))
        while True:
            if wanted := self._wanted():
                report = await asyncio.to_thread(self._readings.read, wanted)
                if report.ByteSize():
                    self._note(wanted, every_s)
                    await self._connection.send(fleet_pb2.ClientMessage(device=report))
            await asyncio.sleep(every_s)

    def _wanted(self) -> tuple[str, ...]:
        try:
            return self._policy.current().device.report
        except UsageError as error:
            log.debug("no readings leave: %s", error)
            return ()

    def _note(self, wanted: tuple[str, ...], every_s: float) -> None:
        now = (wanted, every_s, self._connection.server)
        if now != self._noted:
            self._noted = now
            self._journal.note(
                "reported",
                f"Reports {', '.join(wanted)} of this device to {self._connection.server} every "
                f"{every_s:.0f} s while it is connected.",
                readings=list(wanted), every_s=every_s, server=self._connection.server,
            )  # fmt: skip
