"""Buffers of a simulation: played on the virtual clock, then trained, each client on its model.

A buffer is played first (`buffer_clock`), then the clients whose updates count in it are trained,
each on the version of the model that it was given, as long as somebody may still need it. The
order is free, as in a round: the sum is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedloom.server.engine import BufferConfig, RoundKind
from fedloom.simulation.clock.buffer_clock import BufferPlay, Flight, play_buffer
from fedloom.simulation.kernels.base import Params, RoundTask
from fedloom.simulation.training.round_trainer import Next, Trained, Trainer
from fedloom.simulation.workers.base import Progress, Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Between:
    """What is between two buffers: who is at work, and the models that they have.

    Attributes:
        flight: who is at work; None for nobody.
        versions: round → the model that its clients were given, of those who are at work.
    """

    flight: Flight | None = None
    versions: Mapping[int, Params] = field(default_factory=dict)


@dataclass(slots=True)
class TrainedBuffer(Trained):
    """A buffer that was played and trained.

    Attributes:
        between: what the next buffer goes on from.
        staleness: models committed since an update's own, of each accepted update.
        counted: client → the round that it was asked in, of each accepted update.
    """

    between: Between = field(default_factory=Between)
    staleness: list[int] = field(default_factory=list)
    counted: dict[int, int] = field(default_factory=dict)


class BufferTrainer(Trainer):
    """Plays and trains buffers, and rounds of evaluation."""

    def run_buffer(
        self,
        params: Params,
        what: Next,
        start_s: float,
        progress: Progress,
        *,
        config: BufferConfig,
        before: Between,
        counted: Mapping[str, int],
    ) -> TrainedBuffer:
        """Play and train a buffer.

        Args:
            params: the newest model, which those who are asked in this buffer are given.
            what: which round the buffer is.
            start_s: the virtual clock at its opening.
            progress: told how many clients are done.
            config: the knobs.
            before: who is at work, on which models.
            counted: client → the round that it was asked in when it last counted, where it
                remembers.
        """
        number, flight = what.number, before.flight
        tasks = self._tasks(what, config)
        versions = {**before.versions, number: params}
        play = self._play_buffer(what, start_s, config, flight, frozenset())
        result = TrainedBuffer(play.play, self._empty())
        done: dict[tuple[int, int], Report] = {}
        refused: dict[tuple[int, int], str] = {}
        while result.committed:
            accepted = set(play.updates)
            if done.keys() - accepted:
                # The refusal changed whom the engine asked: the sum must not hold the others.
                done, result.partial = {}, self._empty()
            failed: dict[tuple[int, int], str] = {}
            missing = accepted - done.keys()
            for origin in sorted({origin for origin, _ in missing}):
                jobs = [self._job(origin, place, counted) for o, place in missing if o == origin]

                def told(count: int, before: int = len(done)) -> None:
                    progress(before + count)

                reports = self._train(versions[origin], tasks[origin], jobs, result, told)
                done |= {(origin, r.client): r for r in reports if not r.refused}
                failed |= {(origin, r.client): r.reason for r in reports if r.refused}
            if not failed:
                break
            refused |= failed
            play = self._play_buffer(what, start_s, config, flight, frozenset(refused))
            result.play = play.play
        result.reports = list(done.values())
        result.refused = {place: reason for (_, place), reason in refused.items()}
        result.staleness = [number - origin for origin, _ in sorted(done)]
        result.counted = {place: origin for origin, place in done}
        result.between = _between(play, versions)
        return result

    def _tasks(self, what: Next, config: BufferConfig) -> dict[int, RoundTask]:
        """Tasks by the round in which a client was asked; all before it were committed."""
        tasks = {}
        for staleness in range(min(config.max_staleness, what.trained) + 1):
            origin = replace(what, number=what.number - staleness, trained=what.trained - staleness)
            factor = config.staleness(staleness)
            tasks[origin.number] = replace(self._task(origin), factor=factor)
        return tasks

    def _play_buffer(
        self,
        what: Next,
        start_s: float,
        config: BufferConfig,
        flight: Flight | None,
        refused: frozenset[tuple[int, int]],
    ) -> BufferPlay:
        return play_buffer(
            self._clock,
            config,
            select=self._experiment.spec.select(what.number, RoundKind.TRAIN, None),
            number=what.number,
            load=self._load(self._task(what)),
            flight=flight,
            start_s=start_s,
            refused=refused,
        )


def _between(play: BufferPlay, versions: Mapping[int, Params]) -> Between:
    if play.flight is None:
        return Between()
    kept = {origin: versions[origin] for origin in sorted(play.flight.origins)}
    return Between(flight=play.flight, versions=kept)
