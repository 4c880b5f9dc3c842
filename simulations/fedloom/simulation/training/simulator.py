"""A simulation from its first round to its last: the server's run engine over simulated rounds.

Invariants: what a round gives depends on the experiment and the rounds before; where it stands is
replaced as a whole, so a simulation that was stopped anywhere goes on to the same bits.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors import model_differences
from fedloom.protocol.tensors.container import narrow, widen, write_params
from fedloom.protocol.updates.compression import update_bytes
from fedloom.server.engine import (
    OpenRound,
    RoundAbandoned,
    RoundCommitted,
    RoundKind,
    Run,
    RunProgress,
    RunState,
    Started,
)
from fedloom.server.planning import limits
from fedloom.server.planning.round_plan import task_seed
from fedloom.simulation.clock.buffer_clock import Flight
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output.history import RoundRecord, spread_of
from fedloom.simulation.training.buffer_trainer import Between, BufferTrainer, TrainedBuffer
from fedloom.simulation.training.checkpoint import Checkpoint
from fedloom.simulation.training.round_trainer import (
    Next,
    Trained,
    examples_of,
    observations,
    stream_of,
)
from fedloom.simulation.training.rule_memory import Memory
from fedloom.simulation.training.spooled_updates import Spooled, check, is_needed
from fedloom.simulation.workers.base import Progress, Report
from fedloom.simulation.workers.setup import Muster, muster
from fedloom.strategies import (
    Params,
    Partial,
    State,
    Strategy,
    TooFewUpdatesError,
    privacy,
    reduced,
)
from fedloom.strategies.metrics import summarize
from fedloom.strategies.selection import History, Observation
from fedloom.strategies.state import slots_to_arrays

CHECKPOINT_S = 10.0
"""Seconds of work that a power cut may cost; the result is the same in any case."""


def _quietly(_: int) -> None:
    """Tell nobody how many clients are done."""


class Simulation:
    """An experiment on its way.

    Args:
        experiment: what to simulate.
        checkpoint: where to keep its standing; None for nowhere.
        resume: go on from there; from the beginning where there is nothing yet.

    Attributes:
        params: the model as it stands, by name.
        reached: the goal of [stop] was reached.

    Raises:
        UsageError: the experiment cannot be run as it is, or was begun with other settings.
    """

    def __init__(
        self, experiment: Experiment, checkpoint: Path | None = None, *, resume: bool = False
    ) -> None:
        check(experiment)
        self.experiment = experiment
        self._path = checkpoint
        self._settings = settings_digest(experiment)
        before = None
        if resume:
            assert checkpoint is not None
            before = Checkpoint.read(checkpoint, self._settings)
            _check_rounds(before, experiment.spec.rounds)
        self.muster: Muster = muster(experiment, None if before is None else before.engine)
        self.params: Params = self.muster.params if before is None else before.params
        self._strategy: Strategy = experiment.spec.build_strategy()
        first = self._strategy.init(self.params, experiment.spec.seed)
        self._state: State = first if before is None else before.state
        self._metrics = experiment.spec.metrics_settings()
        self._policy = experiment.spec.build_selection()
        self._history = History() if before is None else History.from_arrays(before.history)
        self.reached = False if before is None else before.reached
        self._run = Run(
            experiment.spec.run_config(), progress=None if before is None else before.progress
        )
        self._virtual_s, self._spent_s = 0.0, 0.0
        if before is not None:
            self._virtual_s, self._spent_s = before.virtual_s, before.wall_s
        self._held: Params = {} if before is None else before.held
        self._counted = {} if before is None else dict(before.counted)
        self._taken = frozenset[int]() if before is None else before.taken
        self._buffer = experiment.spec.buffer_config()
        self._between = Between()
        if before is not None and before.flight is not None:
            flight = Flight.from_dict(before.flight)
            self._between = Between(flight=flight, versions=before.versions)
        self._memory, self._lent = self._open_memory()
        self._spool = Spooled(experiment, self.muster.sums) if is_needed(experiment) else None
        self._private = experiment.spec.privacy_plan()
        self._release = limits.release(experiment.spec, self.muster.manifest)
        self._stream = stream_of(experiment.spec)
        self._begun = self._saved = time.perf_counter()
        self._standing = self._latest = self._stand()
        self._trainer = BufferTrainer(
            experiment,
            self.muster.crew,
            group=self.muster.group,
            empty=self._empty,
            model_bytes=self.muster.manifest.size_bytes,
            update_bytes=self._update_bytes(),
            history=self._history,
            memory="" if self._memory is None else str(self._memory.folder),
            spool=self._spool,
        )

    @property
    def progress(self) -> RunProgress:
        """How far the run has come."""
        return self._run.progress

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._run.state

    @property
    def reason(self) -> str:
        """Why it paused."""
        return self._run.reason

    def digest(self) -> str:
        """SHA-256 of the model's file, as a server names it."""
        return write_params(_Nowhere(), self.params, self.muster.manifest.dtypes)

    def close(self) -> None:
        """Let the workers go."""
        self.muster.crew.close()
        if self._spool is not None:
            self._spool.close()
        if self._lent is not None:
            self._lent.cleanup()

    def rounds(self, progress: Progress = _quietly) -> Iterator[RoundRecord]:
        """Do the rounds that are left, one at each step.

        A round is part of the standing once the next one is asked for, so whoever is stopped
        while it notes a record is given that record again.
        """
        effects = self._run.handle(Started())
        while not self.reached:
            match effects:
                case [OpenRound(number, kind)]:
                    record, after = self._round(number, kind, progress)
                case _:
                    break
            reached = self._reaches(record)
            if record.state == "committed":
                effects = self._run.handle(RoundCommitted(kind))
            else:
                effects = self._run.handle(RoundAbandoned(record.reason))
            self.params, self._state, self._held = after.params, after.state, after.held
            self._virtual_s, self._counted = after.virtual_s, after.counted
            self._taken = after.taken
            self._between = after.between
            if after.told:
                self._history.add(record.round, after.told)
            self.reached = reached
            self._latest = self._stand()
            yield record
            self._standing = self._latest
            if time.perf_counter() - self._saved > CHECKPOINT_S:
                self._write()
        self._write()

    def save(self, *, noted: bool = True) -> None:
        """Write where the simulation stands.

        Args:
            noted: whether the last record was noted; if not, its round will be done again.
        """
        if noted:
            self._standing = self._latest
        self._write()

    def _empty(self) -> Partial:
        return Partial(self.muster.sums, self.experiment.spec.exponent())

    def _update_bytes(self) -> int:
        scheme, manifest = self.experiment.spec.build_compression(), self.muster.manifest
        return manifest.size_bytes if scheme is None else update_bytes(manifest, scheme.codec)

    def _open_memory(self) -> tuple[Memory | None, "TemporaryDirectory[str] | None"]:
        """Where client rules and codecs remember, and what must be cleaned up at the end."""
        spec = self.experiment.spec
        if not spec.remembers:
            return None, None
        if self.experiment.engine.backend == "ray":
            rule, scheme = self._strategy.rule, spec.build_compression()
            who = f"the client rule {rule.name}"
            if spec.build_personal().remembers:
                who = "[personal]"
            elif scheme is not None and not rule.remembers:
                who = f"the codec {scheme.codec.name}"
            raise UsageError(
                f'Expected engine.backend = "local" with {who}, which keeps files, got "ray".'
            )
        if self._path is not None:
            return Memory(self._path.parent / "memory"), None
        lent = TemporaryDirectory(prefix="fedloom-memory-")
        return Memory(Path(lent.name)), lent

    def _sent(self) -> Params:
        """The model and what comes beside it, as workers get them."""
        model = self._held or self.params
        if not self.muster.received:
            return model
        found = slots_to_arrays(self._strategy.sends(self._state))
        beside = {
            name: found.get(name, np.zeros(spec.shape, spec.dtype))
            for name, spec in self.muster.received.items()
        }
        return {**model, **beside}

    def _tell(self, new: Params, number: int) -> Params:
        """The model that clients hold once they have the difference to near the new one."""
        spec = self.experiment.spec
        codec = spec.build_broadcast()
        if codec is None:
            return {}
        seed = task_seed(spec.seed, number, "")
        held = self._held or self.params
        return model_differences.make(held, new, self.muster.manifest, codec, seed).result

    # ---- a round -----------------------------------------------------------------------------

    def _round(
        self, number: int, kind: RoundKind, progress: Progress
    ) -> tuple[RoundRecord, "_After"]:
        """Do a round and leave everything as it was; returns what it makes of it."""
        begin = time.perf_counter()
        trained = self._run.progress.trained
        done = self._do(self._next(number, trained, kind), progress)
        trained_s = time.perf_counter() - begin
        params, state, test, counted = self.params, self._state, {}, self._counted
        taken = self._taken
        held = self._held
        told: list[Observation] = []
        committed, reason = done.committed, done.play.reason
        stepped = None
        try:
            if committed and kind is RoundKind.TRAIN and self._moves(done):
                stepped = self._step(done, number)
        except TooFewUpdatesError as error:
            committed, reason = False, f"{error}"
        finally:
            if self._spool is not None:
                self._spool.clear()
        if stepped is not None:
            params, state = stepped
            held = self._tell(params, number)
        if committed and kind is RoundKind.TRAIN:
            trained += 1
            if self._private is not None:
                part = {report.client for report in done.reports}
                taken = frozenset(self._private.taken(taken, part, trained))
            if self._memory is not None:
                counted = counted | _counted(done, number)
            test = dict(self._test(params, trained))
            if self._policy.needs:
                told = observations(done, self.experiment.population.names, self._policy)
        between, staleness = Between(), 0.0
        if isinstance(done, TrainedBuffer) and committed:
            between = done.between
            staleness = float(np.mean(done.staleness)) if done.staleness else 0.0
        virtual_s = done.play.end_s
        now = time.perf_counter()
        record = RoundRecord(
            round=number,
            trained=trained,
            kind=kind.value,
            state="committed" if committed else "abandoned",
            reason="; ".join(filter(None, (reason, self._refusals(done)))),
            cohort=len(done.play.cohort),
            accepted=len(done.reports),
            staleness=staleness,
            counts={phase.value: n for phase, n in done.play.counts.items() if n},
            **self._measured(done.reports, trained),
            test=test,
            virtual_s=virtual_s,
            wall_s=self._spent_s + now - self._begun,
            round_wall_s=now - begin,
            clients_per_s=len(done.reports) / trained_s,
            shares=done.shares,
        )
        return record, _After(params, state, held, virtual_s or 0.0, counted, taken, told, between)

    def _do(self, what: Next, progress: Progress) -> Trained:
        if self._buffer is not None and what.kind is RoundKind.TRAIN:
            return self._trainer.run_buffer(
                self._sent(),
                what,
                self._virtual_s,
                progress,
                config=self._buffer,
                before=self._between,
                counted=self._counted,
            )
        return self._trainer.run(
            self._sent(), what, self._virtual_s, progress, counted=self._counted
        )

    def _moves(self, done: Trained) -> bool:
        """Whether a training round changes anything: a private one adds noise in any case."""
        return self._release is not None or any(report.has_tensors for report in done.reports)

    def _step(self, done: Trained, number: int) -> tuple[Params, State]:
        """The model and the state after a round.

        Raises:
            TooFewUpdatesError: the aggregation needs others.
        """
        new, state = self._finish(done, number)
        dtypes = self.muster.manifest.dtypes
        return {name: _as_stored(array, dtypes[name]) for name, array in new.items()}, state

    def _summary(self, reports: Sequence[Report], what: str) -> dict[str, Any]:
        names = self.experiment.population.names
        measured = [(names[report.client], getattr(report, what)) for report in reports]
        parts = [(name, m.num_examples, m.metrics) for name, m in measured]
        return summarize(parts, self._metrics)

    def _finish(self, done: Trained, number: int) -> tuple[Params, State]:
        strategy, release, stream = self._strategy, self._release, self._stream
        state, params, means = self._state, self.params, done.partial.drain()
        if release is not None and stream is not None:
            return privacy.finish(
                strategy, release, state, params, means, round=number, stream=stream
            )
        if done.updates is not None:
            return strategy.finish(state, params, reduced(strategy, state, done.updates))
        return strategy.finish(state, params, means)

    def _next(self, number: int, trained: int, kind: RoundKind) -> Next:
        """The next round, and how long its updates may be where the run is private."""
        if self._release is None:
            return Next(number, trained, kind)
        clip = self._release.clip(privacy.memory_of(self._release, self._state))
        longest = limits.longest(self.experiment.spec, self.muster.manifest, clip)
        names = self.experiment.population.names
        barred = frozenset(names[client] for client in self._taken)
        return Next(number, trained, kind, clip, longest, barred)

    def _measured(self, reports: list[Report], trained: int) -> dict[str, Any]:
        """What is told of a round: the clients' metrics, or what they cost where private."""
        if self._private is not None:
            return {"epsilon": self._private.epsilon(trained)}
        parts = {what: self._summary(reports, what) for what in ("training", "evaluation")}
        return {
            "examples": examples_of(reports),
            **{what: found.get("values", {}) for what, found in parts.items()},
            "spread": spread_of(parts["training"], parts["evaluation"]),
        }

    def _test(self, params: Params, trained: int) -> Mapping[str, float]:
        experiment = self.experiment
        every, test = experiment.test_every, experiment.population.test
        last = trained == experiment.spec.run_config().rounds
        if test is None or not every or (trained % every and not last):
            return {}
        return self.muster.crew.evaluate(params, len(test)).metrics

    def _refusals(self, done: Trained) -> str:
        if not done.refused:
            return ""
        client, reason = min(done.refused.items())
        count, name = len(done.refused), self.experiment.population.names[client]
        return f"{count} update{'s' if count > 1 else ''} refused, such as {name}'s: {reason}"

    def _reaches(self, record: RoundRecord) -> bool:
        unknown = sorted(self.experiment.stop.keys() - record.test.keys())
        if record.test and unknown:
            raise UsageError(
                f"Expected [stop] by what the test gives ({', '.join(record.test)}), "
                f"got {unknown[0]}."
            )
        return any(
            name in record.test
            and (record.test[name] <= value if name == "loss" else record.test[name] >= value)
            for name, value in self.experiment.stop.items()
        )

    # ---- standing ----------------------------------------------------------------------------

    def _stand(self) -> Checkpoint:
        progress = self._run.progress
        if progress.open_kind is not None:
            # The next round is open in the engine, but nothing of it has happened.
            progress = replace(progress, opened=progress.opened - 1, open_kind=None)
        flight = self._between.flight
        return Checkpoint(
            progress=progress,
            params=self.params,
            state=self._state,
            history=self._history.to_arrays(),
            virtual_s=self._virtual_s,
            wall_s=self._spent_s + time.perf_counter() - self._begun,
            settings=self._settings,
            engine=self.muster.kernel,
            reached=self.reached,
            counted=self._counted,
            taken=self._taken,
            flight=None if flight is None else flight.as_dict(),
            versions=self._between.versions,
            held=self._held,
        )

    def _write(self) -> None:
        if self._path is not None:
            self._standing.write(self._path)
            if self._memory is not None:
                self._memory.keep(self._standing.counted)
            self._saved = time.perf_counter()


def _counted(done: Trained, number: int) -> dict[int, int]:
    """Client → the round that it was asked in, of those whose update with tensors counted."""
    asked = done.counted if isinstance(done, TrainedBuffer) else {}
    return {r.client: asked.get(r.client, number) for r in done.reports if r.has_tensors}


@dataclass(frozen=True, slots=True)
class _After:
    """What a round makes of where the simulation stands."""

    params: Params
    state: State
    held: Params
    virtual_s: float
    counted: dict[int, int]
    taken: frozenset[int]
    told: list[Observation]
    between: Between


class _Nowhere:
    """A file that keeps nothing: for a digest alone."""

    def write(self, data: Any) -> int:
        return len(data)


def _check_rounds(before: Checkpoint | None, rounds: int) -> None:
    done = 0 if before is None else before.progress.trained
    if done > rounds:
        raise UsageError(
            f"Expected rounds of at least {done}, as many as were done before, got {rounds}. Raise "
            "rounds, or choose another folder."
        )


def settings_digest(experiment: Experiment) -> str:
    """SHA-256 of what must be the same for a simulation to go on to the same bits."""
    population = experiment.population
    spec = experiment.spec.as_dict()
    del spec["rounds"], spec["name"]  # they bear on how far, not on the bits
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for arrays in (population.shards, population.held_out_shards or ()):
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
    digest.update("\0".join(population.names).encode())
    for table in ("data", "model", "optimizer", "client", "devices", "attack"):
        text = json.dumps(experiment.settings.get(table, {}), sort_keys=True, default=str)
        digest.update(text.encode())
    return digest.hexdigest()


def _as_stored(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """What a server would read back: bfloat16 is rounded when a model is stored."""
    return widen(narrow(array, dtype), dtype) if dtype == "BF16" else array
