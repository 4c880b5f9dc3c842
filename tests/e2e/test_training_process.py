"""Training code in a process of its own: whatever it does, the agent trains the next round."""

import asyncio
import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedloom.client import Agent, process_tree
from fedloom.client.agent.training_process import Program
from fedloom.client.budgets import Budgets, machine
from fedloom.client.training.checkpoints import Interruptions
from fedloom.protocol.errors import FedloomError
from support.agents import played, result, submit, until
from support.marks import sampled

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")]

ONES = {"w": np.ones(3, np.float32)}
COHORT = {"goal": 1, "quorum": 1, "patience_s": 60.0}
CODE = Path(__file__).parents[1] / "support" / "misbehaving.py"


def program(code=f"{CODE}:client", keep_warm_s=60.0):
    """Starts the process as `fedloom client run` does."""
    module = "fedloom.cli.device.training_child"
    words = (sys.executable, "-m", module, "--config", "client.toml", code)
    return Program(words, keep_warm_s)


def children():
    """Processes below this one, without those that have nothing to do with training."""
    found = {}
    for pid in process_tree.tree(os.getpid())[1:]:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z" or any("training_child" in word for word in words):
                found[pid] = state
    return found


def written(agents, name):
    """The notes of a client's journal."""
    path = agents.configs[name].state_dir / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def files(agents, name):
    """What a training may leave behind."""
    state = agents.configs[name].state_dir
    found = [*(state / "outbox").glob("*"), *(state / "checkpoints").glob("*")]
    return sorted(path.name for path in found)


async def enrolled(agents, budgets=None, **settings):
    """Enrol a client whose trainings are ended half a second after the request to stop."""
    await agents.enrol("a")
    settings["interruptions"] = Interruptions(stop_s=0.5)
    agents.configs["a"] = replace(agents.configs["a"], budgets=budgets or Budgets(), **settings)


async def train(federation, **config):
    """A run of one round, which must be committed; returns what its client measured."""
    run = await submit(federation, ONES, cohort=COHORT, config=config)
    await federation.ended(run)
    np.testing.assert_array_equal(result(federation, run)["w"], 2.0)


DEEDS = {
    "segfault": ["signal 11 (SIGSEGV)", "Segmentation fault"],
    "terminate": ["signal 6 (SIGABRT)", "dmlc::Error"],
    "leave": ["exit code 7", "leaving now"],
    "leak": ["MB of memory, and budgets.memory_mb is"],
    "close_pipes": ["closed the connection to the agent"],
    "scribble": ["sent what is no message"],
    "fill_the_disk": ["OSError", "No space left on device"],
    "flood": ["exit code 3", "line 19999"],
    "stop_threads": ["SystemExit(no more)"],
    "fork_and_hang": ["signal 6 (SIGABRT)"],
}


@pytest.mark.long
@pytest.mark.parametrize("deed", sampled(DEEDS, 2))
def test_a_training_that_ends_its_process_fails_alone(tmp_path, deed, capfd):
    """The server and the journal have the reason; a process, a file or a zombie does not stay."""

    async def scenario(federation, agents):
        most_mb = machine.resident_bytes() / 1e6 + 500.0  # of this process, the tests' own
        await enrolled(agents, Budgets(memory_mb=most_mb if deed == "leak" else None))
        await agents.start("a", program())
        begun = tmp_path / "begun"
        config = {"deed": deed, "begun": str(begun)}
        bad = await submit(federation, ONES, cohort=COHORT, config=config)
        await until(lambda: [m.phase for m in federation.ledger.cohort(bad, 1)] == ["failed"])
        told = str(federation.ledger.cohort(bad, 1)[0])
        noted = str([note for note in written(agents, "a") if note["event"] == "failed"])
        for part in DEEDS[deed]:
            assert part in told
            assert part in noted
        await federation.server.runs.command(bad, "stop")
        if deed == "fork_and_hang":
            await until(lambda: not Path(f"/proc/{begun.read_text()}").exists())
        assert files(agents, "a") == []
        await train(federation)
        assert len(children()) == 1
        assert not agents.tasks["a"].done()
        await agents.stop()
        assert children() == {}

    played(tmp_path, scenario)
    assert f"about to {deed}" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("deed", ["ignore", "hang_in_native_code"])
@pytest.mark.parametrize("limit", ["the server", "the device"])
def test_a_training_that_does_not_stop_is_ended(tmp_path, deed, limit):
    """Withdrawn by the server, or past the device's own time; the next round is trained at once."""

    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        budgets = Budgets(training_s=0.2 if limit == "the device" else None)
        await enrolled(agents, budgets)
        await agents.start("a", program())
        bad = await submit(
            federation, ONES, cohort=COHORT, config={"deed": deed, "begun": str(begun)}
        )
        if limit == "the server":
            await until(begun.exists)
            await asyncio.sleep(0.1)  # from there to the deed
            await federation.server.runs.command(bad, "stop")
        else:
            await until(lambda: [m.phase for m in federation.ledger.cohort(bad, 1)] == ["declined"])
            told = str(federation.ledger.cohort(bad, 1)[0])
            assert "did not end within training_s = 0.2 s" in told
            await federation.server.runs.command(bad, "stop")
        await train(federation)
        await agents.stop()
        assert children() == {}
        assert files(agents, "a") == []

    played(tmp_path, scenario)


def test_a_warm_process_trains_round_after_round(tmp_path):
    """One for all rounds. A fork that returns sends nothing; a complete update is never lost."""

    async def scenario(federation, agents):
        await enrolled(agents)
        await agents.start("a", program())
        (before,) = children()
        run = await submit(federation, ONES, rounds=3, cohort=COHORT)
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], 4.0)
        for deed in ("fork_twice", "close_all"):
            outbox = agents.configs["a"].state_dir / "outbox"
            config = {"begun": str(tmp_path / "begun"), "outbox": str(outbox)}
            await train(federation, deed=deed, **config)
            assert (before in children()) is (deed == "fork_twice")
        await agents.stop()
        assert children() == {}

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_idle_process_ends_and_another_takes_the_next_task(tmp_path):
    async def scenario(federation, agents):
        await enrolled(agents)
        await agents.start("a", program(keep_warm_s=0.2))
        await until(lambda: not children())
        await train(federation)
        await until(lambda: not children())

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_stopped_agent_resumes_the_training_from_its_checkpoint(tmp_path):
    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        await enrolled(agents)
        await agents.start("a", program())
        config = {"deed": "pause", "begun": str(begun)}
        run = await submit(federation, ONES, cohort=COHORT, config=config)
        await until(begun.exists)
        await agents.stop()
        assert children() == {}
        assert [name.rpartition(".")[2] for name in files(agents, "a")] == ["checkpoint"]
        await agents.start("a", program())
        await federation.ended(run)
        assert begun.read_bytes() == b"a half"

    played(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("deed", ["ignore", "hang_in_native_code"])
def test_a_training_ends_with_its_agent(tmp_path, deed):
    """SIGKILL of `fedloom client run`; also while native code holds the interpreter."""

    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        await agents.enrol("a")
        path = agents.directory / "a" / "client.toml"
        cli = (sys.executable, "-m", "fedloom.cli.main", "client", "run", f"{CODE}:client")
        agent = await asyncio.create_subprocess_exec(*cli, "--config", path)
        config = {"deed": deed, "begun": str(begun)}
        await submit(federation, ONES, cohort=COHORT, config=config)
        await until(begun.exists)
        (training,) = process_tree.tree(agent.pid)[1:]
        agent.kill()
        await agent.wait()
        await until(lambda: not Path(f"/proc/{training}").exists())

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_process_that_was_killed_while_idle_is_replaced(tmp_path):
    async def scenario(federation, agents):
        await enrolled(agents)
        await agents.start("a", program())
        (pid,) = children()
        os.kill(pid, 9)
        await train(federation)
        assert pid not in children()

    played(tmp_path, scenario)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param("nothing.py:client", "There is no file nothing.py", marks=pytest.mark.long),
        pytest.param(
            f"{CODE}:segfault",
            "to need no arguments, got: missing a required argument",
            marks=pytest.mark.long,
        ),
        pytest.param(f"{CODE}:ONES", "has no 'ONES'", marks=pytest.mark.long),
        ("os:abort", "signal 6 (SIGABRT)"),
    ],
)
def test_code_that_cannot_be_loaded_ends_the_agent_at_its_start(tmp_path, code, told):
    """With the reason that loading it in the agent would give."""

    async def scenario(federation, agents):
        await enrolled(agents)
        with pytest.raises(FedloomError, match=re.escape(told)):
            await Agent(program(code), agents.configs["a"]).run()
        assert children() == {}

    played(tmp_path, scenario)
