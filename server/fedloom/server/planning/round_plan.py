"""What a round is before anything happens in it, and the task that its clients are offered."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import DevicePrivacy, FileRef, TaskDescription, UpdateBounds
from fedloom.protocol.updates.message import Limits
from fedloom.server.engine import RoundConfig, RoundKind
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.state_note import StateNote
from fedloom.strategies.privacy import Stream


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


def task_of(plan: RoundPlan) -> TaskDescription:
    """Return the task of a round; the client's seed and the deadline are set when it is sent."""
    spec = plan.spec
    train = plan.kind is RoundKind.TRAIN
    rule, note = spec.build_strategy().rule, plan.note
    return TaskDescription(
        run=plan.run,
        round=plan.number,
        train=train,
        model=plan.given,
        differences=tuple(note.differences),
        settings=spec.local_training().at(plan.trained + 1, spec.round_config().goal),
        rule=rule,
        evaluate=spec.evaluate,
        weighting=plan.limits.weighting,
        bounds=UpdateBounds(
            max_abs=spec.max_abs, max_weight=spec.max_weight, max_bytes=plan.limits.max_bytes
        ),
        received=note.sent if train or rule.picks else None,
        scheme=spec.build_compression(),
        personal=spec.build_personal(),
        config=spec.config,
        privacy=_privacy(plan) if train else None,
        run_name=spec.name,
    )


def _privacy(plan: RoundPlan) -> DevicePrivacy | None:
    """What a device does for privacy: clip, count, and add noise where the server must not."""
    wanted = plan.spec.privacy_plan()
    if wanted is None:
        return None
    settings = wanted.settings
    return DevicePrivacy(
        clip=plan.clip,
        count_within=settings.adaptive,
        noise_multiplier=0.0 if settings.central else wanted.noise_multiplier,
        seeded=settings.noise == "seed",
    )
