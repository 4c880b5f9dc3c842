"""A round's sum in the world: folded in its own thread behind the accepts, then made a model.

Where the aggregation looks at each update nothing is folded: the files stay until the round is over
and are read in blocks when it closes.

Invariants: every accepted update is folded once, however often it is named; the model is on disk
before anybody says that the round is committed.
"""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.protocol import tracing
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.tensors import model_differences
from fedloom.server.context import World
from fedloom.server.engine import RoundKind
from fedloom.server.ledger import Row
from fedloom.server.metrics.log_buffer import about
from fedloom.server.metrics.meters import timed
from fedloom.server.planning import limits
from fedloom.server.planning.round_plan import RoundPlan, task_seed
from fedloom.server.planning.spec import RunSpec
from fedloom.server.rounds import fold
from fedloom.server.rounds.background_tasks import Pending
from fedloom.server.rounds.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.server.storage.model_store import ModelStore
from fedloom.strategies import (
    Means,
    Params,
    Partial,
    State,
    Strategy,
    privacy,
    reduced,
)
from fedloom.strategies.state import slots_to_arrays, state_from_arrays, state_to_arrays

log = logging.getLogger(__name__)


def state_note(models: ModelStore, strategy: Strategy, state: State) -> dict[str, Any]:
    """Store a strategy's state and what clients get of it; what the ledger notes of both."""
    note: dict[str, Any] = {"step": state.step, "arrays": "", "sent": None}
    if state.slots:
        note["arrays"] = models.save(state_to_arrays(state), {})
    if sent := slots_to_arrays(strategy.sends(state)):
        digest = models.save(sent, {})
        note["sent"] = [digest, models.path(digest).stat().st_size]
    return note


def digests_in(note: str | None) -> set[str]:
    """Every file that the ledger's note of a strategy's state names."""
    found: dict[str, Any] = json.loads(note or "{}") or {}
    told = found.get("told") or {"model": [""], "differences": []}
    named = {found.get("arrays") or "", (found.get("sent") or [""])[0], told["model"][0]}
    named.update(digest for _, digest, _ in told["differences"])
    return named - {""}


def first_note(models: ModelStore, spec: RunSpec, model: str) -> str | None:
    """Store the state before the first round; None where it begins with the first update."""
    strategy = spec.build_strategy()
    state = strategy.init(models.params(model), spec.seed)
    return json.dumps(state_note(models, strategy, state)) if state.slots else None


class RoundSum:
    """The sum of one round.

    Args:
        plan: of the round.
        world: shared parts.
    """

    def __init__(self, plan: RoundPlan, world: World) -> None:
        self._plan = plan
        self._world = world
        self._checkpoint: Path = world.spool.path(f"{plan.run}.{plan.number}..sum")
        self._folder = fold.Folder(self._empty(), set())
        self._folding = Pending()
        self._error: Exception | None = None
        self._finishing = False
        self._is_sum = plan.spec.build_strategy().needs == "sum"

    def _empty(self) -> Partial:
        spec = self._plan.spec
        return Partial(limits.sums(spec, self._plan.manifest), spec.exponent())

    async def restore(self, accepted: Iterable[Row]) -> None:
        """Go on from the last checkpoint with what was accepted since."""
        self._folder = await self._world.in_fold(fold.restore, self._checkpoint, self._empty)
        for update in accepted:
            self.add(update["client"], update["file"], update["staleness"] or 0)

    def add(self, client: str, file: str, staleness: int = 0) -> None:
        """Fold an accepted update soon; `file` is empty where it has no tensors."""
        if file and self._is_sum:
            self._folding.start(self._fold(client, file, self._factor(staleness)))

    def _factor(self, staleness: int) -> float:
        buffer = self._plan.spec.buffer_config()
        return 1.0 if buffer is None else buffer.staleness(staleness)

    async def _fold(self, client: str, file: str, factor: float) -> None:
        try:
            above = tracing.current()
            done = await self._world.in_fold(self._fold_in_thread, client, file, factor, above)
        except Exception as error:
            number, told = self._plan.number, about(client, *self._plan.key)
            log.exception("round %d: the update of %s does not fold", number, client, extra=told)
            self._error = error
            return
        for name in done:
            self._world.spool.release(name)

    def _fold_in_thread(self, client: str, file: str, factor: float, above: str) -> list[str]:
        if client in self._folder.folded:
            return []
        spool = self._world.spool
        span = self._world.tracer.span("fold", above, client=client)
        with span, timed(self._world.meters.fold_s):
            due = self._folder.fold(client, spool.path(file), spool.header(file), factor)
        crossing("fold.after")
        return self._folder.save(self._checkpoint) if due else []

    async def finish(self, accepted: Iterable[Row]) -> tuple[str, str | None, int]:
        """The next model from all accepted updates, stored.

        Returns:
            Its digest, the note of the strategy's state for the ledger, and its size in bytes.

        Raises:
            TooFewUpdatesError: the aggregation needs others; another round may have them.
            Exception: whatever the strategy raised, or an update could not be folded.
        """
        accepted = list(accepted)
        if self._finishing:  # what is in memory may be half used up: what is stored counts
            await self.stop()
            self._error = None
            await self.restore(())
        self._finishing = True
        for update in accepted:
            self.add(update["client"], update["file"], update["staleness"] or 0)
        await self._folding.settled()
        if self._error is not None:
            raise self._error
        plan = self._plan
        # A private round has noise even where nobody sent anything: else that would be told.
        nothing = plan.stream is None and not any(update["file"] for update in accepted)
        if plan.kind is RoundKind.EVALUATE or nothing:
            return plan.model, plan.strategy_state, plan.manifest.size_bytes
        return await self._world.in_fold(self._finish_in_thread, accepted)

    def _finish_in_thread(self, accepted: Iterable[Row]) -> tuple[str, str | None, int]:
        plan, models = self._plan, self._world.models
        strategy = plan.spec.build_strategy()
        params = models.params(plan.model)
        state = (
            strategy.init(params, plan.spec.seed)
            if plan.strategy_state is None
            else self._load_state()
        )
        new, state = self._step(strategy, state, params, accepted)
        crossing("commit.model")
        digest = models.save(new, plan.manifest.dtypes)
        note = json.dumps(self._save_state(strategy, state) | self._tell(new))
        crossing("commit.stored")
        return digest, note, models.path(digest).stat().st_size

    def _step(
        self, strategy: Strategy, state: State, params: Params, accepted: Iterable[Row]
    ) -> tuple[dict[str, NDArray[Any]], State]:
        plan = self._plan
        release = limits.release(plan.spec, plan.manifest)
        if release is None or plan.stream is None:
            return strategy.finish(state, params, self._means(strategy, state, accepted))
        total, number, stream = self._folder.partial.drain(), plan.number, plan.stream
        return privacy.finish(strategy, release, state, params, total, round=number, stream=stream)

    def _means(self, strategy: Strategy, state: State, accepted: Iterable[Row]) -> Means:
        if self._is_sum:
            return self._folder.partial.drain()
        spool = self._world.spool
        stored = [
            StoredUpdate(row["client"], spool.path(row["file"]), spool.header(row["file"]))
            for row in accepted
            if row["file"]
        ]
        specs = limits.sums(self._plan.spec, self._plan.manifest)
        return reduced(strategy, state, SpoolUpdates(specs, stored))

    def _load_state(self) -> State:
        note = json.loads(self._plan.strategy_state or "")
        if not note["arrays"]:
            return State(step=note["step"], slots={})
        arrays: Params = self._world.models.params(note["arrays"])
        return state_from_arrays(arrays)

    def _save_state(self, strategy: Strategy, state: State) -> dict[str, Any]:
        note = state_note(self._world.models, strategy, state)
        release = limits.release(self._plan.spec, self._plan.manifest)
        if release is not None:
            note["clip"] = release.clip(privacy.memory_of(release, state))
        return note

    def _tell(self, new: Params) -> dict[str, Any]:
        """Store the difference that brings clients near the new model, and where it brings them."""
        plan, models = self._plan, self._world.models
        codec = plan.spec.build_broadcast()
        if codec is None:
            return {}
        base, size = plan.given
        seed = task_seed(plan.spec.seed, plan.number, "")
        made = model_differences.make(models.params(base), new, plan.manifest, codec, seed)
        digest = models.save(made.result, plan.manifest.dtypes)
        if digest == base:
            return {"told": {"model": [base, size], "differences": plan.differences}}
        step = models.save(made.arrays, made.dtypes)
        steps = [*plan.differences, (base, step, models.path(step).stat().st_size)]
        size = models.path(digest).stat().st_size
        # As many as are together shorter than the model itself.
        while len(steps) > 1 and sum(length for _, _, length in steps) > size:
            del steps[0]
        return {"told": {"model": [digest, size], "differences": steps}}

    def clean(self, files: Iterable[str] | None = None) -> None:
        """The round is over: its checkpoint and its spool files are no longer needed.

        Args:
            files: those of its updates, where clients are still at work on the round's model;
                None for every file of the round.
        """
        self._checkpoint.unlink(missing_ok=True)
        if files is None:
            self._world.spool.release_round(*self._plan.key)
            return
        for name in files:
            if name:
                self._world.spool.release(name)

    async def stop(self) -> None:
        """Let what is being folded end; the spool holds the rest."""
        self._folding.cancel()
        await self._folding.settled()
