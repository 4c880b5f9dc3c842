"""A run's state has the same bits after it is stored and loaded between rounds."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.advance import advance
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.state_note import StateNote
from fedloom.server.rounds import state_files
from fedloom.server.storage.model_store import ModelStore
from fedloom.strategies.state import state_to_arrays
from support.run_rounds import PRIVATE, result_of, setup_of, start

RUNS = {
    "fedavg": {},
    "fedadam": {"strategy": {"name": "fedadam"}},
    "scaffold": {"strategy": {"name": "scaffold", "clients": 4}, "weighting": "uniform"},
    "broadcast": {"compression": {"down": {"name": "int8"}}},
    "bfloat16": {"dtype": "BF16", "compression": {"down": {"name": "int8"}}},
    "private": {"privacy": {**PRIVATE, "clip_quantile": 0.5}},
    "banded": {"privacy": {**PRIVATE, "mechanism": "dp_bandmf", "separation": 2}},
    "tree": {"privacy": {**PRIVATE, "mechanism": "dp_ftrl", "restart_every": 3}},
}
DELTAS = [np.linspace(-1, 1, 64), None, np.linspace(0.5, -0.25, 64)]


def first_plan(setup, model):
    return RoundPlan(
        run="run",
        number=1,
        kind=RoundKind.TRAIN,
        trained=0,
        spec=setup.spec,
        model=model,
        strategy_state=None,
        manifest=setup.manifest,
        limits=limits.limits(setup.spec, setup.manifest),
        stream=setup.stream,
    )


def as_bytes(state):
    """Everything in a state, comparable."""
    arrays = {"model": state.model, "held": state.held, "state": state_to_arrays(state.strategy)}
    found = {
        f"{part}/{name}": (array.dtype.str, array.tobytes())
        for part, each in arrays.items()
        for name, array in each.items()
    }
    return found, state.strategy.step, state.trained, state.participations


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_equals_one_in_memory(tmp_path, name):
    """Three rounds, of which the second is empty."""
    setup, models = setup_of(size=64, **RUNS[name]), ModelStore(tmp_path / "models")
    state = start(setup)
    plan = first_plan(setup, models.save(state.model, setup.manifest.dtypes))
    note = state_files.first_note(models, setup.spec, plan.model)
    plan = replace(plan, strategy_state=note)
    for number, delta in enumerate(DELTAS, 1):
        plan = replace(
            plan, number=number, trained=state.trained, participations=state.participations
        )
        loaded = state_files.load(models, setup, plan)
        assert as_bytes(loaded) == as_bytes(state)
        after = advance(setup, loaded, result_of(setup, [delta, delta], number=number))
        state = advance(setup, state, result_of(setup, [delta, delta], number=number)).state
        if after.state.model is not loaded.model:
            model, note = state_files.store(models, setup, plan, after)
            assert model.size_bytes == plan.manifest.size_bytes
            plan = replace(plan, model=model.digest, strategy_state=note)
    assert (
        as_bytes(state_files.load(models, setup, replace(plan, trained=3)))[0]
        == (as_bytes(state)[0])
    )


@pytest.mark.parametrize("name", ["broadcast", "banded"])
def test_every_stored_file_is_named(tmp_path, name):
    """So that pruning keeps the files of the run's state, and finds the others."""
    setup, models = setup_of(size=64, **RUNS[name]), ModelStore(tmp_path / "models")
    state = start(setup)
    plan = first_plan(setup, models.save(state.model, setup.manifest.dtypes))
    after = advance(setup, state, result_of(setup, [DELTAS[0]]))
    model, note = state_files.store(models, setup, plan, after)
    named = StateNote.read(note).digests | {model.digest, plan.model}
    assert {path.stem for path in (tmp_path / "models").iterdir()} == named


def test_the_noise_of_a_round_is_stored_once(tmp_path):
    """And named while the bands reach it: each round writes one file of noise, and drops one."""
    banded = {**PRIVATE, "mechanism": "dp_bandmf", "separation": 3}
    setup, models = setup_of(size=64, privacy=banded), ModelStore(tmp_path / "models")
    plan = first_plan(setup, models.save(start(setup).model, setup.manifest.dtypes))
    named, files = [], set()
    for number in range(1, 5):
        plan = replace(plan, number=number, trained=number - 1)
        stored = [
            state_files.store(models, setup, plan, advance(setup, before, result))
            for before, result in (
                (state_files.load(models, setup, plan), result_of(setup, [0.5], number=number))
                for _ in range(2)  # the second time as after a crash
            )
        ]
        assert stored[0] == stored[1]
        model, text = stored[0]
        plan = replace(plan, model=model.digest, strategy_state=text)
        note = StateNote.read(text)
        named.append(dict(note.noise))
        files |= {*note.noise.values()}
        assert set(note.noise.values()) <= note.digests
        noise = models.params(note.noise[number])
        assert [(name, array.dtype, array.size) for name, array in noise.items()] == [
            ("w", np.int32, 64)
        ]
    assert [sorted(each) for each in named] == [[1], [1, 2], [2, 3], [3, 4]]
    assert named[1][2] == named[2][2]
    assert len(files) == 4
