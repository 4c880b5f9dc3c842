"""The plan of a round: everything decided when it opens, and the task of its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import FileRef, TaskDescription, UpdateBounds, name_in_tree
from fedloom.protocol.updates.message import Limits
from fedloom.server.engine import BestModel, RoundConfig, RoundKind
from fedloom.server.engine.conduct import Conduct
from fedloom.server.planning.masking import masked_config
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.state_note import StateNote
from fedloom.server.planning.task import describe
from fedloom.strategies.privacy import Participations, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRound:
    """What a parent server decides of a round that this server holds as a site.

    Attributes:
        site: name of this server at the parent.
        path: place of this server in the tree of sites, as "north/ward"; the top is not named.
        goal: devices whose updates the sum is to have, and the most that it may have.
        deadline_s: seconds from the opening of the round to its deadline.
    """

    site: str
    path: str
    goal: int
    deadline_s: float

    def config(self, usual: RoundConfig, least: int = 1) -> RoundConfig:
        """The settings of the round: it closes with any device, as the quorum is the parent's.

        With masking sessions it closes with `least` devices, the members of a smallest one.
        """
        return replace(
            usual, goal=self.goal, quorum=least, over_selection=1.0, candidates=1,
            deadline_s=self.deadline_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The plan of a round.

    Attributes:
        run: id.
        number: from 1, rising with every round opened.
        kind: training or evaluation.
        trained: training rounds committed before this one.
        spec: of the run.
        model: digest of the model from which it starts.
        strategy_state: the ledger's note of the strategy's state, or None at the start; of a
            parent's round, of the files that its devices get beside the model.
        manifest: of the model.
        limits: on updates.
        stream: of the run's noise key, with [privacy].
        clip: of this round, with [privacy].
        participations: of the clients, as far as the privacy claim limits them.
        messages: the file for each client, in a round of messages; empty in other rounds.
        goals: goal and quorum that the operator set; None for those of the specification. The
            capacity of the sum follows from the specification alone, so its bits do not change.
        best: the run's best model before the round; None in a run that has none.
        conduct: of the clients in masking sessions; of nobody in a run without or with [privacy].
        upstream: what a parent server decides of it; None for a round of this server.
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
    participations: Participations = field(default_factory=Participations)
    messages: Mapping[str, FileRef] = field(default_factory=dict, repr=False)
    goals: tuple[int, int] | None = None
    best: BestModel | None = None
    conduct: Conduct = field(default_factory=Conduct)
    upstream: UpstreamRound | None = None

    @property
    def config(self) -> RoundConfig:
        """The settings of the round."""
        if self.messages:
            return self.spec.message_config(len(self.messages))
        config, masking = changed(self.spec.round_config(), self.goals), self.spec.own_sessions()
        if self.upstream is not None:
            config = self.upstream.config(config, 1 if masking is None else masking.min_group)
        return config if masking is None else masked_config(config, masking)

    @property
    def capacity(self) -> int:
        """Most updates of devices that the round accepts."""
        return self.spec.capacity if self.upstream is None else self.upstream.goal

    def name_of(self, client: str) -> str:
        """The name by which a client's randomness is drawn: of a site's device, with the site's."""
        return name_in_tree(self.place, client)

    @property
    def place(self) -> str:
        """Place of this server in a tree of sites; empty if it is no site."""
        return "" if self.upstream is None else self.upstream.path

    @property
    def note(self) -> StateNote:
        """Which files belong to `model`."""
        return StateNote.read(self.strategy_state)

    @property
    def given(self) -> FileRef:
        """The model that clients get; it differs from `model` if differences are encoded."""
        own = FileRef(digest=self.model, size_bytes=self.manifest.size_bytes)
        return self.note.held or own

    def given_to(self, client: str) -> FileRef:
        """The model, or the message, that a client gets."""
        return self.messages.get(client, self.given)

    @property
    def key(self) -> tuple[str, int]:
        """Run and number."""
        return self.run, self.number

    def row(self, opened_at: float, deadline_at: float) -> dict[str, Any]:
        """The ledger's row of the new round; times are seconds since the epoch."""
        return {
            "run": self.run,
            "number": self.number,
            "kind": self.kind.value,
            "opened_at": opened_at,
            "deadline_at": deadline_at,
            "model_in": self.model,
            "upstream": self.upstream and self._ordered(self.upstream),
        }

    def _ordered(self, upstream: UpstreamRound) -> dict[str, Any]:
        found = {"goal": upstream.goal, "path": upstream.path, "trained": self.trained}
        return found if self.strategy_state is None else {**found, "state": self.strategy_state}


def changed(config: RoundConfig, goals: tuple[int, int] | None) -> RoundConfig:
    """Return the settings of a round, with the goal and quorum that an operator set."""
    return config if goals is None else replace(config, goal=goals[0], quorum=goals[1])


def task_of(plan: RoundPlan) -> TaskDescription:
    """Return the task of a round; the client's seed and the deadline are set when it is sent."""
    spec, note = plan.spec, plan.note
    asked = describe(
        spec, run=plan.run, number=plan.number, trained=plan.trained, kind=plan.kind, clip=plan.clip
    )
    return replace(
        asked,
        masking=asked.masking and replace(asked.masking, site=plan.place),
        model=plan.given,
        differences=note.differences,
        received=note.sent if asked.receives else None,
        config={**asked.config, **note.config},
        bounds=UpdateBounds(
            max_abs=spec.max_abs,
            max_weight=spec.max_weight,
            max_bytes=plan.limits.max_bytes,
            max_norm=None if asked.masking is None else plan.limits.max_norm,
        ),
    )
