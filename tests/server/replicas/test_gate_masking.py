"""What a gate knows of masked rounds: over the ledger and the models of a running server."""

import asyncio
import hashlib
from types import SimpleNamespace

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.server.replicas.gate_rounds import GateRounds
from support import masked_widths
from support.agents import submit, until
from support.federation import Federation
from support.masked_devices import BODY, Device
from support.masked_sums import MASKED, ZEROS, update

WITH_NOISE = MASKED | {
    "privacy": {
        "mechanism": "distributed", "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-5,
    },
    "masking": {
        "group": 8, "min_group": 3, "sum_bits": 32, "phase_s": 20.0, "session_s": 60.0,
    },
}  # fmt: skip
PATIENT = MASKED | {"masking": MASKED["masking"] | {"phase_s": 20.0, "upload_s": 60.0}}
WIDTHS = masked_widths.RUN | {
    "masking": masked_widths.RUN["masking"] | {"phase_s": 20.0, "upload_s": 60.0}
}
CASES = {
    "train": PATIENT,
    "evaluate": PATIENT | {"evaluate_only": True, "evaluate": True},
    "noise": WITH_NOISE,
    "widths": WIDTHS,
}


def devices_of(federation, case):
    if case == "widths":
        return [masked_widths.device(federation, name) for name in masked_widths.names(4, 4)]
    return [Device(federation, f"d{i}", update(i)) for i in range(5)]


def code_of(call, *args):
    with pytest.raises(Refusal) as refused:
        call(*args)
    return refused.value.code


LONG = [pytest.param(case, marks=pytest.mark.long) for case in ("noise", "widths")]


@pytest.mark.parametrize("case", ["train", "evaluate", *LONG])
def test_a_gate_derives_the_sessions_of_the_driver(tmp_path, case):
    """It admits what devices made for their sessions, and serves the list that they were sent."""

    async def scenario(federation, devices):
        for device in devices:
            device.stops = BODY
            device.start()
        run = await submit(federation, ZEROS, **CASES[case])
        ledger, context = federation.ledger, federation.server.context
        await until(lambda: all(device.body is not None for device in devices))
        gate = GateRounds(context.fleet, "g", SimpleNamespace(), None)
        for device in devices:
            header = device.described(device.body.tobytes())
            round_ = await gate.find(header)
            assert round_.admit(header) == []
            told = next(step for step in device.steps if step.HasField("ready_list"))
            wanted = told.ready_list
            path = await gate.file_for(device.name, wanted.digest)
            assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted.digest
            assert gate.record_of(device.name, wanted.digest)[1]
            assert await gate.file_for("eve", wanted.digest) is None
            other = fleet_pb2.UpdateHeader.FromString(header.SerializeToString())
            other.masking_session = bytes(32)
            assert code_of(round_.admit, other) is Code.MASKING_REFUSED
            other.masking_session = b""
            assert code_of(round_.admit, other) is Code.MALFORMED
            stranger = fleet_pb2.UpdateHeader(task=header.task, client="eve")
            with pytest.raises(Refusal, match="Expected a member"):
                await gate.find(stranger)
        await federation.server.runs.command(run, "abort")
        await until(
            lambda: {each.state for each in ledger.sessions(run, 1)} == {SessionState.ABANDONED}
        )
        await gate._masking.follow((run, 1))
        assert code_of(round_.check_open, device.name, 1) is Code.ROUND_CLOSED

    async def play():
        federation = await Federation(tmp_path).start()
        devices = devices_of(federation, case)
        try:
            await scenario(federation, devices)
        finally:
            for device in devices:
                await device.stop()
            await federation.stop()

    asyncio.run(play())
