"""Rounds as seen by clients and operators: late, lost, silent, paused, aborted, closed."""

import asyncio
import gc
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from fedloom.client import Client, MaskOf, SliceOf, Update
from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.trust import identity
from fedloom.server.pki.authority import _renew_issuer
from fedloom.server.rounds.round_sum import RoundSum
from support.agents import Adder, Held, pass_deadline, played, result, submit, until
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(5, np.float64)}


def rounds_of(federation, run):
    return federation.ledger.list_rounds(run)


def sums():
    """How many sums of rounds this process holds; earlier tests may have left some."""
    gc.collect()
    return sum(type(each) is RoundSum for each in gc.get_objects())


def counted(federation, run):
    """Number of the open round, and how many updates its engine has counted."""
    driver = federation.server.runs.get(run).round
    return driver and (driver.plan.number, driver.engine.cohort.accepted)


def test_a_round_is_the_weighted_mean_of_covered_values(tmp_path):
    """Whole, sliced, masked and absent tensors; uncovered values do not change."""

    class Slicer(Client):
        def train(self, params, task):
            return Update({"w": SliceOf(np.full((2, 1), 4.0), ((1, 3), (0, 1)))}, 3)

    class Masker(Client):
        def train(self, params, task):
            mask = np.zeros((4, 3), bool)
            mask[0] = True
            return Update({"w": MaskOf(np.full((4, 3), 8.0), mask)}, 1)

    class Partial(Client):
        def train(self, params, task):
            return {"w": params["w"] + 1}, 1, {}

    async def scenario(federation, agents):
        await agents.start("slicer", Slicer())
        await agents.start("masker", Masker())
        await agents.start("partial", Partial())
        run = await submit(federation, ZEROS, cohort={"goal": 3, "quorum": 3})
        await federation.ended(run)
        wanted = np.full((4, 3), 1.0, np.float32)
        wanted[1:3, 0] = (3 * 4 + 1 * 1) / 4
        wanted[0] = (8 + 1) / 2
        model = result(federation, run)
        np.testing.assert_array_equal(model["w"], wanted)
        np.testing.assert_array_equal(model["b"], ZEROS["b"])

    played(tmp_path, scenario)


@pytest.mark.long
def test_the_sum_of_a_round_that_is_over_is_freed(tmp_path):
    """While its members attend and wait: a sum takes more memory than the model."""

    async def scenario(federation, agents):
        for name in ("one", "two", "three"):
            await agents.start(name, Adder())
        run = await submit(federation, ZEROS, rounds=8, cohort={"goal": 1, "quorum": 1})
        await federation.ended(run)
        members = [federation.ledger.cohort(run, number) for number in range(1, 9)]
        assert len({member.client for (member,) in members}) > 1

        async def freed():
            while sums() > earlier:
                await asyncio.sleep(0.1)

        try:
            await asyncio.wait_for(freed(), PATIENCE_S)
        except TimeoutError:
            held = [each for each in gc.get_objects() if type(each) is RoundSum]
            pytest.fail(f"held by {[repr(it)[:300] for it in gc.get_referrers(*held)]}")

    earlier = sums()
    played(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize(
    ("weighting", "wanted"), [("examples", 2.5), ("uniform", 2.0), ("client", 1.2)]
)
def test_the_run_determines_the_weights(tmp_path, weighting, wanted):
    """By examples, uniform, or set by the client."""

    class Weighted(Adder):
        def train(self, params, task):
            new, num_examples, metrics = super().train(params, task)
            own = 9.0 if self.step == 1.0 else 1.0
            weight = own if task.weighting == "client" else None
            return Update(new, num_examples, metrics, weight)

    async def scenario(federation, agents):
        await agents.start("light", Weighted(1.0, 1))
        await agents.start("heavy", Weighted(3.0, 3))
        run = await submit(federation, ZEROS, weighting=weighting, cohort={"goal": 2, "quorum": 2})
        await federation.ended(run)
        np.testing.assert_allclose(result(federation, run)["b"], wanted, rtol=1e-12)

    played(tmp_path, scenario)


@pytest.mark.long
def test_automatic_chunk_sizes_give_the_same_mean(tmp_path):
    """With "auto" on both sides the sizes change during the transfer."""

    async def scenario(federation, agents):
        start = {"w": np.arange(4_500_000, dtype=np.float32)}  # 18 MB: longer than a trial
        for name, step in (("a", 1.0), ("b", 3.0)):
            await agents.enrol(name)
            agents.configs[name] = replace(agents.configs[name], chunk_bytes="auto")
            await agents.start(name, Adder(step, 1))
        run = await submit(federation, start, cohort={"goal": 2, "quorum": 2}, rounds=2)
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["w"], start["w"] + 4)
        assert federation.contexts.config.chunk_bytes == "auto"

    played(tmp_path, scenario, chunk_bytes='"auto"')


@pytest.mark.long
def test_the_task_of_a_late_client_is_withdrawn(tmp_path):
    """The goal closes the round; the late client takes part in the next one."""

    async def scenario(federation, agents):
        slow = Held(step=100.0)
        await agents.start("slow", slow)
        await agents.start("fast", Adder())
        run = await submit(federation, ZEROS, rounds=2, cohort={"goal": 1, "over_selection": 2.0})
        await federation.ended(run)
        first, second = rounds_of(federation, run)
        assert (first.accepted, first.state) == (1, "committed")
        assert second.state == "committed"
        np.testing.assert_array_equal(result(federation, run)["b"], 2.0)

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_silent_client_delays_a_round_until_its_deadline(tmp_path):
    """Then a quorum commits the received updates; without a quorum the round is abandoned."""

    async def scenario(federation, agents):
        await agents.start("silent", Held())
        await agents.start("fast", Adder())

        async def one_has_reported(number):
            await until(lambda: counted(federation, run) == (number, 1))
            pass_deadline(federation, run)

        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 1, "deadline_s": 600.0})
        await one_has_reported(1)
        await federation.ended(run)
        (only,) = rounds_of(federation, run)
        assert (only.state, only.accepted) == ("committed", 1)
        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2, "deadline_s": 600.0})
        for number in (1, 2, 3):
            await one_has_reported(number)
        await until(lambda: federation.ledger.run(run).state == "paused")
        states = [(r.state, r.accepted) for r in rounds_of(federation, run)]
        assert states == [("abandoned", 1)] * 3
        assert "quorum not reached" in federation.ledger.run(run).reason
        np.testing.assert_array_equal(result(federation, run)["b"], ZEROS["b"])

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_lost_client_is_replaced_after_its_grace_period(tmp_path):
    """By an idle client."""

    async def scenario(federation, agents):
        names = ["a", "b", "c"]
        clients = {name: Held(step=float(i + 1)) for i, name in enumerate(names)}
        for name, client in clients.items():
            await agents.start(name, client)
        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2, "patience_s": 0.3})
        await until(lambda: sum(c.begun.is_set() for c in clients.values()) == 2)
        lost, kept = [n for n in names if clients[n].begun.is_set()]
        (spare,) = set(names) - {lost, kept}
        await agents.stop(lost)
        await until(clients[spare].begun.is_set)
        for client in clients.values():
            client.let_go.set()
        await federation.ended(run)
        (only,) = rounds_of(federation, run)
        assert (only.state, only.accepted) == ("committed", 2)
        reported = {u.client for u in federation.ledger.accepted(run, 1)}
        assert reported == {kept, spare}

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_offer_that_nobody_answers_is_given_to_another(tmp_path, monkeypatch):
    """A member that reads its offer and says nothing holds no place."""
    monkeypatch.setattr("fedloom.server.engine.config.LEAST_ANSWER_S", 0.3)

    async def scenario(federation, agents):
        silent = await federation.attend(federation.enrol("silent"))
        cohort = {"goal": 2, "quorum": 2, "patience_s": 0.3, "deadline_s": 3600.0, "candidates": 2}
        first = Held()
        await agents.start("first", first)
        run = await submit(federation, ZEROS, cohort=cohort)
        offer = await silent.offer_of(run)
        await until(first.begun.is_set)
        await agents.start("spare", Adder())
        first.let_go.set()
        await federation.ended(run)
        (only,) = rounds_of(federation, run)
        assert (only.state, only.accepted) == ("committed", 2)
        assert {u.client for u in federation.ledger.accepted(run, 1)} == {"first", "spare"}
        phases = {m.client: m.phase for m in federation.ledger.members(run, 1)}
        assert phases.keys() == {"silent", "first", "spare"}
        async with asyncio.timeout(10):
            assert (await silent.withdrawn.get()).task == offer.key

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_client_that_raises_is_replaced_or_left_out(tmp_path):
    """An exception in training code ends only that client's task."""

    class Broken(Client):
        def train(self, params, task):
            raise ZeroDivisionError("no data")

    class Wrong(Client):
        def train(self, params, task):
            return {"nonsense": np.zeros(3)}, 1, {}

    async def scenario(federation, agents):
        await agents.start("broken", Broken())
        await agents.start("wrong", Wrong())
        await agents.start("fine", Adder())
        run = await submit(federation, ZEROS, cohort={"goal": 3, "quorum": 1})
        await federation.ended(run)
        (only,) = rounds_of(federation, run)
        assert (only.state, only.accepted) == ("committed", 1)
        await federation.settled()
        members = {m.client: m for m in federation.ledger.cohort(run, 1)}
        assert members["broken"].phase == "failed"
        assert "ZeroDivisionError: no data" in members["broken"].reason
        assert "nonsense" in members["wrong"].reason

    played(tmp_path, scenario)


def test_pause_holds_a_round_and_resume_lets_it_close(tmp_path):
    """During a pause updates count, but the round does not close and no deadline passes."""

    async def scenario(federation, agents):
        held = Held()
        await agents.start("held", held)
        run = await submit(federation, ZEROS, cohort={"goal": 1, "deadline_s": 600.0})
        await until(held.begun.is_set)
        await federation.server.runs.command(run, "pause")
        assert federation.ledger.run(run).state == "paused"
        held.let_go.set()
        await until(lambda: rounds_of(federation, run)[0].accepted == 1)
        pass_deadline(federation, run)
        assert rounds_of(federation, run)[0].state == "reporting"
        await federation.server.runs.command(run, "resume")
        await federation.ended(run)
        assert rounds_of(federation, run)[0].state == "committed"
        with pytest.raises(UsageError, match="finished"):
            await federation.server.runs.command(run, "pause")

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_operator_aborts_closes_extends_and_stops(tmp_path):
    """An impossible command is refused with the reason."""

    async def scenario(federation, agents):
        command = federation.server.runs.command
        held, fast = Held(), Adder()
        await agents.start("held", held)
        cohort = {"goal": 2, "quorum": 2, "deadline_s": 60.0}
        run = await submit(federation, ZEROS, cohort=cohort)
        await agents.start("fast", fast)
        await until(held.begun.is_set)
        await until(lambda: counted(federation, run) == (1, 1))

        before = rounds_of(federation, run)[0].deadline_at
        await command(run, "extend", 100.0)
        after = rounds_of(federation, run)[0].deadline_at
        assert after - before == pytest.approx(100.0, abs=1.0)

        await command(run, "abort", "wrong data")
        await until(lambda: rounds_of(federation, run)[0].state == "abandoned")
        assert "wrong data" in rounds_of(federation, run)[0].reason

        await until(lambda: len(rounds_of(federation, run)) == 2)
        await until(lambda: counted(federation, run) == (2, 1))
        await command(run, "close")
        await federation.ended(run)
        assert rounds_of(federation, run)[1].state == "committed"
        np.testing.assert_array_equal(result(federation, run)["b"], 1.0)

        other = await submit(federation, ZEROS, rounds=100, cohort=cohort)
        await until(lambda: len(rounds_of(federation, other)) == 1)
        await command(other, "stop")
        await federation.ended(other)
        assert federation.ledger.run(other).state == "stopped"
        with pytest.raises(UsageError, match="stopped"):
            await command(other, "resume")

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_paused_run_stays_paused_over_a_restart(tmp_path):
    """The open round continues from its updates."""

    async def scenario(federation, agents):
        held, fast = Held(2.0), Adder(4.0)
        await agents.start("held", held)
        await agents.start("fast", fast)
        run = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2})
        await until(held.begun.is_set)
        await until(lambda: rounds_of(federation, run)[0].accepted == 1)
        await federation.server.runs.command(run, "pause")
        await federation.server.__aexit__(None, None, None)
        held.let_go.set()
        await federation.start()
        await until(lambda: rounds_of(federation, run)[0].accepted == 2)
        assert rounds_of(federation, run)[0].state == "reporting"
        assert federation.server.runs.get(run).engine.state == "paused"
        await federation.server.runs.command(run, "resume")
        await federation.ended(run)
        np.testing.assert_array_equal(result(federation, run)["b"], 3.0)

    played(tmp_path, scenario)


def test_two_runs_share_a_fleet(tmp_path):
    """A client works for one run at a time, and both runs finish."""

    async def scenario(federation, agents):
        for name in ("a", "b", "c"):
            await agents.start(name, Adder())
        settings = {"rounds": 4, "cohort": {"goal": 2, "quorum": 2}}
        first, second = [await submit(federation, ZEROS, **settings) for _ in range(2)]
        await federation.ended(first)
        await federation.ended(second)
        for run in (first, second):
            assert [r.accepted for r in rounds_of(federation, run)] == [2] * 4
            np.testing.assert_array_equal(result(federation, run)["b"], 4.0)

    played(tmp_path, scenario)


@pytest.mark.long
def test_server_optimizers_and_client_rules_work_over_the_wire(tmp_path):
    """FedAdam with FedProx: the state is kept between rounds, and the client gets the rule."""
    seen = []

    class Curious(Adder):
        def train(self, params, task):
            seen.append((task.rule.name, task.rule.settings(), task.settings.learning_rate))
            return super().train(params, task)

    async def scenario(federation, agents):
        await agents.start("a", Curious())
        run = await submit(
            federation,
            ZEROS,
            rounds=3,
            strategy={"name": "fedadam", "server_learning_rate": 0.1},
            rule={"name": "fedprox", "mu": 0.25},
            train={"epochs": 1, "learning_rate": 0.3, "batch_size": 8, "warmup_rounds": 2},
            cohort={"goal": 1},
        )
        await federation.ended(run)
        assert [s[:2] for s in seen] == [("fedprox", {"mu": 0.25})] * 3
        assert [s[2] for s in seen] == pytest.approx([0.1, 0.2, 0.3])
        mean, square, value = 0.0, 1e-6, 0.0  # Reddi et al. 2021, Algorithm 2, delta = 1
        for _ in range(3):
            mean = 0.9 * mean + 0.1
            square = 0.99 * square + 0.01
            value += 0.1 * mean / (square**0.5 + 1e-3)
        np.testing.assert_allclose(result(federation, run)["b"], value, rtol=1e-9)

    played(tmp_path, scenario)


@pytest.mark.long
def test_models_are_evaluated_before_training_and_at_the_end(tmp_path):
    """The last model is evaluated in a separate round."""

    class Judge(Adder):
        def evaluate(self, params, task):
            return self.num_examples, {"value": float(params["b"][0])}

    async def scenario(federation, agents):
        await agents.start("a", Judge(1.0, 1))
        await agents.start("b", Judge(1.0, 3))
        run = await submit(
            federation, ZEROS, rounds=2, evaluate=True, cohort={"goal": 2, "quorum": 2}
        )
        await federation.ended(run)
        rows = rounds_of(federation, run)
        assert [r.kind for r in rows] == ["train", "train", "evaluate"]
        assert [r.evaluation["values"]["value"] for r in rows] == [0.0, 1.0, 2.0]
        assert rows[-1].evaluation["num_examples"] == 4
        assert rows[0].training["values"]["step"] == 1.0
        models = federation.ledger.list_models(run)
        assert [m.round for m in models] == [0, 1, 2]

    played(tmp_path, scenario)


@pytest.mark.long
def test_certificates_are_renewed_during_a_run(tmp_path):
    """A certificate of some seconds is renewed at two thirds of its life, repeatedly."""

    async def scenario(federation, agents):
        object.__setattr__(federation.contexts.config, "client_certificate_s", 15.0)
        await agents.enrol("a")
        store = agents.configs["a"].state_dir
        serials = set()

        def renewed():
            pem = (store / "identity.pem").read_bytes()
            serials.add(identity.peer_from_pem(pem).serial)
            return len(serials) == 3

        await agents.start("a", Adder())
        await until(renewed)
        peer = identity.peer_from_pem((store / "identity.pem").read_bytes())
        assert peer.not_after > datetime.now(UTC)
        run = await submit(federation, ZEROS, cohort={"goal": 1})
        await federation.ended(run)
        assert federation.ledger.run(run).state == "finished"
        assert not [r for r in federation.refusals() if r.code == "expired"]

    played(tmp_path, scenario)


def test_clients_connect_after_a_renewal_of_the_issuing_authority(tmp_path):
    """Clients send only their leaf; those of the old and the new authority are accepted."""

    async def scenario(federation, agents):
        authority = federation.server.authority
        await agents.start("before", Adder())
        directory = federation.directory / "pki"
        root_key = identity.key_from_pem((directory / "root.key").read_bytes())
        authority._retire(authority._issuer.certificate)
        authority._issuer = _renew_issuer(directory, authority._root, root_key, datetime.now(UTC))
        await agents.start("after", Adder())
        await agents.stop("before")
        await until(lambda: federation.contexts.fleet.get("before") is None)
        await agents.start("before", Adder())
        assert len(federation.contexts.fleet) == 2

    played(tmp_path, scenario)


def test_a_revoked_agent_ends_with_the_reason(tmp_path):
    """The agent stops and does not reconnect."""

    async def scenario(federation, agents):
        await agents.start("a", Adder())
        federation.ledger.revoke("a")
        federation.contexts.fleet.expel("a", Refusal(Code.REVOKED, "revoked by the operator"))
        with pytest.raises(Refusal, match="revoked") as caught:
            async with asyncio.timeout(PATIENCE_S):
                await agents.tasks.pop("a")
        assert caught.value.code is Code.REVOKED

    played(tmp_path, scenario)
