"""What a gate serves of a run with buffers: over the ledger and the models of a running server."""

import asyncio
from types import SimpleNamespace

import numpy as np

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.replicas.gate_rounds import GateRounds
from fedloom.server.rounds.round_sum import RoundSum
from support.agents import played, submit, until
from support.stepped import COHORT, Stepped

ZEROS = {"w": np.zeros(3, np.float32), "b": np.zeros(2, np.float64)}


def header(run, number, client):
    task = fleet_pb2.TaskKey(run=run, round=number)
    return fleet_pb2.UpdateHeader(task=task, client=client)


async def found(rounds, *of):
    """The number of the plan of an update, or the code of its refusal."""
    try:
        return (await rounds.find(header(*of))).plan.number
    except Refusal as refusal:
        return refusal.code


def test_a_gate_serves_every_task_on_which_devices_may_work(tmp_path, monkeypatch):
    """Between two buffers, too, and if the newest model cannot be read; not after an abort."""

    async def scenario(federation, agents):
        context = federation.server.context
        gate = GateRounds(context.fleet, "g", SimpleNamespace(), None)
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        run = await submit(federation, ZEROS, rounds=9, cohort=COHORT | {"max_staleness": 2})
        await until(lambda: slow.at(1) and fast.at(1))
        assert await found(gate, run, 1, "slow") == 1
        may_finish, finish = asyncio.Event(), RoundSum.finish

        async def held(sum_, accepted):
            await may_finish.wait()
            return await finish(sum_, accepted)

        monkeypatch.setattr(RoundSum, "finish", held)
        fast.turns.release()
        await until(lambda: federation.ledger.open_round_of(run).state == "closing")
        await gate._read()
        assert await found(gate, run, 1, "slow") == 1, "it may finish, for the next buffer"
        may_finish.set()
        await until(lambda: fast.at(2))
        path = context.storage.models.path(federation.ledger.run(run).model)
        path.rename(tmp_path / "away")
        await gate._read()
        assert await found(gate, run, 2, "fast") is Code.BUSY
        assert await found(gate, run, 1, "slow") == 1
        (tmp_path / "away").rename(path)
        await gate._read()
        assert await found(gate, run, 2, "fast") == 2
        assert await found(gate, run, 1, "slow") == 1
        assert await found(gate, run, 1, "eve") is Code.NOT_IN_COHORT
        assert {plan.trained for plan in gate._served[run].table.plans} == {0, 1}
        await federation.server.runs.command(run, "abort")
        await until(lambda: federation.ledger.run(run).last_round == 3)
        await gate._read()
        assert await found(gate, run, 1, "slow") is Code.STALE_ROUND
        await federation.server.runs.command(run, "stop")
        await gate._read()
        assert not gate.open_rounds

    played(tmp_path, scenario)
