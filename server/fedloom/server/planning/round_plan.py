"""What a round is before anything happens in it, and the task that its clients are offered."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_message import (
    personal_message,
    scalar_message,
    task_seed,
    train_message,
)
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundConfig, RoundKind
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.state_note import FileRef, StateNote
from fedloom.strategies.privacy import Stream

__all__ = ["RoundPlan", "for_client", "names", "task_key", "task_of", "task_seed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """A round, as it is opened.

    Attributes:
        run: id.
        number: from 1, rising with every round opened.
        kind: training or evaluation.
        trained: training rounds committed before this one.
        spec: of the run.
        model: digest of the model that it starts from.
        strategy_state: the ledger's note of the strategy's state, or None at the start.
        manifest: of the model.
        limits: what the door accepts.
        stream: of the run's secret, where it has [privacy].
        clip: of this round, where it has [privacy].
        barred: clients that may not be asked: they took part in this tree already.
        goals: goal and quorum as the operator changed them; None for the specification's. What the
            sum has room for follows from the specification alone, so its bits do not change.
    """

    run: str
    number: int
    kind: RoundKind
    trained: int
    spec: RunSpec
    model: str
    strategy_state: str | None
    manifest: Manifest
    limits: Limits
    stream: Stream | None = field(default=None, repr=False)
    clip: float = 0.0
    barred: frozenset[str] = frozenset()
    goals: tuple[int, int] | None = None

    @property
    def config(self) -> RoundConfig:
        """The knobs of the round."""
        return changed(self.spec.cohort_config(self.number, self.stream), self.goals)

    @property
    def note(self) -> StateNote:
        """Which files belong to `model`."""
        return StateNote.read(self.strategy_state)

    @property
    def given(self) -> FileRef:
        """The model that clients get: not quite `model` where differences are encoded."""
        own = FileRef(digest=self.model, size_bytes=self.manifest.size_bytes)
        return self.note.held or own

    @property
    def key(self) -> tuple[str, int]:
        """Run and number."""
        return self.run, self.number

    def row(self, opened_at: float, deadline_at: float) -> dict[str, Any]:
        """The round's row in the ledger, as it is opened; times are seconds since the epoch."""
        return {
            "run": self.run,
            "number": self.number,
            "kind": self.kind.value,
            "opened_at": opened_at,
            "deadline_at": deadline_at,
            "model_in": self.model,
        }


def changed(config: RoundConfig, goals: tuple[int, int] | None) -> RoundConfig:
    """The knobs of a round, with another goal and quorum where they were changed."""
    return config if goals is None else replace(config, goal=goals[0], quorum=goals[1])


def task_key(plan: RoundPlan) -> fleet_pb2.TaskKey:
    """How messages name a round."""
    return fleet_pb2.TaskKey(run=plan.run, round=plan.number)


def task_of(plan: RoundPlan) -> fleet_pb2.Task:
    """The task of a round; a client's seed and the time that is left are set when it is sent."""
    spec = plan.spec
    train = plan.kind is RoundKind.TRAIN
    settings = spec.local_training().at(plan.trained + 1, spec.round_config().goal)
    rule = spec.build_strategy().rule
    note, given = plan.note, plan.given
    sent = note.sent if train or rule.picks else None
    scheme, personal = spec.build_compression(), spec.build_personal()
    return fleet_pb2.Task(
        key=task_key(plan),
        kind=fleet_pb2.TASK_KIND_TRAIN if train else fleet_pb2.TASK_KIND_EVALUATE,
        model=_reference(given),
        differences=[
            fleet_pb2.Difference(base=each.base, difference=_reference(each.file))
            for each in note.differences
        ],
        train=train_message(settings),
        rule=fleet_pb2.ClientRule(name=rule.name, settings=rule.settings()),
        evaluate=spec.evaluate,
        weighting=plan.limits.weighting,
        limits=fleet_pb2.UpdateLimits(
            max_abs=spec.max_abs, max_weight=spec.max_weight, max_bytes=plan.limits.max_bytes
        ),
        received=None if sent is None else _reference(sent),
        compression=None if scheme is None else scheme.message(),
        personal=personal_message(personal) if personal.remembers else None,
        config={name: scalar_message(value) for name, value in spec.config.items()},
        privacy=_privacy(plan) if train else None,
        run_name=spec.name,
    )


def _reference(file: FileRef) -> fleet_pb2.ModelRef:
    return fleet_pb2.ModelRef(digest=file.digest, size_bytes=file.size_bytes)


def for_client(
    common: fleet_pb2.Task, client: str, seed: int, memory_round: int | None
) -> fleet_pb2.Task:
    """A round's task with what differs between its clients.

    Args:
        common: of `task_of`.
        client: who gets it.
        seed: of the run.
        memory_round: the last round that counted an update of this client; None where clients
            remember nothing.
    """
    task = fleet_pb2.Task()
    task.CopyFrom(common)
    if memory_round is not None:
        task.memory_round = memory_round
    task.seed = task_seed(seed, task.key.round, client)
    return task


def names(task: fleet_pb2.Task, digest: str) -> bool:
    """Does a client that has this task ask for these bytes, as a model or on the way to one?"""
    differences = (each.difference.digest for each in task.differences)
    return bool(digest) and digest in (task.received.digest, task.model.digest, *differences)


def _privacy(plan: RoundPlan) -> fleet_pb2.Privacy | None:
    """What a device does for privacy: clip, count, and make noise where the server must not."""
    wanted = plan.spec.privacy_plan()
    if wanted is None:
        return None
    settings = wanted.settings
    return fleet_pb2.Privacy(
        clip=plan.clip,
        count_within=settings.adaptive,
        noise_multiplier=0.0 if settings.central else wanted.noise_multiplier,
        seeded=settings.noise == "seed",
    )
