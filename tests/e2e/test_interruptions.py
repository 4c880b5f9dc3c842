"""A device that is stopped or killed during training resumes, or drops an outdated task."""

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from support.agents import Adder, played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parents[1] / "support" / "slow_client.py"
ONES = {"w": np.ones(3, np.float32)}
COHORT = {"goal": 1, "quorum": 1, "patience_s": 60.0}


@asynccontextmanager
async def process(agents, tmp_path):
    """The agent of a client `a` as a process, until it has trained two epochs or ends."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), str(tmp_path / "a" / "client.toml"), str(tmp_path)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


def epochs(tmp_path):
    path = tmp_path / "epochs"
    return path.read_text().split() if path.exists() else []


def folder(tmp_path, name):
    return list((tmp_path / "a" / "client-state" / name).glob("*"))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        signal.SIGKILL,
    ],
)
def test_a_training_resumes_after_a_stop_or_a_kill(tmp_path, how):
    """No epoch is trained twice, no partial result is sent, and a stop is not a failure."""

    async def scenario(federation, agents):
        await agents.enrol("a")
        async with process(agents, tmp_path) as first:
            run = await submit(federation, ONES, cohort=COHORT)
            await until(lambda: epochs(tmp_path) == ["0", "1"])
            await until(lambda: folder(tmp_path, "checkpoints"))
            first.send_signal(how)
            _, said = await asyncio.wait_for(first.communicate(), PATIENCE_S)
        assert first.returncode == (0 if how != signal.SIGKILL else -signal.SIGKILL)
        assert b"Traceback" not in said
        assert (b"stopped" in said) == (how != signal.SIGKILL)
        assert folder(tmp_path, "outbox") == []
        (tmp_path / "go").touch()
        async with process(agents, tmp_path):
            await federation.ended(run)
            await until(lambda: folder(tmp_path, "checkpoints") == [])
        assert epochs(tmp_path) == ["0", "1", "2", "3"]
        np.testing.assert_array_equal(result(federation, run)["w"], 5.0)

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_training_of_an_ended_round_is_dropped(tmp_path):
    """Another client finished the round; the next task deletes the remaining files."""

    async def scenario(federation, agents):
        await agents.enrol("a")
        async with process(agents, tmp_path) as first:
            run = await submit(federation, ONES, cohort={**COHORT, "patience_s": 0.05})
            await until(lambda: len(epochs(tmp_path)) == 2 and folder(tmp_path, "checkpoints"))
            first.kill()
            await first.wait()
        await agents.start("b", Adder(7.0))
        await federation.ended(run)
        await agents.stop("b")
        np.testing.assert_array_equal(result(federation, run)["w"], 8.0)
        (tmp_path / "go").touch()
        async with process(agents, tmp_path) as second:
            run = await submit(federation, ONES, cohort=COHORT)
            await federation.ended(run)
            await until(lambda: folder(tmp_path, "checkpoints") == [])
            second.terminate()
            _, said = await second.communicate()
        assert epochs(tmp_path) == ["0", "1", "0", "1", "2", "3"]
        assert b"WARNING" not in said
        np.testing.assert_array_equal(result(federation, run)["w"], 5.0)

    played(tmp_path, scenario)
