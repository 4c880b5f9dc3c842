"""Buffers of a simulation: played on the virtual clock, then trained.

A buffer is played first (`buffer_clock`). Then the clients whose updates count are trained, each on
the model that it received. Their order does not matter, as the sum is exact. If the bytes of
updates depend on the values, clients are trained in the buffer in which they accept a task, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedloom.server.engine import BufferConfig, RoundKind
from fedloom.simulation.clock.buffer_clock import BufferPlay, Flight, play_buffer
from fedloom.simulation.kernels.base import Params, RoundTask
from fedloom.simulation.training.round_trainer import Next, Sizes, TaskOf, Trained, Trainer
from fedloom.simulation.workers.base import Progress, Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Between:
    """The state between two buffers: clients at work, and their models.

    Attributes:
        flight: work in flight; None for none.
        versions: round → its model, for rounds with clients at work.
    """

    flight: Flight | None = None
    versions: Mapping[int, Params] = field(default_factory=dict)


class BufferTrainer:
    """Plays and trains buffers."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def run(
        self,
        params: Params,
        what: Next,
        start_s: float,
        progress: Progress,
        *,
        config: BufferConfig,
        before: Between,
        counted: Mapping[str, int],
    ) -> tuple[Trained, Between]:
        """Play and train a buffer.

        Args:
            params: the newest model, for clients that get a task in this buffer.
            what: the buffer's round.
            start_s: the virtual clock at its opening.
            progress: called with the number of clients done.
            config: of the buffer.
            before: the state after the last buffer.
            counted: client → the round of the task of its last accepted update, if clients
                remember something.

        Returns:
            The buffer, and the state after it.
        """
        number, flight = what.number, before.flight
        names = self._trainer.experiment.population.names
        tasks = self._tasks(what, config)
        versions = {**before.versions, number: params}
        sizes: Sizes = {}
        reasons: dict[TaskOf, str] = {}

        def played() -> BufferPlay:
            return play_buffer(
                self._trainer.clock,
                config,
                select=self._trainer.experiment.spec.select(number, RoundKind.TRAIN, None),
                number=number,
                load=self._trainer.load(what, sizes),
                flight=flight,
                start_s=start_s,
                refused=frozenset(reasons),
            )

        play = played()
        result = Trained(play.play, self._trainer.empty(), sizes=sizes)
        done: dict[TaskOf, Report] = {}
        reached: set[TaskOf] = set()
        while True:
            known = len(sizes)
            failed: dict[TaskOf, str] = {}
            accepted = set(play.updates) if result.committed else done.keys()
            if done.keys() - accepted:
                # The selection changed: the sum must not contain other clients.
                done, result.partial = {}, self._trainer.empty()
            missing = accepted - done.keys()
            for origin in sorted({origin for origin, _ in missing}):
                jobs = [
                    self._trainer.job(origin, place, counted) for o, place in missing if o == origin
                ]

                def notify(count: int, before: int = len(done)) -> None:
                    progress(before + count)

                reports = self._trainer.train(
                    versions[origin], tasks[origin], jobs, result, notify, total=result.partial
                )
                done |= {(origin, r.client): r for r in reports if not r.refused}
                failed |= {(origin, r.client): r.reason for r in reports if r.refused}
                reached |= {(origin, r.client) for r in reports if r.refused and r.reached}
            reasons |= failed
            latest = {**counted} | {names[place]: origin for origin, place in done}
            if not failed:
                self._trainer.measure(params, tasks[number], result, latest)
                if len(sizes) == known:
                    break
            play = played()
            result.play = play.play
        done = {task: done[task] for task in play.updates if task in done}
        result.reports = list(done.values())
        result.refused = {task[1]: reasons[task] for task in play.play.refused}
        result.asked_in = {place: origin for origin, place in done}
        result.came = [task for task, r in done.items() if r.has_tensors]
        result.came += [task for task in play.play.refused if task in reached]
        return result, _between(play, versions)

    def _tasks(self, what: Next, config: BufferConfig) -> dict[int, RoundTask]:
        """Tasks by round; all earlier rounds were committed."""
        tasks = {}
        for staleness in range(min(config.max_staleness, what.trained) + 1):
            origin = replace(what, number=what.number - staleness, trained=what.trained - staleness)
            factor = config.staleness(staleness)
            tasks[origin.number] = replace(self._trainer.task(origin), factor=factor)
        return tasks


def _between(play: BufferPlay, versions: Mapping[int, Params]) -> Between:
    if play.flight is None:
        return Between()
    kept = {origin: versions[origin] for origin in sorted(play.flight.origins)}
    return Between(flight=play.flight, versions=kept)
