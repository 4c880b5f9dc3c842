"""A server of masked rounds over an object store, whose machine is lost with its disk."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from fedloom.server.engine import SessionState
from fedloom.server.storage.objects.folder import FolderObjects
from support.marks import sampled
from support.masked_devices import Device
from support.masked_processes import RUN, KilledServer
from support.masked_sums import OVER_SESSIONS, ZEROS, median_of, update
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SETTINGS = OVER_SESSIONS | {
    "cohort": OVER_SESSIONS["cohort"] | {"patience_s": 30.0},
    "masking": OVER_SESSIONS["masking"] | {"phase_s": 20.0, "upload_s": 20.0},
}


class LostServer(KilledServer):
    """A server whose disk is lost with each kill; the objects are in a folder elsewhere."""

    def __init__(self, directory):
        self.objects = directory / "objects"
        machine = directory / "machine"
        machine.mkdir()
        database = f"sqlite:///{directory / 'ledger.sqlite'}"
        super().__init__(machine, store=self.objects.as_uri(), database=database)

    def look(self):
        if self._process.poll() is not None:
            for name in ("models", "spool"):
                shutil.rmtree(self.directory / name)
        super().look()


def played(tmp_path, place):
    """A round of all devices whose server dies at a place."""

    async def play():
        server = LostServer(tmp_path)
        devices = [Device(server, f"d{i}", update(i)) for i in range(SETTINGS["cohort"]["goal"])]
        server.submit(ZEROS, **SETTINGS)
        await asyncio.to_thread(server.start, place)
        for device in devices:
            device.start()
        try:
            until = time.monotonic() + 2 * PATIENCE_S
            while server.result()[0].state == "running":
                assert time.monotonic() < until, server._log()
                await asyncio.to_thread(server.look)
                await asyncio.sleep(0.05)
        finally:
            for device in devices:
                await device.stop()
            server.end()
        return server, devices

    return asyncio.run(play())


@pytest.mark.parametrize(
    "place",
    sampled(["masking.stored:9", "upload.synced:5", "masking.moved:8", "masking.unmasked:2",
     "round.closing", "commit.stored"], 3),
)  # fmt: skip
def test_a_lost_machine_loses_no_session(tmp_path, place):
    """Bodies and the sums of sessions that are done are read back: the same bits."""
    server, devices = played(tmp_path, place)
    row, model = server.result()
    assert row.state == "finished", row.reason
    assert server.kills == 1
    ledger = server.ledger()
    try:
        sessions = ledger.sessions(RUN, 1)
        wanted = median_of(devices, sessions)
        accepted = {update.client for update in ledger.accepted(RUN, 1)}
        assert ledger.rounds_with_bodies() == []
    finally:
        ledger.close()
    for name in ZEROS:
        assert model[name].tobytes() == wanted[name].tobytes(), name
    assert {session.state for session in sessions} == {SessionState.DONE}
    assert accepted == {device.name for device in devices}
    folders = {Path(each.name).parts[0] for each in FolderObjects(server.objects).list("")}
    # A kill between a PUT and its row may leave a part, which a sweep deletes when it is old.
    assert folders - {"updates"} == {"models", "owner"}, "sums of sessions are left"
