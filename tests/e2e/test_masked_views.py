"""What operators see of masked rounds that real devices play over gRPC."""

import asyncio
import json

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.agents import submit, until
from support.door import _Connection
from support.federation import Federation
from support.masked_devices import BODY, REVEAL, Device
from support.masked_sums import MASKED, ZEROS, update

pytestmark = pytest.mark.e2e


def played(tmp_path, scenario, count=5):
    """Run a scenario with a server and devices d0, d1 and so on."""

    async def play():
        federation = await Federation(tmp_path).start()
        devices = [Device(federation, f"d{i}", update(i)) for i in range(count)]
        try:
            return await scenario(federation, devices)
        finally:
            for device in devices:
                await device.stop()
            await federation.stop()

    return asyncio.run(play())


def short(**masking):
    return {**MASKED, "masking": {**MASKED["masking"], **masking}}


def _asked(federation, path):
    connection = _Connection(federation.directory / "control.sock")
    connection.request("GET", f"/v1{path}")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return found


async def asked(federation, path):
    return await asyncio.to_thread(_asked, federation, path)


def _metrics(federation):
    connection = _Connection(federation.directory / "control.sock")
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name.startswith("fedloom_masking_")
    }


async def metrics(federation):
    return await asyncio.to_thread(_metrics, federation)


@pytest.mark.long
def test_a_silent_member_is_seen_while_it_is_waited_for_and_afterwards(tmp_path):
    """Live, in the session, and as a drop-out in the metrics."""

    async def scenario(federation, devices):
        devices[0].stops = BODY
        run = await submit(federation, ZEROS, **short(phase_s=5.0, upload_s=5.0))
        for device in devices:
            device.start()
        seen = {}

        async def waits_for_one():
            found = await asked(federation, f"/runs/{run}")
            seen.update((found["live"]["round"] or {}).get("masking") or {})
            return seen.get("step") == 2 and seen["sent"] == 4

        while not await waits_for_one():
            await asyncio.sleep(0.05)
        assert (seen["asked"], seen["steps"], seen["states"]) == (5, 4, {"masking": 1})
        found = await asked(federation, f"/runs/{run}/rounds/1/sessions/0")
        assert (found["size"], found["shared"], found["masked"]) == (5, 5, None)
        assert [m["client"] for m in found["members"] if "body" not in m["sent"]] == ["d0"]
        await federation.ended(run)
        found = await asked(federation, f"/runs/{run}/rounds/1/sessions/0")
        assert (found["state"], found["masked"]) == ("done", 4)
        assert [m["client"] for m in found["members"] if not m["counts"]] == ["d0"]
        values = await metrics(federation)
        assert values["fedloom_masking_sessions_total", "done", "unmasking"] == 1
        assert values["fedloom_masking_drop_outs_total", "body"] == 1
        assert values["fedloom_masking_state_seconds_count", "masking"] == 1

    played(tmp_path, scenario)


def test_a_false_dealer_is_blamed(tmp_path):
    """It alone, in the ledger and the answer; the session is abandoned in the metrics."""

    async def scenario(federation, devices):
        liar, make = devices[3], devices[3].new_member

        def lying():
            member = make()
            member._secrets.self_seed[-1] ^= 1
            return member

        liar.new_member = lying
        run = await submit(federation, ZEROS, **short())
        for device in devices:
            device.start()
        await until(lambda: any(r.state == "abandoned" for r in federation.ledger.list_rounds(run)))
        [session] = (await asked(federation, f"/runs/{run}/rounds/1"))["sessions"]
        assert [(b["client"], b["cause"]) for b in session["blamed"]] == [("d3", "false_shares")]
        values = await metrics(federation)
        assert values["fedloom_masking_sessions_total", "abandoned", "unmasking"] == 1

    played(tmp_path, scenario)


def test_a_false_revealer_is_blamed(tmp_path):
    """Although the others suffice for the sum."""

    async def scenario(federation, devices):
        devices[1].twists[REVEAL] = lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]
        run = await submit(federation, ZEROS, **short())
        for device in devices:
            device.start()
        await federation.ended(run)
        [session] = (await asked(federation, f"/runs/{run}/rounds/1"))["sessions"]
        assert session["state"] == "done"
        assert [(b["client"], b["cause"]) for b in session["blamed"]] == [("d1", "false_reveal")]

    played(tmp_path, scenario)


def test_an_implausible_sum_marks_every_member(tmp_path):
    """And says that it convicts nobody."""

    async def scenario(federation, devices):
        def noise(body):
            body[:] = np.random.default_rng(1).integers(0, 256, len(body), np.uint8)

        devices[4].twists["masked"] = noise
        run = await submit(federation, ZEROS, **short())
        for device in devices:
            device.start()
        await until(lambda: any(r.state == "abandoned" for r in federation.ledger.list_rounds(run)))
        [session] = (await asked(federation, f"/runs/{run}/rounds/1"))["sessions"]
        assert [b["client"] for b in session["blamed"]] == [device.name for device in devices]
        assert {b["cause"] for b in session["blamed"]} == {"implausible"}
        assert "convicts nobody" in session["blamed"][0]["words"]
        [past] = federation.ledger.past_sessions(run, 1, 2)
        assert (past.implausible, past.masked) == (True, {device.name for device in devices})

    played(tmp_path, scenario)


@pytest.mark.long
def test_who_leaves_three_sessions_running_is_drawn_last(tmp_path):
    """It is in no round after them, operators see why, and another process judges alike."""

    async def scenario(federation, devices):
        devices[0].stops = BODY
        spec = short(phase_s=3.0, upload_s=3.0)
        run = await submit(federation, ZEROS, **spec, rounds=100, seed=1)
        for device in devices:
            device.start()

        def rounds(client):
            """Numbers of the rounds in whose sessions it was, and of all committed ones."""
            ledger = federation.ledger
            found = [r.number for r in ledger.list_rounds(run) if r.state == "committed"]
            rows = {number: ledger.session_rows(run, number) for number in found}
            return [n for n in found if any(client in row.members for row in rows[n])], found

        await until(lambda: len(rounds("d0")[0]) == 3)
        await until(lambda: rounds("d0")[1][-1] >= rounds("d0")[0][-1] + 3)
        assert len(rounds("d0")[0]) == 3
        found = await asked(federation, "/clients/d0")
        words = "drawn last: it dropped out of its last 3 masking sessions"
        assert found["conduct"] == [{"run": run, "words": words}]
        assert (await asked(federation, "/clients/d1"))["conduct"] == []
        await federation.server.runs.command(run, "pause")
        await federation.restart()
        known = federation.server.runs.get(run).position._sessions
        assert known == federation.ledger.past_sessions(run, 0, known[-1].round + 1)
        assert len(known) >= 6

    played(tmp_path, scenario, count=6)
