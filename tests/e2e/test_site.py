"""A site of two ranks in rounds of a real server: the server sees one client."""

import asyncio
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from fedloom.client.torch import TorchClient, parameters
from support import site
from support.agents import Agents, pass_deadline, result, submit, until
from support.federation import Federation
from support.marks import sampled
from support.site_cases import cross_entropy, data, linear

pytestmark = pytest.mark.e2e

CODE = Path(site.__file__).parent / "site_client.py"
TRAIN = {"epochs": 2, "batch_size": 10, "learning_rate": 0.1}


def play(tmp_path, scenario):
    """Run a scenario against a separate server."""

    async def main():
        (tmp_path / "server").mkdir()
        federation = Federation(tmp_path / "server")
        await federation.start()
        agents = Agents(federation, tmp_path)
        try:
            async with asyncio.timeout(2 * site.PATIENCE_S):
                await scenario(federation, agents)
        finally:
            await agents.stop()
            await federation.stop()

    asyncio.run(main())


async def start(federation, agents, *, enrolled=False, size=2, **environment):
    """Enrol a site, start its ranks and wait until it is connected; returns the ranks."""
    if not enrolled:
        await agents.enrol("site")
    config = agents.directory / "site" / "client.toml"
    run = ("-m", "fedloom.cli.main", "client", "run", f"{CODE}:client", "--config", config)
    # Only rank 0 needs the settings: the others get the path of a missing file.
    others = (*run[:-1], agents.directory / "nothing.toml")
    ranks = site.start_each([run, *[others] * (size - 1)], environment=environment)
    fleet = federation.contexts.fleet
    async with asyncio.timeout(site.PATIENCE_S):  # two interpreters load torch first
        while fleet.get("site") is None and ranks[0].poll() is None:
            await asyncio.sleep(0.01)
    assert ranks[0].poll() is None, site.finish(ranks)
    return ranks


async def finished(federation, run):
    """Wait until a run has ended; ranks on a busy machine take a while."""
    async with asyncio.timeout(site.PATIENCE_S):
        while federation.server.runs.get(run) is not None:
            await asyncio.sleep(0.01)
    await federation.settled()


async def ended(ranks):
    """Exit codes and outputs, without blocking the server's event loop."""
    return await asyncio.to_thread(site.finish, ranks)


def initial():
    return {name: np.array(value) for name, value in parameters(linear()).items()}


@pytest.mark.long
def test_a_site_gives_the_results_of_one_process(tmp_path):
    """Training and evaluation by two ranks are equal to 1e-5; SIGTERM ends both."""

    async def scenario(federation, agents):
        ranks = await start(federation, agents)
        try:
            cohort = {"goal": 1, "quorum": 1}
            run = await submit(federation, initial(), cohort=cohort, train=TRAIN, evaluate=True)
            await finished(federation, run)
            of_site, rounds = result(federation, run), federation.ledger.list_rounds(run)
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
            codes, outputs = await ended(ranks)
            assert codes == [0, 0], outputs
        finally:
            for rank in ranks:
                rank.kill()
            await ended(ranks)

        alone = TorchClient(linear(), data(103, 1), cross_entropy, evaluate=data(301, 2))
        await agents.stop()
        await agents.start("site", alone)
        again = await submit(federation, initial(), cohort=cohort, train=TRAIN, evaluate=True)
        await federation.ended(again)
        for name, wanted in result(federation, again).items():
            np.testing.assert_allclose(of_site[name], wanted, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(rounds, federation.ledger.list_rounds(again), strict=True):
            for what in ("training", "evaluation"):
                got, wanted = getattr(ours, what), getattr(theirs, what)
                assert bool(got) == bool(wanted)
                if wanted:
                    assert got["num_examples"] == wanted["num_examples"]
                    assert got["values"] == pytest.approx(wanted["values"], abs=1e-5)
        assert not (tmp_path / "nothing.toml").exists()

    play(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("fault", sampled(["die", "hang"], 2))
def test_a_lost_rank_fails_the_task_and_ends_the_site(tmp_path, fault):
    """The server gets the reason; every process ends, so that a launcher can restart the site."""

    async def scenario(federation, agents):
        # It also limits the time between the starts of the ranks.
        ranks = await start(federation, agents, FAULT=fault, FEDLOOM_SITE_TIMEOUT_S="20")
        cohort = {"goal": 1, "quorum": 1, "deadline_s": 60.0}
        run = await submit(federation, initial(), cohort=cohort, train=TRAIN)
        number = federation.server.runs.get(run).round.plan.number

        def reason():
            rows = federation.ledger.cohort(run, number)
            return [r.reason for r in rows if r.phase == "failed"]

        await until(reason)
        assert "lost a rank of this site of 2" in reason()[0]
        if fault == "hang":
            ranks[1].kill()
        codes, _ = await ended(ranks)
        assert codes == [5, -signal.SIGKILL]

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_killed_site_resumes_from_its_checkpoint(tmp_path):
    """After SIGKILL of all ranks no epoch is trained twice; the model has the same bits."""

    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        settings = {"FAULT": "slow", "BEGUN": str(begun), "FEDLOOM_INTERRUPTIONS_CHECKPOINT_S": "0"}
        asked = {"cohort": {"goal": 1, "quorum": 1, "patience_s": 60.0}, "seed": 5}
        asked["train"] = {**TRAIN, "epochs": 4}
        kept = agents.directory / "site" / "client-state" / "checkpoints"
        ranks = await start(federation, agents, **settings)
        run = await submit(federation, initial(), **asked)
        await until(lambda: list(kept.glob("*.checkpoint")))
        for rank in ranks:
            rank.kill()
        codes, _ = await ended(ranks)
        assert codes == [-signal.SIGKILL] * 2
        ranks = await start(federation, agents, enrolled=True)
        try:
            await finished(federation, run)
            again = await submit(federation, initial(), **asked)
            await finished(federation, again)
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
            codes, outputs = await ended(ranks)
        assert codes == [0, 0], outputs
        for output in outputs:
            (said,) = re.findall(r"training resumes after step (\d+)", output)
            assert int(said) > 0
            assert int(said) % 11 == 0
        for name, wanted in result(federation, again).items():
            assert result(federation, run)[name].tobytes() == wanted.tobytes()
        assert list(kept.glob("*")) == []

    play(tmp_path, scenario)


@pytest.mark.long
def test_the_loss_of_rank_0_ends_the_others_with_an_error(tmp_path):
    """During a training, without waiting for a timeout."""

    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        ranks = await start(federation, agents, FAULT="slow", BEGUN=str(begun))
        train = {**TRAIN, "epochs": 10_000}
        await submit(federation, initial(), cohort={"goal": 1, "quorum": 1}, train=train)
        await until(begun.exists)
        ranks[0].kill()
        codes, outputs = await ended(ranks)  # FEDLOOM_SITE_TIMEOUT_S is 300 s, and patience 60
        assert codes == [-signal.SIGKILL, 5], outputs
        assert "lost a rank of this site of 2" in outputs[1].splitlines()[-1]

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path):
    """The error names the setting; the next run of the same site succeeds."""

    async def scenario(federation, agents):
        ranks = await start(federation, agents)
        try:
            cohort = {"goal": 1, "quorum": 1}
            odd = await submit(
                federation, initial(), cohort=cohort, train={**TRAIN, "batch_size": 5}
            )

            def reason():
                return [r.reason for r in federation.ledger.cohort(odd, 1) if r.reason]

            await until(reason)
            assert "batch_size to 4" in reason()[0]
            await federation.server.runs.command(odd, "stop")
            run = await submit(federation, initial(), cohort=cohort, train=TRAIN)
            await finished(federation, run)
            assert federation.ledger.run(run).state == "finished"
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
            await ended(ranks)

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_stop_signal_ends_the_step_on_all_ranks(tmp_path):
    """During a training every rank ends with exit code 0, and nothing is sent."""

    async def scenario(federation, agents):
        begun = tmp_path / "begun"
        ranks = await start(federation, agents, FAULT="slow", BEGUN=str(begun))
        train = {**TRAIN, "epochs": 10_000}
        run = await submit(federation, initial(), cohort={"goal": 1, "quorum": 1}, train=train)
        await until(begun.exists)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        codes, outputs = await ended(ranks)
        assert codes == [0, 0], outputs
        assert federation.ledger.run(run).committed == 0
        assert not federation.ledger.accepted(run, 1)

    play(tmp_path, scenario)


@pytest.mark.long
def test_torchrun_starts_and_restarts_a_site(tmp_path):
    """The documented command line; a lost rank costs a task, not the site."""

    async def scenario(federation, agents):
        await agents.enrol("site")
        config = agents.directory / "site" / "client.toml"
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1")
        port = ("--master-port", site.steady_port())
        run_ = ("-m", "fedloom.cli.main", "client", "run", f"{CODE}:client", "--config", config)
        environment = {"FAULT": "die"}
        (launched,) = site.start_each(
            [(*launcher, *port, *run_)], environment=environment, bare=True
        )
        try:
            fleet = federation.contexts.fleet
            await until(lambda: fleet.get("site") is not None)
            before = fleet.get("site")
            cohort = {"goal": 1, "quorum": 1, "deadline_s": 600.0}
            run = await submit(
                federation, initial(), cohort=cohort, train={**TRAIN, "epochs": 1, "batch_size": 50}
            )
            ledger = federation.ledger

            def failed():
                return [m.phase for m in ledger.cohort(run, 1)] == ["failed"]

            def finished():
                return ledger.run(run).state == "finished"

            await until(lambda: failed() or finished())
            if failed():  # else torchrun ended rank 0 before it could report
                # No other client takes the place, and a site that is about to end declines.
                await until(lambda: fleet.get("site") not in (None, before))
                pass_deadline(federation, run)
            await until(finished)
        finally:
            output = await stopped(launched)
        assert "lost a rank of this site of 2" in output

    play(tmp_path, scenario)


async def stopped(launched):
    """End the processes that torchrun started; returns their output."""
    if launched.poll() is None:
        launched.send_signal(signal.SIGTERM)
    return (await ended([launched]))[1][0]
