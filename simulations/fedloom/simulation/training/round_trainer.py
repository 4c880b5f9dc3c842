"""One round of a simulation: played on the virtual clock, trained, and summed.

The server's engine decides on the virtual clock whose updates count; only those clients are
trained. If an update is refused, the round is played again with that refusal: playing is a pure
function, so decisions before the refusal do not change.

The bytes of some codecs depend on the values. With devices, every client that accepts a task is
then trained, whether its update counts or not, and the round is played again with the bytes found.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from fedloom.client.api import Weighting
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.task_description import TaskDescription, task_seed
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed
from fedloom.server.engine import RoundKind, RoundState
from fedloom.server.engine.masked_round import TOO_FEW_READY
from fedloom.server.planning.observations import CohortMember
from fedloom.server.planning.round_result import ClientMetrics
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.task import describe
from fedloom.simulation.clock.devices import Load
from fedloom.simulation.clock.playback import Play
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.base import ClientJob, Measurement, Params, RoundTask
from fedloom.simulation.output.history import WorkerShare
from fedloom.simulation.training import masked_session, masked_sum
from fedloom.simulation.training.spooled_updates import Spooled
from fedloom.simulation.training.traffic import Downloaded, Files, Traffic
from fedloom.simulation.workers.base import Progress, Report, RoundWork, WorkerGroup
from fedloom.simulation.workers.placement import TimeModel, grouped, longest_first
from fedloom.strategies import Partial, Updates
from fedloom.strategies.masking.over_sessions import SessionUpdates
from fedloom.strategies.privacy import Stream
from fedloom.strategies.selection import History

MakeSum = Callable[[], Partial]

TaskOf = tuple[int, int]
"""A task: its round, and the client's index in the names."""
Sizes = dict[TaskOf, int | None]
"""Task → the bytes of its update; None if it was refused before it was encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The round to do.

    Attributes:
        number: from 1, rises with every opened round.
        trained: training rounds committed before it.
        kind: training or evaluation.
        clip: the clip norm, with [privacy].
        longest: largest norm of an update, with [privacy].
        excluded: clients that may not take part, by the privacy claim.
        files: of its tasks.
        downloaded: the files that clients have at its opening.
    """

    number: int
    trained: int
    kind: RoundKind
    clip: float = 0.0
    longest: float | None = None
    excluded: frozenset[str] = frozenset()
    files: Files
    downloaded: Downloaded


@dataclass(slots=True)
class Trained:
    """A round that was played and trained.

    Attributes:
        play: as the engine decided it.
        partial: the exact sum of the accepted updates.
        updates: each of them, if needed separately; the sum is then empty.
        reports: of the accepted clients.
        refused: client → the reason, of refused updates.
        shares: of the work, by worker.
        asked_in: accepted client → the round of its task; for buffers.
        came: tasks whose updates reached the server.
        words: the sums of the words of a masked round; None in others.
        sizes: of updates whose bytes depend on the values.
        sessions: the sum of each masking session and of its weights, for rules over them.
    """

    play: Play
    partial: Partial
    reports: list[Report] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    shares: tuple[WorkerShare, ...] = ()
    updates: Updates | None = None
    asked_in: dict[int, int] = field(default_factory=dict)
    came: Collection[TaskOf] = ()
    words: Mapping[str, int] | None = None
    sizes: Sizes = field(default_factory=dict)
    sessions: list[tuple[Partial, float]] = field(default_factory=list)

    @property
    def committed(self) -> bool:
        """Whether the round has a result."""
        return self.play.state is RoundState.COMMITTED


class Trainer:
    """Plays and trains rounds.

    Args:
        experiment: to simulate.
        crew: the workers.
        group: clients that are trained together.
        empty: makes an empty sum.
        traffic: the costs of tasks.
        history: observations of the clients; extended by its owner.
        memory: folder of the clients' memories.
        spool: of updates that are needed separately.
    """

    def __init__(
        self,
        experiment: Experiment,
        crew: WorkerGroup,
        *,
        group: int,
        empty: MakeSum,
        traffic: Traffic,
        history: History,
        memory: str = "",
        spool: Spooled | None = None,
    ) -> None:
        self._history = history
        self.experiment = experiment
        self._crew = crew
        self._group = group
        self.empty = empty
        self.traffic = traffic
        self._memory = memory
        self._spool = spool
        self._attackers = experiment.attackers()
        self._sizes = experiment.population.sizes
        self._times = TimeModel(self._sizes)
        self.clock = Clock(experiment.population.names, experiment.devices)
        self._stream = stream_of(experiment.spec)
        self._over_sessions = experiment.spec.needs == "sessions"
        self._asked: tuple[Next, TaskDescription] | None = None

    def run(
        self,
        params: Params,
        what: Next,
        start_s: float,
        progress: Progress,
        *,
        counted: Mapping[str, int],
    ) -> Trained:
        """Play and train a round.

        Args:
            params: its model, and the slots sent with it.
            what: the round.
            start_s: the virtual clock at its opening.
            progress: called with the number of clients done.
            counted: client → its last committed round, if clients remember something.
        """
        task = self.task(what)
        number = what.number
        sizes: Sizes = {}
        result = Trained(self._play(what, start_s, (), sizes), self.empty(), sizes=sizes)
        done: dict[int, Report] = {}
        reasons: dict[int, str] = {}
        reached: set[int] = set()
        accepted: set[int] = set()
        while True:
            known = len(sizes)
            refused: dict[int, str] = {}
            if result.committed:
                names = self.experiment.population.names
                quorum = self.experiment.spec.round_config().quorum
                accepted = masked_sum.ready(task, names, result.play.places, quorum)
                if done.keys() - accepted:
                    # The selection changed: the sum must not contain other clients.
                    done, result.partial, result.sessions = {}, self.empty(), []
                jobs = [self.job(number, each, counted) for each in accepted - done.keys()]
                new = self._summed(params, task, jobs, result, progress)
                done |= {report.client: report for report in new if not report.refused}
                refused = {report.client: report.reason for report in new if report.refused}
                reasons |= refused
                reached |= {report.client for report in new if report.reached}
            if refused and task.masking is not None:
                # Noise and rules depend on who is with whom: form sessions without the refused.
                done, result.partial, result.sessions = {}, self.empty(), []
            if not refused:
                self.measure(params, task, result, counted)
                if self.experiment.devices is None or len(sizes) == known:
                    break  # without devices, no time depends on bytes
            result.play = self._play(what, start_s, reasons, sizes)
        result.reports = [done[place] for place in result.play.places if place in done]
        result.refused = {place: reasons[place] for _, place in result.play.refused}
        # The clients of an abandoned round are not all trained.
        sent = [p for p in result.play.places if p not in done or done[p].has_tensors]
        sent += [place for _, place in result.play.refused if place in reached]
        if task.masking is not None:
            self._close_masked(task, result, accepted)
            sent = [report.client for report in result.reports]
        result.came = [(number, place) for place in sent]
        if self._spool is not None:
            result.updates = self._spool.updates(number, result.reports)
        elif self._over_sessions:
            result.updates = SessionUpdates(result.sessions)
        return result

    def _close_masked(self, task: RoundTask, result: Trained, members: Collection[int]) -> None:
        """Note the sums of a masked round's words; abandon one without any session."""
        if result.committed and not members:
            assert task.masking is not None
            quorum, least = self.experiment.spec.round_config().quorum, task.masking.min_group
            reason = f"{TOO_FEW_READY}: expected at least {quorum} in sessions of {least} or more"
            reason += f" with one width, got fewer of {len(result.play.places)}"
            result.play = replace(result.play, state=RoundState.ABANDONED, reason=reason)
        result.words = masked_sum.word_sums(self.experiment.spec, task, result.reports)

    def _summed(
        self, params: Params, task: RoundTask, jobs: list[ClientJob], result: Trained,
        progress: Progress,
    ) -> list[Report]:  # fmt: skip
        """Train clients and add their updates to the round's sum; session by session if masked."""
        if task.masking is None:
            return self.train(params, task, jobs, result, progress, total=result.partial)
        reports: list[Report] = []
        spec, names = self.experiment.spec, self.experiment.population.names
        for members in masked_sum.sessions(task, names, jobs):
            total, moved = self.empty(), partial(_moved, progress, len(reports))
            if task.masking.simulate == "full":
                found = self._masked(params, task, members, result, moved, total=total)
            else:
                found = self.train(params, task, members, result, moved, total=total)
            size = len(members)
            weight = masked_sum.merge_session(
                result.partial, total, found, task, spec, members=size
            )
            if self._over_sessions and total.count:
                result.sessions.append((total, weight))
            reports += found
        return reports

    def _masked(
        self, params: Params, task: RoundTask, jobs: list[ClientJob], result: Trained,
        progress: Progress, *, total: Partial,
    ) -> list[Report]:  # fmt: skip
        """As `train`, but the sum is what a masking session of these clients gives."""
        assert task.masking is not None
        spec, names = self.experiment.spec, self.experiment.population.names
        reports: list[Report] = []
        members: dict[str, tuple[Partial, tuple[int, ...]]] = {}
        for job in jobs:  # one by one: the sum of a group would hide each member's
            own, moved = self.empty(), partial(_moved, progress, len(reports))
            [report] = self.train(params, task, [job], result, moved, total=own)
            reports.append(report)
            if not report.refused:
                total.merge(own)
                words = masked_sum.word_sums(spec, task, [report]) or {}
                members[names[job.client]] = own, tuple(words.values())
        if len(members) >= masked_session.LEAST:  # fewer if updates were refused
            masked_session.sum_in_session(
                total, members, sum_bits=task.masking.sum_bits, run=task.run, number=task.round
            )
        return reports

    def asked(self, what: Next) -> TaskDescription:
        """The task of a round as a server describes it, with its files; the last one is kept."""
        if self._asked is not None and self._asked[0] is what:
            return self._asked[1]
        spec = self.experiment.spec
        asked = describe(
            spec,
            run=spec.name,
            number=what.number,
            trained=what.trained,
            kind=what.kind,
            clip=what.clip,
        )
        self._asked = what, what.files.of(asked)
        return self._asked[1]

    def task(self, what: Next) -> RoundTask:
        """The task of a round."""
        asked = self.asked(what)
        guard = Guard.of(asked.privacy)
        if guard is not None:
            guard = replace(guard, seeded=True, longest=what.longest)
        return RoundTask(
            run=asked.run,
            round=asked.round,
            training_round=asked.training_round,
            settings=asked.settings,
            rule=asked.rule,
            config=asked.config,
            weighting=Weighting(asked.weighting),
            evaluate=asked.evaluates,
            train=asked.train,
            memory=self._memory,
            compression=asked.scheme,
            spool="" if self._spool is None else self._spool.folder,
            attack=self.experiment.attack,
            attackers=self._attackers,
            own_code=self.experiment.client is not None,
            personal=asked.personal,
            adapters=asked.adapters,
            guard=guard,
            masking=self.experiment.spec.build_masking(),
        )

    def job(self, number: int, client: int, counted: Mapping[str, int]) -> ClientJob:
        """The job of one client."""
        name = self.experiment.population.names[client]
        seed = task_seed(self.experiment.spec.seed, number, name)
        return ClientJob(client, seed, counted.get(name, 0), self._most_steps(client))

    def _most_steps(self, client: int) -> int:
        most = self.traffic.most_steps
        return 0 if most is None else int(most[client])

    def _play(self, what: Next, start_s: float, refused: Collection[int], sizes: Sizes) -> Play:
        spec, names = self.experiment.spec, self.experiment.population.names
        return self.clock.play(
            spec.round_config(),
            select=spec.select(what.number, what.kind, self._history, self._stream),
            round_number=what.number,
            load=None if self.experiment.devices is None else self.load(what, sizes),
            start_s=start_s,
            refused=frozenset(names[client] for client in refused),
            excluded=what.excluded,
        )

    def load(self, what: Next, sizes: Sizes) -> Load:
        """The load of a round's task on each device, with the bytes of updates that are known."""
        asked = self.asked(what)
        load = self.traffic.load(asked, what.files, what.downloaded)
        if not sizes:
            return load
        return replace(load, upload_bytes=self._upload_bytes(asked, sizes))

    def _upload_bytes(self, asked: TaskDescription, sizes: Sizes) -> Callable[[int], int]:
        """A function from a client's index to the bytes of its update for a task."""
        forecast = cache(lambda: self.traffic.upload_bytes(asked))  # often all are known

        def upload_bytes(place: int) -> int:
            found = sizes.get((asked.round, place))
            return forecast()(place) if found is None else found

        return upload_bytes

    def bytes_down(self, what: Next, done: Trained) -> dict[int, int]:
        """Bytes that each client of a round downloaded, by its index."""
        each = what.downloaded.bytes_of(self.asked(what), what.files)
        return {place: int(each[place]) for place in done.play.took}

    def passes(self, what: Next, done: Trained) -> tuple[int, int]:
        """Examples that the clients of a round pass forward and backward, and forward alone."""
        work, took = self.traffic.work(self.asked(what)), list(done.play.took)
        return int(work.trained[took].sum()), int(work.evaluated[took].sum())

    def bytes_up(self, what: Next, done: Trained) -> list[tuple[int, int]]:
        """The client's index and the bytes of each update that reached the server in a round."""
        upload_bytes = {
            number: self._upload_bytes(
                self.asked(what if number == what.number else replace(what, number=number)),
                done.sizes,
            )
            for number in dict.fromkeys(number for number, _ in done.came)
        }
        return [(client, upload_bytes[number](client)) for number, client in done.came]

    def measure(
        self, params: Params, task: RoundTask, result: Trained, counted: Mapping[str, int]
    ) -> None:
        """Find the bytes of updates on which the clock depends, if they depend on the values.

        Args:
            params: the round's model.
            task: the round's task.
            result: as played and trained until now; its `sizes` are extended.
            counted: as for `run`.
        """
        if not task.sizes_vary or (self.experiment.devices is None and result.committed):
            return
        jobs = [
            self.job(task.round, client, counted)
            for client in result.play.took
            if (task.round, client) not in result.sizes
        ]
        if jobs:
            self.train(params, task, jobs, result, lambda _: None, total=self.empty())

    def train(
        self, params: Params, task: RoundTask, jobs: list[ClientJob], result: Trained,
        progress: Progress, *, total: Partial,
    ) -> list[Report]:  # fmt: skip
        """Train clients and add their updates to `total`; note their bytes and work in `result`."""
        groups = grouped(jobs, self._sizes, self._group)
        ordered = longest_first(groups, self._times)
        gave = self._crew.train(RoundWork(params, task, ordered, total, progress))
        self._times.observe(gave.reports)
        if task.sizes_vary:
            # A client that is trained again, maybe in another group, keeps the bytes of the clock.
            found = {(task.round, each.client): each.bytes_up for each in gave.reports}
            result.sizes.update(found | result.sizes)
        result.shares = _added(result.shares, gave.shares)
        return gave.reports


def _moved(progress: Progress, done: int, more: int) -> None:
    progress(done + more)


def stream_of(spec: RunSpec) -> Stream | None:
    """Return the noise of a simulation, drawn from the seed; None without [privacy]."""
    return keyed(key_of_seed(spec.seed)) if spec.build_privacy() is not None else None


def cohort(done: Trained, names: Sequence[str]) -> list[CohortMember]:
    """The members of a round's cohort, in virtual time."""
    play = done.play
    measured = {names[r.client]: client_metrics(r.training) for r in done.reports}
    accepted_at = dict(zip(play.accepted, play.accepted_s, strict=False))  # empty without devices
    return [
        CohortMember(
            client=name,
            phase=phase,
            counted=name in measured,
            training=measured.get(name, ClientMetrics()),
            offered_at=play.offered_s.get(name),
            accepted_at=accepted_at.get(name),
            closed_at=play.end_s,
        )
        for name, phase in play.phases.items()
    ]


def client_metrics(measured: Measurement) -> ClientMetrics:
    """A client's metrics in planning's type."""
    return ClientMetrics(num_examples=measured.num_examples, values=measured.metrics)


def _added(
    before: tuple[WorkerShare, ...], more: tuple[WorkerShare, ...]
) -> tuple[WorkerShare, ...]:
    if not before:
        return more
    return tuple(
        replace(a, clients=a.clients + b.clients, busy_s=a.busy_s + b.busy_s)
        for a, b in zip(before, more, strict=True)
    )
