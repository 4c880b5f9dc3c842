"""The position of a run: the model, state and client history from which its next round starts.

Invariants: it changes only when a round ends or the run is rolled back; the history of clients and
their conduct follow from the ledger alone, so they are the same after a restart.
"""

from collections.abc import Mapping, Sequence

from fedloom.protocol import flower_messages
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.updates.header import header_limit_bytes
from fedloom.server.engine import BestModel, RoundKind, Select, drawn_last
from fedloom.server.engine.conduct import ROUNDS, PastSession, conduct
from fedloom.server.ledger import ABANDONED, COMMITTED, SENT, Ledger, Point
from fedloom.server.ledger.rows import CountedRoundRow, RunRow
from fedloom.server.planning import best as best_models
from fedloom.server.planning import limits as run_sums
from fedloom.server.planning.masking import check_goals
from fedloom.server.planning.round_plan import RoundPlan, changed
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.server.rounds.commit import Outcome
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.observed_rounds import add_rounds
from fedloom.strategies.privacy import Participations
from fedloom.strategies.privacy.participation import counted
from fedloom.strategies.selection import History


class Position:
    """The position of a run.

    Attributes:
        spec: of the run.
        model: digest of the newest model.
        header_limit_bytes: largest header that an update of the run may have.
        best: its best model; None in a run that has none.
    """

    def __init__(self, row: RunRow, manifest: Manifest, context: RoundsContext) -> None:
        self.spec: RunSpec = parse(row.spec)
        self.model: str = row.model
        self._run: str = row.id
        messages = self.spec.message_settings()
        if messages is not None:
            manifest = flower_messages.manifest(messages.max_bytes)
        self._manifest = manifest
        self._context = context
        self._limits = run_sums.limits(self.spec, manifest)
        self._strategy_state: str | None = row.strategy_state
        self._goals: tuple[int, int] | None = (row.goals[0], row.goals[1]) if row.goals else None
        self._history = History()
        self._participations = Participations()
        self._sessions: list[PastSession] = []
        self.best = best_models.first_best(self.spec)
        self.header_limit_bytes = header_limit_bytes(manifest, len(self._limits.groups))

    async def look_back(self, rounds: Sequence[CountedRoundRow]) -> None:
        """Read the clients' history from committed rounds, who took part, and the best model.

        `rounds` are all of the run's, in order.
        """
        self.best = best_models.look_back(self.spec, [row for row in rounds if counts(row)])
        context, policy = self._context, self.spec.build_selection()
        if policy.needs:
            add_rounds(
                self._history,
                await context.in_ledger(context.ledger.observations, self._run),
                policy,
            )
        if self._judges:
            before = max((r.number for r in rounds if r.state in _OVER), default=0) + 1
            past = context.ledger.past_sessions
            self._sessions = await context.in_ledger(past, self._run, before - ROUNDS, before)
        settings = self.spec.build_privacy()
        if settings is None or not settings.correlated:
            return
        done = [r.number for r in rounds if (r.kind, r.state) == ("train", "committed")]
        seen: dict[str, tuple[int, int]] = {}
        for trained, number in enumerate(done, 1):
            part = await context.in_ledger(context.ledger.accepted, self._run, number)
            seen.update(counted(seen, (update.client for update in part), trained))
        self._participations = Participations.of(settings, seen, len(done))

    def plan(
        self, number: int, kind: RoundKind, trained: int, messages: Mapping[str, FileRef]
    ) -> RoundPlan:
        """Plan a round from this position, after `trained` committed training rounds.

        `messages` are those of a round of messages, by client.
        """
        clip = run_sums.clip_of(self.spec, self._strategy_state)
        return RoundPlan(
            run=self._run,
            number=number,
            kind=kind,
            trained=trained,
            spec=self.spec,
            model=self.model,
            strategy_state=self._strategy_state,
            manifest=self._manifest,
            limits=run_sums.of_round(self.spec, self._manifest, kind, clip, self._limits),
            stream=self._context.noise.stream(self._run, self.spec),
            clip=clip or 0.0,
            participations=self._participations,
            messages=messages,
            goals=self._goals,
            best=self.best,
            conduct=conduct(self._sessions, number),
        )

    def select(self, plan: RoundPlan) -> Select:
        """The draw of a round's cohort."""
        draw = self.spec.select(plan.number, plan.kind, self._history, plan.stream)
        for last in filter(None, (plan.conduct.dropped, plan.conduct.marked)):
            draw = drawn_last(draw, last)
        return draw

    @property
    def _judges(self) -> bool:
        """Whether the conduct of clients in sessions decides who is drawn.

        Not in private runs: their claims assume that all clients are drawn alike.
        """
        return self.spec.masking is not None and not self.spec.privacy

    def remember(self, sessions: Sequence[PastSession]) -> None:
        """Judge clients by the sessions of a round that has ended, too."""
        if sessions and self._judges:
            since = sessions[0].round - ROUNDS
            kept = (each for each in self._sessions if each.round > since)
            self._sessions = [*kept, *sessions]

    def move(self, outcome: Outcome) -> None:
        """Continue from a committed round."""
        assert outcome.model is not None
        add_rounds(self._history, outcome.observed, self.spec.build_selection())
        self.model, self._strategy_state = outcome.model, outcome.strategy_state
        self._participations, self.best = outcome.participations, outcome.best

    def go_back(self, point: Point, best: BestModel | None) -> None:
        """Continue from the round to which the run was rolled back."""
        self.model, self._strategy_state, self.best = point.digest, point.state, best

    def follow(self, model: str, state: str) -> None:
        """Continue from the model of a round that a parent orders, and the note beside it."""
        self.model, self._strategy_state = model, state

    @property
    def goals(self) -> tuple[int, int]:
        """Goal and quorum of the open round and of later ones."""
        config = self.spec.round_config()
        return self._goals or (config.goal, config.quorum)

    def change_goals(self, goal: int, quorum: int) -> None:
        """Change goal and quorum of later rounds.

        Raises:
            UsageError: the run's goal is fixed, or the numbers do not fit it.
        """
        if self.spec.flower:
            raise UsageError("Expected a run with a goal, got one whose ServerApp names clients.")
        config, buffered = self.spec.round_config(), self.spec.buffer_config() is not None
        if buffered or self.spec.privacy:
            kind = "buffers" if buffered else "privacy, whose claim depends on it"
            raise UsageError(f"Expected a run whose goal may change, got one with {kind}.")
        most = self.spec.capacity - config.goal
        if goal > most:
            raise UsageError(
                f"Expected a goal of at most {most}, which the sums of this run have room for, "
                f"got {goal}: submit a run with a larger goal."
            )
        new, sessions = changed(config, (goal, quorum)), self.spec.least_sessions
        check_goals(new, self.spec.build_masking(), sessions)
        aggregation = self.spec.build_strategy().aggregation
        if sessions == 1 and quorum < aggregation.min_updates:
            raise UsageError(
                f"Expected a quorum of at least {aggregation.min_updates}, as the aggregation "
                f"{aggregation.name} needs so many updates, got {quorum}."
            )
        self._goals = (goal, quorum)


_OVER = (COMMITTED, ABANDONED, SENT)


def counts(row: CountedRoundRow) -> bool:
    """Whether this round was committed and not undone."""
    return row.state == "committed" and row.undone_at is None


def best_at(ledger: Ledger, spec: RunSpec, run: str, point: Point) -> BestModel | None:
    """The best model of the rounds that a rollback leaves."""
    rows = ledger.curve_rows(run)
    return best_models.look_back(spec, (row for row in rows if row.number <= point.number))
