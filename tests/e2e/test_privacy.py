"""A private run on a real server: its claim, noise and budget, also across a restart."""

import asyncio
import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.errors import Code, UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.trust.noise_stream import keyed
from fedloom.server.planning import limits
from fedloom.server.planning.spec import parse
from fedloom.server.planning.state_note import StateNote
from fedloom.strategies import DELTA, Full, State, privacy, weight_units
from support.agents import Adder, played, result, submit, until

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.e2e

START = {"w": np.zeros((4, 3), np.float32), "b": np.zeros(5, np.float64)}
TABLE = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}
STEPS = {"ada": 1.0, "bob": -2.0, "cyd": 0.01}


def play(tmp_path, scenario):
    """Run a scenario against a separate server with three clients."""

    async def scene(federation, agents):
        for name, step in STEPS.items():
            await agents.start(name, Adder(step, num_examples=7))
        await scenario(federation, agents)

    played(tmp_path, scene)


def expected(federation, run, rounds, took_part=None):
    """The model from the run's key and its clients' steps, without the server's rounds.

    Without `took_part`, a function of the round's number, the draw is computed as well.
    """
    spec = parse(federation.ledger.run(run).spec)
    manifest = read_manifest(federation.directory / "initial.safetensors")
    key = (federation.directory / "noise" / f"{run}.key").read_bytes()
    release, strategy = limits.release(spec, manifest), spec.build_strategy()
    model, state = dict(START), State()
    for number in range(1, rounds + 1):
        partial = limits.empty_sum(spec, manifest)
        for client in (
            cohort_of(spec, number, keyed(key)) if took_part is None else took_part(number)
        ):
            step = STEPS[client]
            deltas = [
                (model[n] + np.asarray(step, model[n].dtype)).astype(model[n].dtype) - model[n]
                for n in sorted(model)
            ]
            clipped, _ = privacy.clip(deltas, 0.5)
            for name, values in zip(sorted(model), clipped, strict=True):
                partial.add_array((DELTA, name), Full(), weight_units(1.0), values)
        model, state = privacy.finish(
            strategy, release, state, model, partial, round=number, stream=keyed(key)
        )
    return model


def cohort_of(spec, number, stream):
    """The clients of a round in which all three attend."""
    settings, names = spec.build_privacy(), sorted(STEPS)
    if settings.sampling == "none":
        return names
    goal, population = spec.round_config().goal, settings.population
    places = privacy.drawn(stream, number, names, goal=goal, population=population)
    return [names[place] for place in places]


@pytest.mark.long
def test_a_private_run_is_clipped_noised_and_accounted(tmp_path):
    """The model follows from the key; the ledger has claim and epsilon, but no metrics."""

    async def scenario(federation, _):
        cohort = {"goal": 3, "quorum": 3}
        run = await submit(federation, START, rounds=2, cohort=cohort, privacy=TABLE)
        await federation.ended(run)
        model, wanted = result(federation, run), expected(federation, run, 2)
        for name in START:
            np.testing.assert_array_equal(model[name], wanted[name])
        assert np.abs(model["w"]).max() < 2.0  # steps of -2 were clipped; noise is about 1/6
        row = federation.ledger.run(run)
        claim = row.privacy
        assert claim["delta"] == 1e-3
        assert "only the server has" in claim["randomness"]
        rounds = federation.ledger.list_rounds(run)
        assert [r.privacy["epsilon"] for r in rounds] == [
            parse(row.spec).privacy_plan().epsilon(n) for n in (1, 2)
        ]
        assert rounds[-1].privacy["epsilon"] == claim["epsilon"]
        assert not any(r.training or r.evaluation for r in rounds)
        reported = list(federation.ledger.reported_metrics(run, 1))
        assert reported
        assert all(row.training["num_examples"] == 0 for row in reported)
        key = federation.directory / "noise" / f"{run}.key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert len(key.read_bytes()) == 32

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_restart_replays_the_noise(tmp_path):
    """After a stop between accepting and closing, the round has the same noise."""

    async def scenario(federation, agents):
        cohort = {"goal": 3, "quorum": 3}
        await agents.stop("cyd")
        run = await submit(federation, START, rounds=2, cohort=cohort, privacy=TABLE)
        await agents.start("cyd", Adder(STEPS["cyd"]))
        await until(lambda: len(federation.ledger.accepted(run, 1)) >= 1)
        await federation.stop()
        await federation.start()
        await federation.ended(run)
        wanted = expected(federation, run, 2)
        for name, value in result(federation, run).items():
            np.testing.assert_array_equal(value, wanted[name])

    play(tmp_path, scenario)


@pytest.mark.long
def test_participations_are_limited_over_restarts(tmp_path):
    """Each client in two of six rounds, two others between; the model follows from key and ledger.

    The noise of two earlier rounds is read from files of their own. A rollback is refused.
    """

    async def scenario(federation, agents):
        table = {**TABLE, "mechanism": "dp_bandmf", "separation": 3, "participations": 2}
        run = await submit(federation, START, rounds=6, cohort={"goal": 1}, privacy=table)

        def took_part(number):
            return [row.client for row in federation.ledger.accepted(run, number)]

        for stopped_after in (2, 4):
            await until(lambda after=stopped_after: took_part(after))
            await federation.stop()
            await federation.start()
        await federation.ended(run)
        order = [client for number in range(1, 7) for client in took_part(number)]
        assert sorted(order[:3]) == sorted(STEPS)
        assert order == order[:3] * 2
        wanted = expected(federation, run, 6, took_part)
        for name, value in result(federation, run).items():
            np.testing.assert_array_equal(value, wanted[name])
        note = StateNote.read(federation.ledger.run(run).strategy_state)
        assert sorted(note.noise) == [5, 6]
        assert note.digests >= set(note.noise.values())
        with pytest.raises(UsageError, match="dp_bandmf, whose noise is on the sum"):
            await federation.server.runs.roll_back(run, 3)

    play(tmp_path, scenario)


@pytest.mark.long
def test_poisson_rounds_ask_whom_their_coins_draw(tmp_path, caplog):
    """Of two expected clients three attend: rounds of none to three are committed, with noise.

    The log warns of the larger steps. A restart in the middle changes no draw: the model follows
    from the key alone.
    """

    async def scenario(federation, agents):
        table = {**TABLE, "sampling": "poisson", "population": 2}
        await agents.stop("cyd")
        run = await submit(
            federation, START, rounds=10, cohort={"goal": 1, "candidates": 3}, privacy=table
        )
        await agents.start("cyd", Adder(STEPS["cyd"]))
        await until(lambda: len(federation.ledger.list_rounds(run)) >= 3)
        await federation.stop()
        await federation.start()
        await federation.ended(run)
        ledger, spec = federation.ledger, parse(federation.ledger.run(run).spec)
        key = (federation.directory / "noise" / f"{run}.key").read_bytes()
        sizes = set()
        for number in range(1, 11):
            drawn = cohort_of(spec, number, keyed(key))
            assert sorted(row.client for row in ledger.cohort(run, number)) == drawn
            assert sorted(row.client for row in ledger.accepted(run, number)) == drawn
            sizes.add(len(drawn))
        assert len(sizes) >= 2
        assert "3 clients attend round 10, 1.5 times privacy.population = 2" in caplog.text
        wanted = expected(federation, run, 10)
        for name, value in result(federation, run).items():
            np.testing.assert_array_equal(value, wanted[name])

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_run_ends_at_its_budget_with_the_reason(tmp_path):
    """Of fifty rounds two are affordable; the status shows the claim and the spent epsilon."""

    async def scenario(federation, _):
        plan = privacy.plan(privacy.Privacy(**TABLE), goal=3, rounds=50)
        budget = (plan.epsilon(2) + plan.epsilon(3)) / 2
        table = {**TABLE, "budget": budget}
        run = await submit(federation, START, rounds=50, cohort={"goal": 3}, privacy=table)
        await federation.ended(run)
        row = federation.ledger.run(run)
        assert (row.state, row.committed) == ("finished", 2)
        assert "privacy budget is spent" in row.reason
        where = ["--dir", str(federation.directory)]
        runner = CliRunner()
        shown = await asyncio.to_thread(runner.invoke, main, ["run", "status", run, *where])
        assert "privacy: epsilon" in shown.output
        assert "anyone who sees the models" in shown.output
        told = await asyncio.to_thread(
            runner.invoke, main, ["run", "status", run, *where, "--json"]
        )
        status = json.loads(told.output)
        assert status["privacy"]["budget"] == budget
        assert status["rounds"][-1]["privacy"]["epsilon"] <= budget

    play(tmp_path, scenario)


@pytest.mark.long
def test_the_claim_of_a_run_is_shown_before_it_starts(tmp_path):
    """`run describe` starts nothing; `run submit` prints the claim first."""

    async def scenario(federation, _):
        await submit(federation, START, cohort={"goal": 3})  # leaves initial.safetensors there
        spec = tmp_path / "run.toml"
        spec.write_text(
            "rounds = 1\ncohort = {goal = 3}\ntrain = {epochs = 1, learning_rate = 0.1}\n"
            "privacy = {clip = 0.5, target_epsilon = 8.0, delta = 1e-3}\n"
        )
        where = ["--dir", str(federation.directory)]
        runner, before = CliRunner(), len(federation.ledger.list_runs())
        shown = await asyncio.to_thread(runner.invoke, main, ["run", "describe", str(spec), *where])
        assert "(epsilon 8, delta 0.001) after 1 rounds" in shown.output, shown.output
        assert "norm of 0.5, enforced by the server" in shown.output
        assert len(federation.ledger.list_runs()) == before
        model = str(federation.directory / "initial.safetensors")
        words = ["run", "submit", str(spec), "--model", model, *where]
        shown = await asyncio.to_thread(runner.invoke, main, words)
        assert shown.output.index("Privacy: (epsilon") < shown.output.index("is running")

    play(tmp_path, scenario)


@pytest.mark.long
def test_the_server_enforces_the_clip(tmp_path, monkeypatch):
    """An unclipped update is refused, and the round continues without it."""

    async def scenario(federation, _):
        honest = Guard.protect
        monkeypatch.setattr(
            Guard,
            "protect",
            lambda self, settled, *a, **k: (
                settled if k["seed"] == cheat else honest(self, settled, *a, **k)
            ),
        )
        cheat = None
        table, cohort = {**TABLE}, {"goal": 3, "deadline_s": 600.0}
        cheat = task_seed(0, 1, "bob")
        run = await submit(federation, START, cohort=cohort, privacy=table)
        await federation.ended(run)  # nobody replaces bob, so the round waits for no other
        await until(lambda: federation.ledger.list_refusals(run, 10))  # stored in batches
        refusals = federation.ledger.list_refusals(run, 10)
        assert [(r.client, r.code) for r in refusals] == [("bob", Code.NORM_TOO_LARGE)]
        assert len(federation.ledger.accepted(run, 1)) == 2

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_run_without_its_noise_key_fails(tmp_path):
    """With another key the claim would not hold; the run fails with the reason."""

    async def scenario(federation, agents):
        await agents.stop("cyd")
        run = await submit(federation, START, cohort={"goal": 3}, privacy=TABLE)
        await federation.stop()
        (federation.directory / "noise" / f"{run}.key").unlink()
        await federation.start()
        row = federation.ledger.run(run)
        assert row.state == "failed"
        assert "key of the run's noise" in row.reason
        with pytest.raises(UsageError):
            await submit(federation, START, privacy={**TABLE, "clip": 0.0})

    play(tmp_path, scenario)
