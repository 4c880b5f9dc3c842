"""A server that is killed anywhere in a masked round continues it, to the same bits."""

import asyncio
import time

import numpy as np
import pytest

from fedloom.server.engine import SessionState
from support import masked_widths
from support.marks import sampled
from support.masked_devices import BODY, Device
from support.masked_processes import RUN, KilledServer
from support.masked_sums import MASKED, OVER_SESSIONS, ZEROS, mean_of, median_of, update
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


def patient(run):
    """A run that waits for devices while its server starts again."""
    masking = run["masking"] | {"phase_s": 20.0, "upload_s": 20.0}
    return run | {"cohort": run["cohort"] | {"patience_s": 30.0}, "masking": masking}


SETTINGS = patient(MASKED)


def played(tmp_path, place, *, drops=False, settings=SETTINGS, devices=None):
    """A round of all devices whose server dies at a place; one of them may drop out."""

    async def play():
        server = KilledServer(tmp_path)
        count, masking = settings["cohort"]["goal"], dict(settings["masking"])
        made = devices or (lambda s: [Device(s, f"d{i}", update(i)) for i in range(count)])
        found = made(server)
        if drops:
            found[0].stops = BODY
            masking["upload_s"] = 3.0
        server.submit(ZEROS, **settings | {"masking": masking})
        await asyncio.to_thread(server.start, place)
        for device in found:
            device.start()
        try:
            until = time.monotonic() + 2 * PATIENCE_S
            while server.result()[0].state == "running":
                assert time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
                await asyncio.to_thread(server.look)
                await asyncio.sleep(0.05)
        finally:
            for device in found:
                await device.stop()
            server.end()
        return server, found

    return asyncio.run(play())


def check(server, counted, mean=None):
    row, model = server.result()
    assert row.state == "finished", row.reason
    assert server.kills == 1
    ledger = server.ledger()
    sessions = ledger.sessions(RUN, 1)
    if mean is not None:
        wanted = mean(counted)
    elif len(sessions) > 1:
        wanted = median_of(counted, sessions)
    else:
        wanted = mean_of(counted, counted[0].task.masking.exponent)
    for name in ZEROS:
        assert model[name].tobytes() == wanted[name].tobytes(), name
    accepted = {update.client for update in ledger.accepted(RUN, 1)}
    phases = ("ready", "shares", "body", "agreement", "reveal")
    places = [(RUN, 1, number) for number in range(len(sessions))]
    left = [phase for at in places for phase in phases if ledger.session_messages(at, phase)]
    ledger.close()
    assert {session.state for session in sessions} == {SessionState.DONE}
    assert accepted == {device.name for device in counted}
    assert left == []
    assert not list((server.directory / "spool").glob(f"{RUN}.*"))


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            "masking.opened",
            *(f"masking.stored:{n}" for n in (1, 6, 11, 16)),  # shares, bodies, signatures, reveals
            *(f"masking.moved:{n}" for n in (1, 2, 3, 4, 5)),
            "upload.synced:3",
            "masking.unmasked",
            "round.closing",
            "commit.ledger",
        ],
        5,
    ),
)
@pytest.mark.long
def test_a_killed_server_continues_a_masked_round_to_the_same_bits(tmp_path, place):
    """SIGKILL after each durable step; devices connect again and repeat what they said."""
    server, devices = played(tmp_path, place)
    check(server, devices)


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            *(f"masking.moved:{n}" for n in (2, 8, 13, 15)),
            *(f"masking.unmasked:{n}" for n in (1, 2, 3)),
            "round.closing",
            "commit.ledger",
        ],
        5,
    ),
)
@pytest.mark.long
def test_a_killed_server_compares_the_same_sessions(tmp_path, place):
    """Three sessions of four: the sum of each stays apart, whichever of them were done."""
    check(*played(tmp_path, place, settings=patient(OVER_SESSIONS)))


@pytest.mark.parametrize(
    "place",
    sampled(
        [
            "masking.opened",
            *(f"masking.moved:{n}" for n in (2, 4, 7, 9)),  # of both widths
            "upload.synced:5",
            *(f"masking.unmasked:{n}" for n in (1, 2)),
            "round.closing",
        ],
        5,
    ),
)
@pytest.mark.long
def test_a_killed_server_continues_the_sessions_of_each_width(tmp_path, place):
    """What a session covers is in its class, and in the headers of its bodies."""
    members = masked_widths.names(4, 4)
    settings = patient(masked_widths.RUN)
    server, devices = played(
        tmp_path, place, settings=settings, devices=lambda s: [
            masked_widths.device(s, name) for name in members
        ],
    )  # fmt: skip
    check(server, devices, mean=masked_widths.mean_of)


@pytest.mark.long
def test_a_server_that_is_killed_before_it_unmasks_still_recovers_a_missing_member(tmp_path):
    """A body never came: its pair secret is rebuilt from stored shares by the next process."""
    server, devices = played(tmp_path, "masking.moved:5", drops=True)
    check(server, devices[1:])


@pytest.mark.long
def test_no_update_in_clear_is_on_the_servers_disk(tmp_path):
    """Neither a body before it is masked, nor a run of its bytes, in any file after a kill."""
    server, devices = played(tmp_path, "masking.stored:8")
    check(server, devices)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for device in devices:
        body, _ = device.plain_body()
        for start in range(0, 100, 20):
            assert not any(body[start : start + 20].tobytes() in content for content in files)
        for values in device.update.values():
            raw = np.ascontiguousarray(values).tobytes()[:12]
            assert not any(raw in content for content in files)
