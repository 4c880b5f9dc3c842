"""The best model of a run and its early end: a simulation and a real server choose alike."""

import asyncio
import signal
from dataclasses import replace

import numpy as np
import pytest

from fedloom.cli.connection.api_client import Control
from fedloom.simulation.api import simulate
from fedloom.simulation.training.simulator import Simulation
from support.agents import played, submit, until
from support.curve_client import Counter, CurveClient, settings
from support.experiments import experiment, population
from support.marks import sampled
from support.stage import Stage, wait

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MODEL = {"w": np.zeros(4, np.float32)}
CASES = {
    # name: (curve, [best], evaluate, round of the best, rounds committed, finished early)
    "ties": ("5 3 3 3 2", {"patience": 2}, True, 1, 4, True),
    "ends": ("5 4 3 2 1", {"patience": 2}, True, 4, 5, False),
    "holes": ("- - 3 - 4 - 2", {"patience": 3}, True, 2, 6, True),
    "missing": ("- - - - -", {"patience": 3}, True, None, 3, True),
    "delta": ("5 4.5 4 3.5 3", {"patience": 9, "min_delta": 1.0}, True, 3, 5, False),
    "rising": (
        "0.1 0.5 0.4 0.5 0.45 0.9", {"metric": "accuracy", "patience": 3}, True, 1, 5, True,
    ),
    # Rounds 1, 3, 5 train; 2, 4, 6 evaluate their models, and not the first one.
    "after": ("1 3 2 2 2 1", {"patience": 2}, "after", 3, 8, True),
    "marked": ("5 3 4 4 4", {}, True, 1, 5, False),
}  # fmt: skip


def simulated(curve, best, evaluate):
    described = experiment(
        client=CurveClient, data=population(sizes=(5, 5), test=0),
        **settings(curve, **best) | {"evaluate": evaluate},
    )  # fmt: skip
    return replace(described, model=Counter)


async def run_of(federation, agents, curve, best, evaluate=True):
    for name in ("ann", "bob"):
        if name not in agents.tasks:
            await agents.start(name, CurveClient())
    return await submit(federation, MODEL, **settings(curve, **best) | {"evaluate": evaluate})


def without_digest(mark):
    return mark and {name: value for name, value in mark.items() if name != "model"}


@pytest.mark.parametrize("case", CASES)
def test_simulation_and_server_make_the_same_choice(tmp_path, case):
    """The same best model, to its bits, the same last round and the same reason."""
    curve, best, evaluate, number, committed, early = CASES[case]
    here = simulate(simulated(curve, best, evaluate), out=tmp_path / "out", show=False)

    async def scenario(federation, agents):
        run = await run_of(federation, agents, curve, best, evaluate)
        await federation.ended(run)
        found = await asyncio.to_thread(Control(federation.directory).get, "runs", run)
        rounds = [r for r in federation.ledger.list_rounds(run) if r.state == "committed"]
        models = {row.round: row.digest for row in federation.ledger.list_models(run)}
        return federation.ledger.run(run), found, rounds, models

    row, found, rounds, models = played(tmp_path / "served", scenario)
    assert (row.state, bool(row.reason)) == ("finished", early)
    assert (
        [r.number for r in rounds]
        == [r.round for r in here.records]
        == list(range(1, committed + 1))
    )
    assert row.reason == here.enough
    assert here.stopped == ""
    assert without_digest(row.best) == here.best_model
    assert found["best"] == row.best
    assert row.best["round"] == number
    if number is None:
        assert row.best["model"] is None
        assert here.best_params is None
        assert not (tmp_path / "out" / "best.safetensors").exists()
    else:
        trained = number if evaluate is True else (number + 1) // 2
        assert here.best_params["w"].tolist() == [trained] * 4
        assert row.best["model"] == models[number]
        assert row.best["value"] == float(curve.split()[trained])


def test_bad_metrics_refuse_the_evaluations_of_a_simulation():
    """No update counts, so three rounds in a row are abandoned, and nothing is the best."""
    result = simulate(simulated("nan 2", {"patience": 3}, True), show=False)
    assert [record.state for record in result.records] == ["abandoned"] * 3
    assert "Expected a finite metric 'loss', got nan" in result.records[0].reason
    assert result.best_model is None or result.best_model["round"] is None


def test_a_resumed_simulation_has_the_same_best_model(tmp_path):
    """Stopped after any round: the best model comes from the checkpoint, also an earlier one."""
    described = simulated("5 3 4 4 2 3 3 3 1", {"patience": 3}, True)
    whole = Simulation(described)
    list(whole.rounds())
    for killed in range(1, 8):
        path = tmp_path / f"{killed}.safetensors"
        first = Simulation(described, path)
        for record in first.rounds():
            if record.round == killed:
                first.save()
                break
        second = Simulation(described, path, resume=True)
        rest = [record.round for record in second.rounds()]
        assert (second.progress, second.reason) == (whole.progress, whole.reason)
        assert second.best["w"].tolist() == whole.best["w"].tolist() == [4.0] * 4
        assert rest == list(range(killed + 1, 9))


def test_a_rollback_takes_back_the_best_of_undone_rounds(tmp_path):
    """The model of round 3 is no longer the best; the run continues and ends by its patience."""

    async def scenario(federation, agents):
        run = await run_of(federation, agents, "5 4 4 1 4 4 4 4", {"patience": 3})
        await federation.ended(run)
        before = federation.ledger.run(run)
        await federation.server.runs.roll_back(run, 2)
        between = federation.ledger.run(run)
        await agents.stop()
        await federation.stop()
        await federation.start()  # derives the best again
        for name in ("ann", "bob"):
            await agents.start(name, CurveClient())
        await federation.server.runs.command(run, "resume")
        await until(lambda: federation.ledger.run(run).state == "finished")
        return before, between, federation.ledger.run(run)

    before, between, after = played(tmp_path, scenario)
    assert (before.best["round"], before.best["measured_in"], before.last_round) == (3, 4, 7)
    assert before.reason == "loss has not improved on 1 (round 3) in 3 evaluations"
    # Rounds 1 and 2 count: they measured the models of rounds 0 and 1.
    assert (between.best["round"], between.best["value"], between.best["stale"]) == (1, 4.0, 0)
    # Rounds 8, 9, … measure the models of rounds 2, 8, 9, …: 4, 1, 4, 4, 4.
    assert (after.best["round"], after.best["measured_in"], after.last_round) == (8, 9, 12)


def test_the_best_model_is_never_pruned(tmp_path):
    """With one model kept, its file stays while the run goes on; a former best one goes."""

    async def scenario(federation, agents):
        run = await run_of(federation, agents, "5 4 3 4 4 4 4 4", {"patience": 5})
        await federation.ended(run)
        rows = federation.ledger.list_models(run)
        federation.ledger.mark_pruned(1)
        kept = {row.round for row in federation.ledger.list_models(run) if row.pruned is None}
        return federation.ledger.run(run), [row.round for row in rows], kept

    row, made, kept = played(tmp_path, scenario)
    assert made == list(range(8))
    assert row.best["round"] == 2
    assert kept == {0, 2, 7}


PLACES = ("round.closing", "commit.model", "commit.stored", "commit.ledger")


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server that is killed, and two devices that stay."""
    with Stage(tmp_path_factory.mktemp("kills"), ("ann", "bob")) as stage:
        for name in ("ann", "bob"):
            stage.start(name, script=stage_script())
        yield stage


def stage_script():
    from support import curve_client

    return curve_client.__file__


@pytest.mark.parametrize(
    ("place", "crossing"), sampled([(place, n) for n in (2, 3, 4) for place in PLACES], 4)
)
def test_a_killed_server_makes_the_same_choice(stage, place, crossing):
    """SIGKILL in the round that measures the best model, and in those that end the run.

    Models 0 to 3 evaluate to 5, 3, 4, 4: round 2 measures the best one, round 4 ends the run.
    """
    stage.stop_server()
    stage.start_server(FEDLOOM_KILL=f"{place}:{crossing}")
    stage.online(2)
    run = stage.submit(MODEL, **settings("5 3 4 4 9 9", patience=2))
    assert stage.server.wait(60) == -signal.SIGKILL
    stage.start_server()
    stage.finished(run)
    row = stage.row(run)
    wait(lambda: stage.row(run)["live"] is None, "the run to be forgotten")
    best, rounds = row["best"], stage.rounds(run)
    assert [number for number, _ in rounds] == [1, 2, 3, 4]
    assert row["reason"] == "loss has not improved on 3 (round 1) in 2 evaluations"
    assert (best["round"], best["value"], best["measured_in"], best["stale"]) == (1, 3.0, 2, 2)
    assert best["model"] == row["rounds"][0]["model_out"]
