"""Measures the delay of the event loop, which delays every answer to clients."""

import asyncio

from fedloom.server.metrics.meters import Meters

PACE_S = 0.5


async def keep(meters: Meters) -> None:
    """Measure every `PACE_S` seconds until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PACE_S
        await asyncio.sleep(PACE_S)
        meters.lag_s.observe(max(0.0, loop.time() - due))
