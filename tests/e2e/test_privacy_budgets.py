"""Privacy budgets on a real server: what counts, what is refused, and who is not drawn."""

import asyncio
import re

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.privacy_budget import reserved, spent
from fedloom.server.rounds.manager import NoBudgetError
from fedloom.server.spending.privacy_ledger import read_book
from fedloom.server.storage.pruning import prune
from support.agents import Adder, Held, played, submit, until
from support.scene import Scene

dp = pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.e2e

START = {"w": np.zeros((4, 3), np.float32)}
NAMES = ("ada", "bob", "cyd")
DELTA = 1e-3
TABLE = {"clip": 0.5, "noise_multiplier": 10.0, "delta": DELTA}
POISSON = {**TABLE, "sampling": "poisson", "population": 2}
GOAL = {"goal": 3, "quorum": 3}


def play(tmp_path, scenario, names=NAMES):
    """Run a scenario against a separate server with these clients."""

    async def scene(federation, agents):
        for name in names:
            await agents.start(name, Adder(0.1))
        await scenario(federation, agents)

    played(tmp_path, scene)


async def private(federation, rounds, cohort=GOAL, **table):
    return await submit(federation, START, rounds=rounds, cohort=cohort, privacy={**TABLE, **table})


async def finished(federation, rounds, **table):
    run = await private(federation, rounds, **table)
    await federation.ended(run)
    return run


def gaussian(rounds, noise=10.0):
    """Epsilon of so many rounds, by dp-accounting alone."""
    return dp.get_epsilon_gaussian(noise / np.sqrt(rounds), DELTA)


def _cohort(federation, run, number):
    return {row.client for row in federation.ledger.cohort(run, number)}


def figures(federation, name):
    """What a client has spent, and what it will have, at DELTA."""
    book = read_book(federation.ledger, [])
    mine = book.facts.member_of.get(name, frozenset())
    return spent(book.runs, mine, DELTA), reserved(book.runs, mine, DELTA)


async def set_budget(federation, epsilon, label="", **more):
    ledger = federation.ledger
    wish = {"allow_public": False, "who": "ann", **more}
    ledger.set_privacy_budget(label, epsilon, DELTA, **wish)
    await federation.server.runs.apply_budgets()


@pytest.mark.long
def test_runs_over_the_same_clients_add_up(tmp_path):
    """By their mechanisms: two runs of 2 and 3 rounds cost as much as one of 5."""

    async def scenario(federation, _):
        await finished(federation, 2)
        assert figures(federation, "ada") == (gaussian(2), gaussian(2))
        await finished(federation, 3)
        for name in NAMES:
            assert figures(federation, name)[0] == pytest.approx(gaussian(5))

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_run_beyond_the_budget_is_refused(tmp_path):
    """With the figures, and what would fit; what fits is then accepted, and no more."""

    async def scenario(federation, _):
        await set_budget(federation, gaussian(5) * 1.001)
        await finished(federation, 2)
        with pytest.raises(UsageError) as refused:
            await private(federation, 4)
        said = str(refused.value)
        assert "the privacy budget of all clients" in said
        assert "for 3 of 3 clients, such as ada" in said
        assert f"spent {gaussian(2):.4g}" in said
        assert f"4 rounds of this run {gaussian(6):.4g}" in said
        assert "3 rounds fit" in said
        assert len(federation.ledger.list_runs()) == 1
        assert not [p for p in (federation.directory / "noise").iterdir() if "test" in p.name][1:]
        await finished(federation, 3)
        with pytest.raises(UsageError, match="no round fits"):
            await private(federation, 1)

    play(tmp_path, scenario)


@pytest.mark.long
def test_of_two_runs_at_once_one_passes(tmp_path):
    """The plan of the first is reserved before the second is checked."""

    async def scenario(federation, _):
        await set_budget(federation, gaussian(5) * 1.001)
        asked = [private(federation, 3), private(federation, 3)]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in ended].count(NoBudgetError) == 1
        [run] = [each for each in ended if isinstance(each, str)]
        await federation.ended(run)
        assert figures(federation, "bob")[0] == pytest.approx(gaussian(3))

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_stopped_run_keeps_what_it_released_and_frees_the_rest(tmp_path):
    """While it is active its whole plan is reserved, also of clients that it has not drawn."""

    async def scenario(federation, agents):
        held = Held(0.1)
        await agents.stop("cyd")
        await agents.start("cyd", held)
        run = await private(federation, 50)
        await until(held.begun.is_set)
        held.let_go.set()
        await until(lambda: federation.ledger.run(run).committed >= 2)
        assert figures(federation, "ada")[1] == pytest.approx(gaussian(50))
        await federation.server.runs.command(run, "stop")
        await federation.ended(run)
        done = federation.ledger.run(run).committed
        assert done < 50
        assert figures(federation, "ada") == pytest.approx((gaussian(done), gaussian(done)))

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_secret_draw_counts_for_all_who_could_be_drawn(tmp_path):
    """Also for those whose coin drew them in no round; a client that was away spends nothing."""

    async def scenario(federation, agents):
        await agents.stop("cyd")
        cohort = {"goal": 1, "candidates": 2}
        run = await submit(federation, START, rounds=1, cohort=cohort, privacy=POISSON)
        await federation.ended(run)
        drawn = {row.client for row in federation.ledger.cohort(run, 1)}
        assert drawn != {"ada", "bob", "cyd"}
        costs = {name: figures(federation, name)[0] for name in NAMES}
        assert costs["ada"] == costs["bob"] > 0
        assert costs["cyd"] == 0

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_client_that_comes_under_a_budget_later_is_not_drawn(tmp_path):
    """By a label, whose budget it has spent: not even by a round that waits to open."""

    async def scenario(federation, agents):
        await finished(federation, 3)
        ledger, runs = federation.ledger, federation.server.runs
        await set_budget(federation, gaussian(4), label="site=north")
        ledger.set_labels("ada", {"site": "north"})
        await runs.apply_budgets()
        with pytest.raises(UsageError, match=r"label site=north.*for 1 of 1 client, such as ada"):
            await private(federation, 2)
        ledger.set_labels("ada", {"site": None})
        await agents.stop("bob", "cyd")
        run = await private(federation, 2, cohort={"goal": 2, "quorum": 2})
        await until(lambda: "ada" in federation.server.runs.get(run).round.engine.candidates)
        ledger.set_labels("ada", {"site": "north"})
        await runs.apply_budgets()
        for name in ("bob", "cyd"):
            await agents.start(name, Adder(0.1))
        await federation.ended(run)
        assert [_cohort(federation, run, number) for number in (1, 2)] == 2 * [{"bob", "cyd"}]

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_barred_client_is_drawn_again_when_there_is_room(tmp_path):
    """A raised budget takes effect at once, without a restart or a reconnection."""

    async def scenario(federation, agents):
        await agents.stop("cyd")
        await finished(federation, 2, cohort={"goal": 2, "quorum": 2})
        await set_budget(federation, 100.0)
        run = await private(federation, 2)  # waits for a third client
        await set_budget(federation, gaussian(3))
        await agents.start("cyd", Adder(0.1))
        fleet = federation.contexts.fleet
        await agents.stop("ada")
        await until(lambda: fleet.get("ada") is None)
        await agents.start("ada", Adder(0.1))
        await until(lambda: "ada" in fleet.available())
        candidates = federation.server.runs.get(run).round.engine.candidates
        await until(lambda: "cyd" in candidates)
        assert list(candidates) == ["cyd"]  # ada came back, and is still barred
        bar = federation.server.runs.bars[run]
        assert ("ada" in bar, "bob" in bar, "cyd" in bar) == (True, True, False)
        assert federation.ledger.run(run).last_round == 0
        await set_budget(federation, gaussian(4) * 1.001)
        await federation.ended(run)
        assert figures(federation, "ada")[0] == pytest.approx(gaussian(4))

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_run_without_privacy_is_refused_under_a_budget(tmp_path):
    """Unless the budget allows it; the clients that it covers are then in it."""

    async def scenario(federation, _):
        await set_budget(federation, 5.0)
        with pytest.raises(UsageError, match=r"Expected a run with \[privacy\].*3 clients"):
            await submit(federation, START, cohort=GOAL)
        await set_budget(federation, 5.0, allow_public=True)
        await federation.ended(await submit(federation, START, cohort=GOAL))
        assert figures(federation, "ada") == (0, 0)

    play(tmp_path, scenario)


@pytest.mark.long
def test_what_was_spent_survives_a_leave_and_a_return(tmp_path):
    """Under the same name; also the pruning of models, and a restart of the server."""

    async def scenario(federation, agents):
        await finished(federation, 3)
        await agents.stop("ada")
        federation.ledger.revoke("ada")
        (agents.directory / "ada").rename(agents.directory / "old")
        await agents.enrol("ada")
        await agents.start("ada", Adder(0.1))
        await prune(federation.contexts, 0)
        await federation.stop()
        await federation.start()
        assert figures(federation, "ada")[0] == pytest.approx(gaussian(3))
        await set_budget(federation, gaussian(4))
        with pytest.raises(UsageError, match="for 3 of 3 clients"):
            await private(federation, 2)
        for name in ("ada", "bob", "cyd"):
            federation.ledger.set_hold(name, "quarantine", "")
        run = await private(federation, 2, cohort={"goal": 1})
        assert "ada" in federation.server.runs.bars[run]  # also when its quarantine ends

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_stopped_run_is_not_revived_beyond_the_budget(tmp_path):
    """By a rollback, or by resuming after the budget was lowered."""

    async def scenario(federation, _):
        runs = federation.server.runs
        first = await private(federation, 30)
        await until(lambda: federation.ledger.run(first).committed >= 1)
        await runs.command(first, "stop")
        await federation.ended(first)
        await set_budget(federation, gaussian(29))
        with pytest.raises(UsageError, match="has room for"):
            await runs.roll_back(first, 0)
        assert federation.ledger.run(first).state == "stopped"
        done = federation.ledger.run(first).committed
        second = await private(federation, 28 - done)
        await runs.command(second, "pause")
        await set_budget(federation, gaussian(max(done, 1)) * 1.0001)
        with pytest.raises(UsageError, match="has room for"):
            await runs.command(second, "resume")
        assert federation.server.runs.get(second).engine.state.value == "paused"

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_kill_and_a_prune_keep_what_was_spent(tmp_path):
    """The server is killed between two runs; the second one is refused by API and audited."""
    names = ("oak", "elm")
    with Scene(tmp_path, names) as scene:
        spec = {
            "cohort": {"goal": 2, "quorum": 2},
            "privacy": TABLE,
            "evaluate": False,
            "config": {},
        }
        settings = scene.state / "server.toml"
        text = settings.read_text()
        assert "keep_models" in text
        settings.write_text(re.sub(r"(?m)^keep_models = .*$", "keep_models = 1", text))
        run = scene.submit(rounds=3, **spec)
        scene.until(run, 3)
        with scene.stopped_server():
            pass
        budget = {"epsilon": gaussian(5), "delta": DELTA}
        scene.control.post("privacy", "budgets", body=budget)
        found = scene.control.get("privacy", "clients", "oak")
        assert found["spent"] == pytest.approx(gaussian(3))
        with pytest.raises(UsageError, match=r"spent.*2 rounds fit"):
            scene.submit(rounds=3, **spec)
        [refused, *_] = scene.control.get("audit", action="run.submit.failed")["entries"]
        assert "the privacy budget of all clients" in refused["detail"]
        [entry] = scene.control.get("audit", action="privacy-budget.set")["entries"]
        assert (entry["subject"], "epsilon" in entry["detail"]) == ("all clients", True)
