"""How late the event loop is: everything that clients wait for waits for it."""

import asyncio

from fedloom.server.metrics.meters import Meters

PACE_S = 0.5


async def keep(meters: Meters) -> None:
    """Look again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PACE_S
        await asyncio.sleep(PACE_S)
        meters.lag_s.observe(max(0.0, loop.time() - due))
