"""Buffered asynchronous rounds, as seen by clients and operators."""

import numpy as np
import pytest

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.replicas.gate_queues import AcceptedHere
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, Full, Partial, TensorSpec, weight_units
from fedloom.strategies.staleness import discounted, staleness_weighting
from support.agents import Adder, played, result, submit, until
from support.stepped import COHORT, Stepped, hold_commits

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros(3, np.float32), "b": np.zeros(2, np.float64)}


def spooled(federation):
    """The number of updates in the spool, without files kept for reuse."""
    names = [path.name for path in (federation.directory / "spool").iterdir()]
    return sum(not name.startswith("free-") for name in names)


def expected(spec, buffers, initial=ZEROS):
    """The model of a run, computed by hand.

    Args:
        spec: of the run.
        buffers: for each, (step, weight, round of the task) of its updates.
        initial: model.
    """
    run = parse(spec)
    weighting = run.buffer_config().staleness
    specs = {(DELTA, n): TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    strategy = run.build_strategy()
    models, state = {1: dict(initial)}, strategy.init(initial)
    for number, updates in enumerate(buffers, 1):
        partial = Partial(specs, run.exponent())
        for step, weight, origin in updates:
            units = weight_units(weight)
            counted = discounted(units, weighting(number - origin))
            for name, value in models[origin].items():
                delta = (value + value.dtype.type(step)) - value
                partial.add_array((DELTA, name), Full(), units, delta, value_units=counted)
        models[number + 1], state = strategy.finish(state, models[number], partial)
    return models[len(buffers) + 1]


def accepted(federation, run, number):
    """Client, round of the task and staleness of each update in a buffer."""
    rows = federation.ledger.accepted(run, number)
    return [(u.client, u.round, u.staleness) for u in rows]


def rounds_of(federation, run):
    return federation.ledger.list_rounds(run)


def committed(federation, run):
    return sum(r.state == "committed" for r in rounds_of(federation, run))


@pytest.mark.long
@pytest.mark.parametrize("staleness", ["inverse_sqrt", "constant", {"name": "hinge", "b": 1.0}])
def test_a_late_update_counts_in_the_open_buffer(tmp_path, staleness):
    """Two models behind, it is discounted; the model has the computed bits."""

    async def scenario(federation, agents):
        slow, fast = Stepped(100.0, 3), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        settings = {"rounds": 3, "cohort": {**COHORT, "staleness": staleness}}
        run = await submit(federation, ZEROS, **settings)
        for number in (1, 2):
            await until(lambda number=number: fast.at(number))
            fast.turns.release()
        await until(lambda: fast.at(3))
        slow.turns.release()
        await federation.ended(run)
        assert [accepted(federation, run, n) for n in (1, 2, 3)] == [
            [("fast", 1, 0)], [("fast", 2, 0)], [("slow", 1, 2)],
        ]  # fmt: skip
        assert fast.begun == [(1, 0.0), (2, 1.0), (3, 2.0)]
        assert slow.begun == [(1, 0.0)]
        spec = federation.ledger.run(run).spec
        wanted = expected(spec, [[(1.0, 1, 1)], [(1.0, 1, 2)], [(100.0, 3, 1)]])
        model = result(federation, run)
        assert all(model[name].tobytes() == wanted[name].tobytes() for name in wanted)
        factor = staleness_weighting(staleness)(2)
        np.testing.assert_allclose(model["b"], 2 + 100 * factor, rtol=1e-6)
        assert [r.accepted for r in rounds_of(federation, run)] == [1, 1, 1]

    played(tmp_path, scenario)


@pytest.mark.long
def test_many_clients_keep_the_concurrency_and_every_update_counts_once(tmp_path):
    """Eight clients, four at work at a time; the ledger has the whole sum."""

    async def scenario(federation, agents):
        for number in range(8):
            await agents.start(f"c{number}", Adder(float(number), 1 + number))
        cohort = {**COHORT, "goal": 3, "concurrency": 4}
        run = await submit(federation, ZEROS, rounds=6, cohort=cohort, evaluate=True)
        await federation.ended(run)
        rows = rounds_of(federation, run)
        assert [r.kind for r in rows] == ["train"] * 6 + ["evaluate"]
        assert all(r.state == "committed" for r in rows)
        buffers, seen = [], set()
        for number in range(1, 7):
            updates = federation.ledger.accepted(run, number)
            assert len(updates) >= 3
            assert len({u.client for u in updates}) == len(updates)
            assert all(u.staleness == number - u.round for u in updates)
            keys = {(u.round, u.client) for u in updates}
            assert not keys & seen
            seen |= keys
            stored = [federation.ledger.find_update(run, u.round, u.client) for u in updates]
            buffers.append([(float(u.client[1:]), u.weight, u.round) for u in stored])
        wanted = expected(federation.ledger.run(run).spec, buffers)
        model = result(federation, run)
        assert all(model[name].tobytes() == wanted[name].tobytes() for name in wanted)
        assert federation.spool_bytes() == sum(
            p.stat().st_blocks * 512 for p in (federation.directory / "spool").glob("free-*")
        )

    played(tmp_path, scenario)


def test_what_a_gate_has_accepted_counts_when_its_buffer_closes(tmp_path):
    """The driver reads of it then, if nobody has told it; a late word counts in no other buffer."""

    async def scenario(federation, agents):
        names = ("slow", "fast", "third")
        trained = {name: Stepped(1.0) for name in names}
        for name, each in trained.items():
            await agents.start(name, each)
        cohort = {**COHORT, "goal": 2, "concurrency": 3}
        run = await submit(federation, ZEROS, rounds=3, cohort=cohort)
        await until(lambda: all(each.at(1) for each in trained.values()))
        update = AcceptedUpdate(
            run=run, round=1, client="slow", identity="?", file="", size_bytes=0, weight=1.0,
            norm=0.0, training={}, evaluation={}, counts_in=1, gate="g",
        )  # fmt: skip
        assert federation.ledger.accept(update, 9)
        for name in ("fast", "third"):
            trained[name].turns.release()
        await until(lambda: trained["fast"].at(2))
        assert sorted(accepted(federation, run, 1)) == [(name, 1, 0) for name in sorted(names)]
        driver = federation.server.runs.get(run).round
        assert driver.engine.origin("slow") == 2, "it was free, and was asked again"
        here = AcceptedHere(
            run=run, round=1, client="slow", counted=1, staleness=0, file="", devices=None
        )
        driver.accepted(here, here.counted)
        assert driver.engine.cohort.accepted == 0
        assert driver.claims("slow")

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_task_past_max_staleness_is_replaced_by_a_new_one(tmp_path):
    """It is withdrawn; its client works on the newest model instead."""

    async def scenario(federation, agents):
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        run = await submit(federation, ZEROS, rounds=4, cohort={**COHORT, "max_staleness": 1})
        for number in (1, 2):
            await until(lambda number=number: fast.at(number))
            fast.turns.release()
        await until(lambda: slow.at(3))  # not 1: that would be two models behind
        driver = federation.server.runs.get(run).round
        with pytest.raises(Refusal) as stale:
            driver.check_open("slow", 1)
        assert stale.value.code is Code.STALE_ROUND
        with pytest.raises(Refusal) as stale:
            federation.server.runs.round((run, 1))
        assert stale.value.code is Code.STALE_ROUND
        slow.turns.release()
        await until(lambda: slow.at(4))
        slow.turns.release()
        await federation.ended(run)
        assert accepted(federation, run, 3) == [("slow", 3, 0)]
        assert accepted(federation, run, 4) == [("slow", 4, 0)]

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_client_that_drops_out_is_replaced(tmp_path):
    """At once, by an idle client, on the newest model."""

    class Broken(Stepped):
        def train(self, params, task):
            super().train(params, task)
            raise ZeroDivisionError("no data")

    async def scenario(federation, agents):
        broken, fast, spare = Broken(), Stepped(1.0), Stepped(5.0)
        await agents.start("broken", broken)
        await agents.start("fast", fast)
        run = await submit(federation, ZEROS, rounds=3, cohort=COHORT)
        await until(lambda: broken.at(1) and fast.at(1))
        await agents.start("spare", spare)
        fast.turns.release()
        await until(lambda: fast.at(2) or spare.at(2))
        first = fast if fast.at(2) else spare
        broken.turns.release()
        other = spare if first is fast else fast
        await until(lambda: other.at(2))
        other.turns.release()
        await until(lambda: committed(federation, run) == 2)
        first.turns.release()
        await federation.ended(run)
        assert accepted(federation, run, 3)[0][1:] == (2, 1)
        member = {m.client: m for m in federation.ledger.cohort(run, 1)}["broken"]
        assert member.phase == "failed"
        assert "no data" in member.reason

    played(tmp_path, scenario)


@pytest.mark.long
def test_tasks_on_older_models_continue_after_a_restart(tmp_path):
    """The ledger has the tasks at work; those of two rounds continue and count."""

    async def scenario(federation, agents):
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        run = await submit(federation, ZEROS, rounds=3, cohort=COHORT)
        await until(lambda: fast.at(1) and slow.at(1))
        fast.turns.release()
        await until(lambda: fast.at(2))
        await federation.server.__aexit__(None, None, None)
        await federation.start()
        driver = federation.server.runs.get(run).round
        assert (driver.engine.origin("slow"), driver.engine.origin("fast")) == (1, 2)
        await until(lambda: len(federation.contexts.fleet) == 2)
        fast.turns.release()
        await until(lambda: fast.at(3))
        slow.turns.release()
        await federation.ended(run)
        assert [accepted(federation, run, n) for n in (2, 3)] == [
            [("fast", 2, 0)],
            [("slow", 1, 2)],
        ]
        assert slow.begun == [(1, 0.0)]  # it did not start again
        wanted = expected(
            federation.ledger.run(run).spec, [[(1.0, 1, 1)], [(1.0, 1, 2)], [(100.0, 1, 1)]]
        )
        assert result(federation, run)["b"].tobytes() == wanted["b"].tobytes()

    played(tmp_path, scenario)


@pytest.mark.long
def test_operators_pause_close_abort_and_stop_buffers(tmp_path):
    """Commands about a round are refused between two buffers."""

    async def scenario(federation, agents):
        command = federation.server.runs.command
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        cohort = {**COHORT, "goal": 2}
        run = await submit(federation, ZEROS, rounds=100, cohort=cohort)
        await until(lambda: slow.at(1) and fast.at(1))
        fast.turns.release()
        await until(lambda: accepted(federation, run, 1) == [("fast", 1, 0)])
        before = rounds_of(federation, run)[0].deadline_at
        await command(run, "extend", 50.0)
        assert rounds_of(federation, run)[0].deadline_at == pytest.approx(before + 50, abs=1)
        await command(run, "close")
        await until(lambda: fast.at(2))

        await command(run, "pause")
        fast.turns.release()
        slow.turns.release()
        await until(lambda: len(accepted(federation, run, 2)) == 2)
        assert rounds_of(federation, run)[-1].state == "reporting"
        await command(run, "resume")
        await until(lambda: fast.at(3) and slow.at(3))

        await command(run, "abort", "wrong data")
        await until(lambda: fast.at(4) and slow.at(4))
        assert rounds_of(federation, run)[2].state == "abandoned"
        assert "wrong data" in rounds_of(federation, run)[2].reason

        await command(run, "stop")
        await federation.ended(run)
        assert federation.ledger.run(run).state == "stopped"
        np.testing.assert_allclose(result(federation, run)["b"], 1 + (1 + 100 / 2**0.5) / 2, 1e-6)
        other = await submit(federation, ZEROS, cohort=COHORT)  # they are idle again
        await until(lambda: fast.begun[-1] != slow.begun[-1] or fast.at(1))
        fast.turns.release()
        slow.turns.release()
        await federation.ended(other)

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_upload_between_two_buffers_counts_in_the_next(tmp_path, monkeypatch):
    """No upload is refused during a commit."""

    async def scenario(federation, agents):
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        may_commit = hold_commits(monkeypatch)
        run = await submit(federation, ZEROS, rounds=2, cohort=COHORT)
        await until(lambda: slow.at(1) and fast.at(1))
        fast.turns.release()
        driver = federation.server.runs.get(run).round
        await until(lambda: driver.engine.state == "closing")
        before = spooled(federation)
        slow.turns.release()
        await until(lambda: spooled(federation) > before)
        may_commit.set()
        await federation.ended(run)
        assert accepted(federation, run, 2) == [("slow", 1, 1)]

    played(tmp_path, scenario)


@pytest.mark.long
@pytest.mark.parametrize("restart", [False, True])
def test_a_run_paused_between_two_buffers_keeps_its_tasks(tmp_path, monkeypatch, restart):
    """Commands about a buffer are refused; updates that arrive meanwhile count later."""

    async def scenario(federation, agents):
        async def command(*args):
            await federation.server.runs.command(*args)

        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        may_commit = hold_commits(monkeypatch)
        run = await submit(federation, ZEROS, rounds=2, cohort=COHORT)
        other = await submit(federation, ZEROS, rounds=2, cohort=COHORT)
        await until(lambda: slow.at(1) and fast.at(1))
        fast.turns.release()
        await until(lambda: federation.server.runs.get(run).round.engine.state == "closing")
        await command(other, "stop")
        await command(run, "pause")
        may_commit.set()
        await until(lambda: committed(federation, run) == 1)
        await until(lambda: federation.server.runs.get(run).round.engine.state == "committed")
        if restart:
            await federation.server.__aexit__(None, None, None)
            await federation.start()
        for action in ("close", "abort"):
            with pytest.raises(UsageError, match="committed"):
                await command(run, action)
        await until(lambda: not spooled(federation))
        slow.turns.release()
        await until(lambda: spooled(federation))
        assert accepted(federation, run, 2) == []
        await command(run, "resume")
        await federation.ended(run)
        assert accepted(federation, run, 2) == [("slow", 1, 1)]
        assert slow.begun == [(1, 0.0)]

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_run_stopped_between_two_buffers_frees_its_clients(tmp_path, monkeypatch):
    """Their tasks are withdrawn, and another run can use them."""

    async def scenario(federation, agents):
        slow, fast = Stepped(100.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        may_commit = hold_commits(monkeypatch)
        run = await submit(federation, ZEROS, rounds=9, cohort=COHORT)
        await until(lambda: slow.at(1) and fast.at(1))
        fast.turns.release()
        await until(lambda: federation.server.runs.get(run).round.engine.state == "closing")
        await federation.server.runs.command(run, "stop")
        may_commit.set()
        await federation.ended(run)
        assert federation.ledger.run(run).state == "stopped"
        assert committed(federation, run) == 1
        other = await submit(federation, ZEROS, cohort={"goal": 2, "quorum": 2})
        await until(lambda: len(slow.begun) == 2 and len(fast.begun) == 2)
        for client in (slow, fast):
            client.turns.release()
        await federation.ended(other)
        assert federation.ledger.run(other).state == "finished"

    played(tmp_path, scenario)


@pytest.mark.long
def test_error_feedback_continues_after_a_commit(tmp_path):
    """A quarter of the values is sent; the rest is sent with the next update."""

    async def scenario(federation, agents):
        slow, fast = Stepped(1.0), Stepped(1.0)
        await agents.start("slow", slow)
        await agents.start("fast", fast)
        cohort = {**COHORT, "staleness": "constant"}
        top_k = {"up": {"name": "top_k", "fraction": 0.25}}
        params = {"b": np.zeros(256, np.float32)}
        run = await submit(federation, params, rounds=3, cohort=cohort, compression=top_k)
        await until(lambda: slow.at(1) and fast.at(1))
        fast.turns.release()
        await until(lambda: fast.at(2))
        slow.turns.release()
        await until(lambda: slow.at(3))
        slow.turns.release()
        await federation.ended(run)
        assert [accepted(federation, run, n)[0] for n in (1, 2, 3)] == [
            ("fast", 1, 0), ("slow", 1, 1), ("slow", 3, 0),
        ]  # fmt: skip
        assert federation.ledger.last_counted(run, "slow") == 3
        # 64 of 1 each, then 64 of the 192 that slow left out, which have grown to 2.
        assert sorted(set(result(federation, run)["b"].tolist())) == [0.0, 2.0]
        assert result(federation, run)["b"].sum() == 64 + 64 + 2 * 64

    played(tmp_path, scenario)


def test_parts_incompatible_with_buffers_are_refused_at_submission():
    """Each message names the part."""
    table = {"rounds": 1, "cohort": COHORT, "train": {"epochs": 1, "learning_rate": 0.1}}
    assert parse(table).buffer_config().concurrency == 2
    for change, message in [
        ({"mode": "eventually"}, 'cohort.mode as "synchronous" or "buffered"'),
        ({"staleness": "nearly"}, "a staleness weighting, got 'nearly'. Known: constant"),
        ({"over_selection": 2.0}, "over_selection"),
        ({"concurrent": 3}, "Unknown setting 'cohort.concurrent'. Did you mean 'concurrency'"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse({**table, "cohort": {**COHORT, **change}})
    with pytest.raises(UsageError, match="concurrency"):
        parse({**table, "cohort": {"goal": 1, "mode": "buffered"}})
