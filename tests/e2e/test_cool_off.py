"""A client that fails again and again: shown as failing, and without offers for some time."""

import asyncio

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.trust.noise_stream import keyed
from fedloom.strategies import privacy
from support.agents import Adder, Held, played, submit, until
from support.patience import PATIENCE_S
from support.scene import Scene, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MODEL = {"w": np.zeros(4, np.float32)}
TWO = {"cohort": {"goal": 2, "quorum": 1, "patience_s": 60.0}}
ONE = {"cohort": {"goal": 1, "quorum": 1, "patience_s": 60.0}}


class Faulty(Adder):
    """Raises in its first tasks."""

    def __init__(self, failures=10**6):
        super().__init__()
        self.left = failures

    def train(self, params, task):
        if self.left > 0:
            self.left -= 1
            raise ValueError("no examples of class 7")
        return super().train(params, task)


class NotFinite(Adder):
    """Sends updates that the server refuses."""

    def train(self, params, task):
        return {name: np.full_like(value, np.nan) for name, value in params.items()}, 1, {}


async def get(federation, *path, **query):
    """A document of the API, from a thread as the server uses the test's event loop."""
    return await asyncio.to_thread(Control(federation.directory).get, *path, **query)


async def named(federation, state):
    found = await get(federation, "clients", state=state)
    return [client["name"] for client in found["clients"]]


def counts(federation):
    """Recent failures by client."""
    return {name: each.count for name, each in federation.ledger.failures().items()}


def asked(federation, run, client):
    """The phases of a client in the rounds of a run."""
    rounds = federation.ledger.list_rounds(run)
    members = [m for r in rounds for m in federation.ledger.members(run, r.number)]
    return [m.phase for m in members if m.client == client]


@pytest.mark.parametrize(
    ("client", "words"),
    [(Faulty(), "no examples of class 7"), (NotFinite(), "not_finite")],
    ids=["raises", "is refused"],
)
def test_a_failing_client_cools_off_until_its_release_also_after_a_restart(tmp_path, client, words):
    """Two failures in a row are enough here; the others train on meanwhile."""

    async def scenario(federation, agents):
        await agents.start("ann", Adder())
        await agents.start("cid", Adder())
        await agents.start("bob", client)
        run = await submit(federation, MODEL, rounds=12, **TWO)
        await federation.ended(run)
        before = await get(federation, "clients", "bob")
        alerts = (await get(federation, "overview"))["alerts"]
        lists = [await named(federation, state) for state in ("failing", "cooling", "idle")]
        first = asked(federation, run, "bob")
        await federation.stop()
        await federation.start()
        for name in ("ann", "bob", "cid"):
            await until(lambda name=name: federation.contexts.fleet.get(name) is not None)
        after = await get(federation, "clients", "bob")
        second = await submit(federation, MODEL, rounds=6, **TWO)
        await federation.ended(second)
        post = Control(federation.directory).post
        seen = await asyncio.to_thread(post, "clients", "bob", "release", preview="true")
        done = await asyncio.to_thread(post, "clients", "bob", "release")
        third = await submit(federation, MODEL, rounds=1, cohort={"goal": 3, "quorum": 1})
        await federation.ended(third)
        await federation.settled()
        return (
            before, alerts, lists, first, after, asked(federation, second, "bob"), seen, done,
            asked(federation, third, "bob"), await get(federation, "clients", "bob"),
        )  # fmt: skip

    rules = {"failing_after": 2, "cool_off_s": 3600.0}
    (before, alerts, lists, first, after, second, seen, done, third, last) = played(
        tmp_path, scenario, clients=rules
    )
    assert len(first) == 2
    assert (before["state"], before["failures"]) == ("cooling", 2)
    assert before["cools_until"] == pytest.approx(before["last_error"]["at"] + 3600.0)
    assert words in before["last_error"]["text"]
    assert before["last_error"]["round"] >= 2
    assert lists == [["bob"], ["bob"], ["ann", "bob", "cid"]]
    [alert] = [alert for alert in alerts if alert["client"] == "bob"]
    assert "bob fails again and again" in alert["what"]
    assert words in alert["what"]
    assert {k: after[k] for k in ("state", "failures", "last_error", "cools_until")} == {
        k: before[k] for k in ("state", "failures", "last_error", "cools_until")
    }
    assert second == []
    assert "gets offers again at once" in seen["consequence"]
    assert (done["changed"], done["state"], done["failures"]) == (True, "idle", 0)
    assert len(third) == 1
    assert (last["failures"], last["state"]) == (1, "idle")


def test_a_pause_grows_with_each_failure_and_ends_with_successes(tmp_path):
    """A client alone: its rounds wait for it. Times are those of the ledger."""

    async def scenario(federation, agents):
        await agents.start("bob", Faulty(failures=2))
        run = await submit(federation, MODEL, rounds=2, evaluate=False, **ONE)
        for failures in (1, 2):
            await until(lambda n=failures: counts(federation) == {"bob": n})
            await federation.server.runs.command(run, "abort")
        await federation.ended(run)
        rounds = federation.ledger.list_rounds(run)
        members = [m for r in rounds for m in federation.ledger.members(run, r.number)]
        return members, await get(federation, "clients", "bob")

    rules = {"failing_after": 1, "cool_off_s": 0.5}
    members, bob = played(tmp_path, scenario, clients=rules)
    assert [m.phase for m in members] == ["failed", "failed", "reported", "reported"]
    first, second, third, _ = members
    assert second.offered_at - first.ended_at > 0.45
    assert third.offered_at - second.ended_at > 0.95
    assert (bob["failures"], bob["cools_until"], bob["state"]) == (0, None, "idle")
    assert "no examples of class 7" in bob["last_error"]["text"]


def test_a_run_that_waits_for_clients_that_cool_off_says_how_many(tmp_path):
    """A private run counts none: it may draw them."""

    async def scenario(federation, agents):
        await agents.start("bob", Faulty())
        run = await submit(federation, MODEL, rounds=1, **ONE)
        await until(lambda: counts(federation) == {"bob": 1})
        await federation.server.runs.command(run, "stop")
        await federation.ended(run)
        public = await submit(federation, MODEL, rounds=1, **ONE)
        table = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}
        cohort = {"goal": 2, "quorum": 2}
        private = await submit(federation, MODEL, rounds=1, cohort=cohort, privacy=table)
        runs = federation.server.runs
        return [
            [runs.get(run).status()["clients_cooling"], runs.get(run).round.status()["available"]]
            for run in (public, private)
        ]

    pytest.importorskip("dp_accounting")
    rules = {"failing_after": 1, "cool_off_s": 3600.0}
    assert played(tmp_path, scenario, clients=rules) == [[1, 0], [0, 1]]


def test_a_kill_of_the_server_ends_no_pause(tmp_path):
    """By SIGKILL while a round is open; the pause is the same one, and no round asks the client."""

    def settings(state):
        with (state / "server.toml").open("a") as file:
            file.write("\n[clients]\nfailing_after = 2\ncool_off_s = 3600.0\n")

    def bad():
        found = scene.control.get("clients", "bad-ash")
        return {key: found[key] for key in ("state", "failures", "last_error", "cools_until")}

    with Scene(tmp_path / "scene", ("oak", "elm", "bad-ash"), settings) as scene:
        cohort = {"goal": 2, "quorum": 1, "deadline_s": 120.0}
        run = scene.submit(rounds=40, cohort=cohort, config={"delay_s": 0.1})
        wait_for(lambda: bad()["state"] == "cooling", "it does not cool off")
        before, asked = bad(), scene.control.get("clients", "bad-ash")["asked"]
        with scene.stopped_server():
            pass
        assert bad() == before
        scene.until(run, scene.run(run)["rounds_committed"] + 5)
        assert scene.control.get("clients", "bad-ash")["asked"] == asked == 2


def test_an_operators_cancellation_is_no_failure(tmp_path):
    """A quarantine ends the task as failed; the client did nothing wrong."""

    async def scenario(federation, agents):
        slow = Held()
        await agents.start("bob", slow)
        await agents.start("ann", Adder())
        run = await submit(federation, MODEL, rounds=1, **TWO)
        assert await asyncio.to_thread(slow.begun.wait, PATIENCE_S)
        post = Control(federation.directory).post
        await asyncio.to_thread(post, "clients", "bob", "quarantine")
        slow.let_go.set()
        await federation.ended(run)
        return asked(federation, run, "bob"), await get(federation, "clients", "bob")

    phases, bob = played(tmp_path, scenario)
    assert phases == ["failed"]
    assert (bob["failures"], bob["last_error"]) == (0, None)


def test_a_secret_draw_sees_clients_that_cool_off(tmp_path):
    """Its cohorts are those that the coins of all three clients draw, failing or not."""
    pytest.importorskip("dp_accounting")

    async def scenario(federation, agents):
        for name in ("ann", "cid"):
            await agents.start(name, Adder())
        await agents.start("bob", Faulty())
        table = {
            "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3, "sampling": "poisson",
            "population": 3,
        }  # fmt: skip
        cohort = {"goal": 1, "candidates": 3}
        run = await submit(federation, MODEL, rounds=20, cohort=cohort, privacy=table)
        await federation.ended(run)
        stream = keyed((federation.directory / "noise" / f"{run}.key").read_bytes())
        names = ["ann", "bob", "cid"]
        drawn = []
        for number in range(1, 21):
            places = privacy.drawn(stream, number, names, goal=1, population=3)
            drawn.append([names[place] for place in places])
        cohorts = [
            sorted(row.client for row in federation.ledger.cohort(run, number))
            for number in range(1, 21)
        ]
        return drawn, cohorts, await get(federation, "clients", "bob")

    rules = {"failing_after": 1, "cool_off_s": 3600.0}
    drawn, cohorts, bob = played(tmp_path, scenario, clients=rules)
    assert sum("bob" in each for each in drawn) >= 2  # else this shows nothing
    assert cohorts == drawn
    assert bob["state"] == "cooling"
