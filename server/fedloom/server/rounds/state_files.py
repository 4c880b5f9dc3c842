"""A run's state on disk: files in the model store, and the ledger's note of them."""

from typing import Any

from fedloom.protocol.crash_points import crossing
from fedloom.protocol.task_description import DifferenceRef, FileRef
from fedloom.protocol.tensors.file_arrays import stored_params
from fedloom.server.planning.advance import Advanced, TrainingState, begin, clip
from fedloom.server.planning.costs import kept_differences
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.state_note import StateNote
from fedloom.server.storage.model_store import ModelStore
from fedloom.strategies import State, Strategy, privacy
from fedloom.strategies.adapters.settings import REST
from fedloom.strategies.state import slots_to_arrays, state_from_arrays, state_to_arrays


def first_note(models: ModelStore, spec: RunSpec, model: str) -> str | None:
    """Store the state before the first round; None where it begins with the first update."""
    strategy = spec.build_strategy()
    state = strategy.init(models.params(model), spec.seed)
    if not state.slots:
        return None
    return StateNote(
        step=state.step,
        arrays=_save_slots(models, state),
        sent=_save_sent(models, strategy, state),
        config=strategy.asks(state),
    ).text()


def load(models: ModelStore, setup: RunSetup, plan: RoundPlan) -> TrainingState:
    """The state from which a round starts; its arrays are mapped from files."""
    model: dict[str, Any] = models.params(plan.model)
    note = plan.note
    if setup.spec.build_adapters().keeps_rest:  # mapped pages of these would count as memory
        lazy = stored_params(models.path(plan.model))
        model |= {name: lazy[name] for name in model if name.endswith(REST)}
    if plan.strategy_state is None:
        strategy = begin(setup, model).strategy
    elif note.arrays:
        strategy = _with_noise(models, note, state_from_arrays(models.params(note.arrays)))
    else:
        strategy = State(step=note.step)
    held = model if plan.given.digest == plan.model else models.params(plan.given.digest)
    return TrainingState(
        model=model,
        strategy=strategy,
        held=held,
        trained=plan.trained,
        participations=plan.participations,
        best=plan.best,
    )


def store(
    models: ModelStore, setup: RunSetup, plan: RoundPlan, after: Advanced
) -> tuple[FileRef, str]:
    """Store the state after a round; returns the model's file and the ledger's note."""
    state = after.state
    crossing("commit.model")
    model = _saved(models, models.save(state.model, plan.manifest.dtypes))
    kept, rest = privacy.parted(state.strategy)
    noise = {
        number: plan.note.noise.get(number) or models.save(tensors, {})
        for number, tensors in kept.items()
    }
    arrays = _save_slots(models, rest)
    sent = _save_sent(models, setup.strategy, state.strategy)
    held, differences = _save_broadcast(models, plan, after)
    note = StateNote(
        step=state.strategy.step,
        arrays=arrays,
        sent=sent,
        clip=clip(setup, state.strategy),
        config=setup.strategy.asks(state.strategy),
        noise=noise,
        held=held,
        differences=differences,
    )
    crossing("commit.stored")
    return model, note.text()


def _with_noise(models: ModelStore, note: StateNote, state: State) -> State:
    kept = {number: models.params(digest) for number, digest in note.noise.items()}
    return privacy.joined(state, kept) if kept else state


def _saved(models: ModelStore, digest: str) -> FileRef:
    return FileRef(digest=digest, size_bytes=models.path(digest).stat().st_size)


def _save_slots(models: ModelStore, state: State) -> str:
    return models.save(state_to_arrays(state), {}) if state.slots else ""


def _save_sent(models: ModelStore, strategy: Strategy, state: State) -> FileRef | None:
    """Store the tensors that clients get beside the model."""
    sent = slots_to_arrays(strategy.sends(state))
    return _saved(models, models.save(sent, {})) if sent else None


def _save_broadcast(
    models: ModelStore, plan: RoundPlan, after: Advanced
) -> tuple[FileRef | None, tuple[DifferenceRef, ...]]:
    """Store the model that clients hold, and its difference from the previous one."""
    made, base = after.difference, plan.given
    if made is None:
        return None, ()
    digest = models.save(after.state.held, plan.manifest.dtypes)
    if digest == base.digest:
        return base, plan.note.differences
    held = _saved(models, digest)
    step = _saved(models, models.save(made.arrays, made.dtypes))
    steps = [*plan.note.differences, DifferenceRef(base=base.digest, file=step)]
    return held, kept_differences(steps, held.size_bytes)
