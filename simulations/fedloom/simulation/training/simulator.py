"""A simulation: the server's run engine with simulated rounds.

Invariants: a round depends only on the experiment and the rounds before it. The checkpoint is
replaced atomically, so a simulation stopped at any time resumes to the same bits.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_params
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
from fedloom.server.planning.advance import Advanced, TrainingState, advance, begin, clip
from fedloom.server.planning.observations import observe
from fedloom.server.planning.round_result import (
    ClientReport,
    ReportedMetrics,
    RoundMetrics,
    RoundResult,
    last_counted,
)
from fedloom.server.planning.run_setup import RunSetup
from fedloom.simulation.clock.buffer_clock import Flight
from fedloom.simulation.clock.deadline import check_deadline
from fedloom.simulation.clock.devices import Load
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.metrics import measured
from fedloom.simulation.output import words
from fedloom.simulation.output.history import ClientRecord, RoundRecord, spread_of
from fedloom.simulation.training import masked_sum
from fedloom.simulation.training.buffer_trainer import Between, BufferTrainer
from fedloom.simulation.training.checkpoint import Checkpoint
from fedloom.simulation.training.client_records import client_records
from fedloom.simulation.training.evaluate import evaluated
from fedloom.simulation.training.origins import MODEL, changes, origins
from fedloom.simulation.training.round_trainer import (
    Next,
    Trained,
    Trainer,
    client_metrics,
    cohort,
    stream_of,
)
from fedloom.simulation.training.rule_memory import Memory
from fedloom.simulation.training.spooled_updates import Spooled, check, is_needed
from fedloom.simulation.training.stop import check_measured, reaches
from fedloom.simulation.training.traffic import Downloaded, Files, Sent, Traffic, bytes_beside
from fedloom.simulation.workers.base import Progress, Report
from fedloom.simulation.workers.setup import WorkerSetup, set_up_workers
from fedloom.strategies import Params, Partial, TooFewUpdatesError
from fedloom.strategies.selection import History, Observation
from fedloom.strategies.state import slots_to_arrays

CHECKPOINT_S = 10.0
"""Seconds of work that a crash may lose; the result is the same in any case."""


def _quietly(_: int) -> None:
    """Ignore progress."""


class Simulation:
    """A simulation of an experiment.

    Args:
        experiment: to simulate.
        checkpoint: the file of its checkpoint; None for none.
        resume: resume from the checkpoint; begin if there is none.
        accept_changes: resume also with other code, data or initial values than before.

    Attributes:
        reached: whether the goal of [stop] was reached.
        changes: the changes that were accepted, in words.

    Raises:
        UsageError: the experiment is invalid, or was begun with other settings, code or data.
    """

    def __init__(
        self,
        experiment: Experiment,
        checkpoint: Path | None = None,
        *,
        resume: bool = False,
        accept_changes: bool = False,
    ) -> None:
        check(experiment)
        masked_sum.check(experiment)
        evaluates = experiment.evaluate is not None
        check_measured(experiment.stop, experiment.metrics, evaluates=evaluates)
        self.experiment = experiment
        self._path = checkpoint
        self._settings = settings_digest(experiment)
        before = None
        self.changes: list[str] = []
        if resume:
            assert checkpoint is not None
            before = Checkpoint.read(checkpoint, self._settings, experiment.population.names)
            _check_rounds(before, experiment.spec.rounds)
        self._origins = {} if checkpoint is None else origins(experiment)
        if before is not None:
            self.changes = changes(before.origins, self._origins)
            if self.changes and not accept_changes:
                raise _changed(self.changes)
        self.worker_setup: WorkerSetup = set_up_workers(
            experiment, None if before is None else before.engine
        )
        self._setup = RunSetup.of(
            experiment.spec, self.worker_setup.manifest, stream_of(experiment.spec)
        )
        self._training: TrainingState = (
            begin(self._setup, self.worker_setup.params) if before is None else before.training
        )
        self._policy = experiment.spec.build_selection()
        self._history = History() if before is None else History.from_arrays(before.history)
        self.reached = False if before is None else before.reached
        self._run = Run(
            experiment.spec.run_config(), progress=None if before is None else before.progress
        )
        self._best: Params | None = None if before is None else before.best
        self._virtual_s, self._spent_s = 0.0, 0.0
        self._total_bytes: int | None = 0
        if before is not None:
            self._virtual_s, self._spent_s = before.virtual_s, before.wall_s
            self._total_bytes = before.total_bytes
        self._counted: Mapping[str, int] = {} if before is None else before.counted
        self._buffer = experiment.spec.buffer_config()
        self._between = Between()
        if before is not None and before.flight is not None:
            flight = Flight.from_dict(before.flight)
            self._between = Between(flight=flight, versions=before.versions)
        self._files, self._downloaded = self._open_files(before)
        self._memory, self._lent = self._open_memory()
        self._spool = (
            Spooled(experiment, self.worker_setup.sums.specs) if is_needed(experiment) else None
        )
        self._begun = self._saved = time.perf_counter()
        self._noted = self._latest = self._checkpoint()
        self._trainer = Trainer(
            experiment,
            self.worker_setup.crew,
            group=self.worker_setup.group,
            empty=self._empty,
            traffic=Traffic(experiment, self.worker_setup.manifest),
            history=self._history,
            memory="" if self._memory is None else str(self._memory.folder),
            spool=self._spool,
        )
        self._buffer_trainer = BufferTrainer(self._trainer)
        self._last: tuple[Next, Trained] | None = None

    @property
    def params(self) -> Params:
        """The model after the last round, by name."""
        return self._training.model

    @property
    def best(self) -> Params | None:
        """The best model, by name; None before an evaluation that measured one."""
        return self._best

    @property
    def progress(self) -> RunProgress:
        """The progress of the run."""
        return self._run.progress

    @property
    def state(self) -> RunState:
        """The state of the run's engine."""
        return self._run.state

    @property
    def reason(self) -> str:
        """Why the run is paused, or finished before its last round."""
        return self._run.reason

    def clients(self) -> list[ClientRecord]:
        """The clients of the last round; see `client_records`."""
        if self._last is None:
            return []
        is_private = self.experiment.spec.build_privacy() is not None
        return client_records(self._trainer, *self._last, is_private=is_private)

    def digest(self) -> str:
        """SHA-256 of the model's file, as a server names it."""
        return write_params(_Nowhere(), self.params, self.worker_setup.manifest.dtypes)

    def close(self) -> None:
        """Stop the workers, and delete the files of updates."""
        self.worker_setup.crew.close()
        if self._spool is not None:
            self._spool.close()
        if self._lent is not None:
            self._lent.cleanup()

    def rounds(self, progress: Progress = _quietly) -> Iterator[RoundRecord]:
        """Do the remaining rounds, one per iteration.

        A round becomes part of the checkpoint when the next one is requested: a caller that is
        stopped while it stores a record gets that record again.
        """
        self._check_deadline()
        effects = self._run.handle(Started())
        while not self.reached:
            match effects:
                case [OpenRound(number, kind)]:
                    record, after = self._round(number, kind, progress)
                case _:
                    break
            reached = reaches(self.experiment.stop, record.test)
            if record.state == "committed":
                effects = self._run.handle(RoundCommitted(kind, after.training.best))
            else:
                effects = self._run.handle(RoundAbandoned(record.reason))
            self._best = self._best_after(after.training)
            self._training, self._between = after.training, after.between
            self._virtual_s, self._counted = after.virtual_s, after.counted
            self._total_bytes = record.total_bytes
            self._files, self._downloaded = after.files, after.downloaded
            if after.observed:
                self._history.add(record.round, after.observed)
            self.reached = reached
            self._latest = self._checkpoint()
            yield record
            self._noted = self._latest
            if time.perf_counter() - self._saved > CHECKPOINT_S:
                self._write()
        self._write()

    def save(self, *, noted: bool = True) -> None:
        """Write the checkpoint.

        Args:
            noted: whether the caller has stored the last record; if not, its round is repeated.
        """
        if noted:
            self._noted = self._latest
        self._write()

    def _check_deadline(self) -> None:
        """Refuse a deadline that too few devices can meet, before the first round."""
        devices = self.experiment.devices
        if devices is None or self.progress.opened:
            return
        spec, names = self.experiment.spec, self.experiment.population.names

        def load(number: int) -> Load:
            what = self._next(number, RoundKind.TRAIN)
            found = self._trainer.load(what, {})
            # Only training tells the bytes of an update whose size depends on its values.
            return replace(found, upload_bytes=0) if self._trainer.task(what).sizes_vary else found

        attempts = spec.run_config().max_abandoned
        check_deadline(spec.round_config(), devices, names, load, attempts)

    def _empty(self) -> Partial:
        return self.worker_setup.sums.empty()

    def _open_files(self, before: Checkpoint | None) -> tuple[Files, Downloaded]:
        """The files of the next round's tasks, and those that clients have."""
        size = self.worker_setup.manifest.size_bytes
        if before is None or before.files is None:  # of a version that did not count them
            beside = bytes_beside(self._beside(self._training))
            clients = len(self.experiment.population)
            return Files(model_bytes=size, beside_bytes=beside), Downloaded.nothing(clients)
        return Files.from_dict(before.files, size), Downloaded(**before.downloaded)

    def _open_memory(self) -> tuple[Memory | None, "TemporaryDirectory[str] | None"]:
        """The folder of memories, and a temporary folder to delete at the end."""
        spec = self.experiment.spec
        if not spec.remembers:
            return None, None
        if self.experiment.engine.backend == "ray":
            rule, scheme = self._setup.strategy.rule, spec.build_compression()
            who = f"the client rule {rule.name}"
            if spec.build_personal().remembers:
                who = "[personal]"
            elif scheme is not None and not rule.remembers:
                who = f"the codec {scheme.codec.name}"
            raise UsageError(f'Set engine.backend = "local", not "ray": {who} keeps files.')
        if self._path is not None:
            return Memory(self._path.parent / "memory"), None
        lent = TemporaryDirectory(prefix="fedloom-memory-")
        return Memory(Path(lent.name)), lent

    def _sent(self) -> Params:
        model = self._training.held
        if not self.worker_setup.received:
            return model
        found = self._beside(self._training)
        beside = {
            name: found.get(name, np.zeros(spec.shape, spec.dtype))
            for name, spec in self.worker_setup.received.items()
        }
        return {**model, **beside}

    def _beside(self, training: TrainingState) -> Params:
        """The tensors that clients get beside the model."""
        return slots_to_arrays(self._setup.strategy.sends(training.strategy))

    def _gets(self, training: TrainingState) -> Sent:
        """What clients get in the next round."""
        return Sent(model=training.held, beside=self._beside(training))

    # ---- a round -----------------------------------------------------------------------------

    def _round(
        self, number: int, kind: RoundKind, progress: Progress
    ) -> tuple[RoundRecord, "_After"]:
        """Do a round without changing this object; returns its record and the new state."""
        begun = time.perf_counter()
        what = self._next(number, kind)
        done, between = self._do(what, progress)
        self._last = what, done
        trained_s = time.perf_counter() - begun
        reports = [self._report(done, number, report) for report in done.reports]
        advanced, reason = self._advance(done, number, kind, reports)
        after = self._after(done, between, what, advanced, reports)
        trained = after.training.trained
        metrics = RoundMetrics() if advanced is None else advanced.metrics
        test = after.trains and self._test(after.training.model, number, trained)
        bytes_down = sum(self._trainer.bytes_down(what, done).values())
        bytes_up = sum(size for _, size in self._trainer.bytes_up(what, done))
        train_passes, eval_passes = self._trainer.passes(what, done)
        before = self._total_bytes
        now = time.perf_counter()
        record = RoundRecord(
            round=number,
            trained=trained,
            kind=kind.value,
            state="abandoned" if advanced is None else "committed",
            reason="; ".join(filter(None, (reason, self._refusals(done)))),
            cohort=len(done.play.cohort),
            accepted=len(done.reports),
            staleness=_staleness(done, number) if after.trains else 0.0,
            counts={phase.value: n for phase, n in done.play.counts.items() if n},
            examples=metrics.training.get("num_examples", 0),
            training=metrics.training.get("values", {}),
            evaluation=metrics.evaluation.get("values", {}),
            spread=spread_of(metrics.training, metrics.evaluation),
            epsilon=None if metrics.privacy is None else metrics.privacy["epsilon"],
            underflow=metrics.underflow,
            test=test or {},
            bytes_down=bytes_down,
            bytes_up=bytes_up,
            total_bytes=None if before is None else before + bytes_down + bytes_up,
            train_passes=train_passes,
            eval_passes=eval_passes,
            virtual_s=done.play.end_s,
            wall_s=self._spent_s + now - self._begun,
            round_wall_s=now - begun,
            clients_per_s=len(done.reports) / trained_s,
            shares=done.shares,
        )
        return record, after

    def _advance(
        self, done: Trained, number: int, kind: RoundKind, reports: list[ClientReport]
    ) -> tuple[Advanced | None, str]:
        """The new state after a round and its notes, or None and the reason if it is abandoned."""
        result = RoundResult(
            number=number,
            kind=kind,
            reports=reports,
            total=done.partial,
            metrics=map(self._metrics, done.reports),
            words=done.words,
            updates=done.updates,
        )
        try:
            advanced = advance(self._setup, self._training, result) if done.committed else None
            notes = (done.play.reason, "" if advanced is None else advanced.note)
            return advanced, "; ".join(filter(None, notes))
        except TooFewUpdatesError as error:
            return None, f"{error}"
        finally:
            if self._spool is not None:
                self._spool.clear()

    def _after(
        self,
        done: Trained,
        between: Between,
        what: Next,
        advanced: Advanced | None,
        reports: list[ClientReport],
    ) -> "_After":
        virtual_s, files = done.play.end_s or 0.0, self._files
        downloaded = self._downloaded.after(done.play.took, self._trainer.asked(what), files)
        if advanced is None or what.kind is not RoundKind.TRAIN:
            training = self._training if advanced is None else advanced.state
            return _After(
                training=training, virtual_s=virtual_s, counted=self._counted,
                files=files, downloaded=downloaded,
            )  # fmt: skip
        before, now = self._gets(self._training), self._gets(advanced.state)
        files = files.after(what.number, before, now, advanced.difference)
        counted, observed = self._counted, []
        if self._memory is not None:
            counted = last_counted(counted, reports)
        if self._policy.needs:
            observed = observe(cohort(done, self.experiment.population.names), self._policy)
        return _After(
            training=advanced.state,
            virtual_s=virtual_s,
            counted=counted,
            observed=observed,
            between=between,
            trains=True,
            files=files,
            downloaded=downloaded,
        )

    def _best_after(self, after: TrainingState) -> Params | None:
        """The best model after a round; an improvement is of the model that the round measured."""
        before = self._training.best
        if after.best is None or before is None or after.best.round == before.round:
            return self._best
        return self._training.model

    def _do(self, what: Next, progress: Progress) -> tuple[Trained, Between]:
        if self._buffer is not None and what.kind is RoundKind.TRAIN:
            return self._buffer_trainer.run(
                self._sent(),
                what,
                self._virtual_s,
                progress,
                config=self._buffer,
                before=self._between,
                counted=self._counted,
            )
        done = self._trainer.run(
            self._sent(), what, self._virtual_s, progress, counted=self._counted
        )
        return done, Between()

    def _report(self, done: Trained, number: int, report: Report) -> ClientReport:
        return ClientReport(
            client=self.experiment.population.names[report.client],
            asked_in=done.asked_in.get(report.client, number),
            has_tensors=report.has_tensors,
        )

    def _metrics(self, report: Report) -> ReportedMetrics:
        return ReportedMetrics(
            client=self.experiment.population.names[report.client],
            training=client_metrics(report.training),
            evaluation=client_metrics(report.evaluation),
        )

    def _next(self, number: int, kind: RoundKind) -> Next:
        training = self._training
        longest, limit = clip(self._setup, training.strategy), None
        if longest is not None:
            limit = limits.longest(self.experiment.spec, self.worker_setup.manifest, longest)
        return Next(
            number=number,
            trained=training.trained,
            kind=kind,
            clip=longest or 0.0,
            longest=limit,
            excluded=training.participations.excluded,
            files=self._files,
            downloaded=self._downloaded,
        )

    def _test(self, params: Params, number: int, trained: int) -> Mapping[str, float]:
        """Metrics of the model after a round, on the test examples and by `evaluate`."""
        every, evaluate = self.experiment.test_every, self.experiment.evaluate
        last = trained == self.experiment.spec.run_config().rounds
        if not every or (trained % every and not last):
            return {}
        test = self._on_examples(params)
        return test if evaluate is None else test | evaluated(evaluate, number, params, test)

    def _on_examples(self, params: Params) -> dict[str, float]:
        experiment, test = self.experiment, self.experiment.population.test
        if test is None:
            return {}
        found = self.worker_setup.crew.evaluate(params, len(test))
        if found.scores is None:
            return dict(found.metrics)
        of = f"the {len(test)} test examples"
        more = measured(experiment.metrics, found.scores, found.metrics["loss"], of)
        return {**found.metrics, **more}

    def _refusals(self, done: Trained) -> str:
        if not done.refused:
            return ""
        client, reason = min(done.refused.items())
        count, name = len(done.refused), self.experiment.population.names[client]
        return f"{count} update{'s' if count > 1 else ''} refused, such as {name}'s: {reason}"

    # ---- checkpoint --------------------------------------------------------------------------

    def _checkpoint(self) -> Checkpoint:
        progress = self._run.progress
        if progress.open_kind is not None:
            # The next round is open in the engine, but has not begun.
            progress = replace(progress, opened=progress.opened - 1, open_kind=None)
        flight = self._between.flight
        return Checkpoint(
            progress=progress,
            training=self._training,
            best=self._best,
            history=self._history.to_arrays(),
            virtual_s=self._virtual_s,
            wall_s=self._spent_s + time.perf_counter() - self._begun,
            settings=self._settings,
            engine=self.worker_setup.kernel,
            reached=self.reached,
            total_bytes=self._total_bytes,
            counted=self._counted,
            files=self._files.as_dict(),
            downloaded={"models": self._downloaded.models, "beside": self._downloaded.beside},
            flight=None if flight is None else flight.as_dict(),
            versions=self._between.versions,
            origins=self._origins,
        )

    def _write(self) -> None:
        if self._path is not None:
            places = {name: place for place, name in enumerate(self.experiment.population.names)}
            self._noted.write(self._path, places)
            if self._memory is not None:
                self._memory.keep({places[name]: n for name, n in self._noted.counted.items()})
            self._saved = time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class _After:
    """The state after a round.

    Attributes:
        training: the state that the next round starts from.
        virtual_s: the virtual clock at its end.
        counted: client → the round of the task of its last accepted update.
        observed: observations for selection.
        between: the state that the next buffer continues.
        trains: whether it is a committed training round.
        files: of the next round's tasks.
        downloaded: the files that clients have.
    """

    training: TrainingState
    virtual_s: float
    counted: Mapping[str, int]
    observed: Sequence[Observation] = ()
    between: Between = field(default_factory=Between)
    trains: bool = False
    files: Files
    downloaded: Downloaded


class _Nowhere:
    """A file that stores nothing, to compute a digest."""

    def write(self, data: Any) -> int:
        return len(data)


def _check_rounds(before: Checkpoint | None, rounds: int) -> None:
    done = 0 if before is None else before.progress.trained
    if done > rounds:
        raise UsageError(
            f"{done} rounds were done before, so {words.RESUME} needs rounds >= {done}, got "
            f"{rounds}. Raise rounds, or choose another folder. Nothing in it was changed."
        )


def _changed(found: Sequence[str]) -> UsageError:
    seed = ""
    if MODEL in found:
        seed = " A module made anew has the same values if torch.manual_seed comes before it."
    return UsageError(
        f"Changed since the first rounds: {', '.join(found)}. No run from the start would have the "
        f"same result. Undo the change, choose another folder, or add {words.ACCEPT}.{seed}"
    )


def settings_digest(experiment: Experiment) -> str:
    """SHA-256 of all that must be equal for a simulation to resume to the same bits."""
    population = experiment.population
    spec = experiment.spec.as_dict()
    del spec["rounds"], spec["name"], spec["precision"]  # they do not change the bits
    if not spec["best"]:  # as all simulations before the setting existed
        del spec["best"]
    if spec["masking"] is None:
        del spec["masking"]
    else:  # the sums have the same bits with and without masks
        spec["masking"] = {n: v for n, v in spec["masking"].items() if n != "simulate"}
    if spec["sum_bits"] == 64:  # as all simulations before the setting existed
        del spec["sum_bits"]
    if experiment.engine.precision != "float32":
        spec["engine.precision"] = experiment.engine.precision
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for arrays in (population.shards, population.held_out_shards or ()):
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
    digest.update("\0".join(population.names).encode())
    for table in ("data", "model", "optimizer", "client", "devices", "attack"):
        text = json.dumps(experiment.settings.get(table, {}), sort_keys=True, default=str)
        digest.update(text.encode())
    return digest.hexdigest()


def _staleness(done: Trained, number: int) -> float:
    stale = [number - origin for origin in done.asked_in.values()]
    return float(np.mean(stale)) if stale else 0.0
