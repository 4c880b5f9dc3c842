"""What a server process has of masked updates in its memory and on its disk: nothing but masked."""

import asyncio
import sys
import time

import numpy as np
import pytest

from fedloom.protocol.masking.streams import apply_streams
from support.marks import sampled
from support.masked_devices import Device
from support.masked_processes import KilledServer
from support.masked_sums import MASKED, ZEROS, update
from support.patience import PATIENCE_S
from support.process_memory import found_in

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

CLEAR, UNDER_OWN, UNDER_PAIRS = "in clear", "under its own mask", "under the masks of its pairs"


class Watched(Device):
    """A device that keeps what the server must never have, and waits before it reveals."""

    def __init__(self, *args, gate, **settings):
        super().__init__(*args, **settings)
        self.gate, self.waits, self.hidden = gate, asyncio.Event(), {}

    def plain_body(self):
        body, layout = super().plain_body()
        own, *pairs = self.member._streams
        for name, streams in ((CLEAR, ()), (UNDER_OWN, (own,)), (UNDER_PAIRS, pairs)):
            known = body.copy()
            apply_streams(known, layout, streams)
            self.hidden[name] = known.tobytes()
        return body, layout

    async def _signatures(self, step):
        self.waits.set()
        await self.gate.wait()
        await super()._signatures(step)

    def patterns(self):
        """20 bytes of the values at two places, the last words, and the values as floats."""
        size = len(self.hidden[CLEAR])
        places = {0: 20, 100: 120, size - 16: size}
        found = {
            (self.name, name, start): body[start:stop]
            for name, body in self.hidden.items()
            for start, stop in places.items()
        }
        for name, values in self.update.items():
            found[self.name, name, "float32"] = np.ascontiguousarray(values).tobytes()[:12]
        return found


def on_disk(directory, patterns):
    files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    return {name for name, raw in patterns.items() if any(raw in each for each in files)}


@pytest.mark.long
@pytest.mark.parametrize("drops", sampled([False, True], 2, first=1))
def test_no_update_is_in_the_servers_memory_or_on_its_disk(tmp_path, drops):
    """Nor one from which some of its masks are taken off; before the shares are revealed and after.

    With a member that vanishes after its shares, too: the server rebuilds its pair seed then.
    """

    async def play():
        gate, server = asyncio.Event(), KilledServer(tmp_path)
        devices = [
            Watched(server, f"d{i}", update(i), weight=1000 + 37 * i, gate=gate) for i in range(5)
        ]
        if drops:
            devices[2].stops = "body"
        masking = MASKED["masking"] | {"phase_s": 60.0, "upload_s": 4.0, "session_s": 200.0}
        server.submit(ZEROS, **MASKED | {"masking": masking, "max_weight": 5000.0})
        await asyncio.to_thread(server.start)
        for device in devices:
            device.start()
        sending = [device for device in devices if device.stops is None]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(device.waits.wait() for device in sending))
            hidden = {key: raw for each in devices for key, raw in each.patterns().items()}
            control = {each.name: each.member.advert.channel_key for each in devices}
            seen = found_in(server._process.pid, hidden | control)
            assert seen & set(control), "the search finds nothing"
            assert seen - set(control) == set()
            masked = {each.name: each.body[:20].tobytes() for each in sending}
            assert on_disk(tmp_path, hidden | masked) == set(masked)
            gate.set()
            until = time.monotonic() + PATIENCE_S
            while server.result()[0].state == "running":
                assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
                await asyncio.sleep(0.05)
            assert server.result()[0].state == "finished", server.result()[0].reason
            assert found_in(server._process.pid, hidden) == set()
            assert on_disk(tmp_path, hidden) == set()
        finally:
            for device in devices:
                await device.stop()
            server.end()

    asyncio.run(play())
