"""The specification of a run, as an operator submits it in TOML or JSON; checked when built.

The ledger keeps it, and the strategy, the settings of rounds and the limits are built from it, so a
restarted server or a simulator continues with the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, wraps
from typing import Any, Literal, TypeVar

from fedloom.protocol.codecs import Codec
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import call, check_names, named, subtable, typed
from fedloom.protocol.task_description import WEIGHTINGS, Scalar, check_config
from fedloom.protocol.updates.compression import Scheme, scheme
from fedloom.server.engine import (
    BestSettings,
    BufferConfig,
    MessageConfig,
    RoundConfig,
    RoundKind,
    RunConfig,
    SampledConfig,
    Select,
    by_coins,
    select_by,
    uniform,
)
from fedloom.server.planning.fair_share import check_priority, check_share
from fedloom.server.planning.masking import check_masking, masked_facts, over_sessions_text
from fedloom.server.planning.messages import DEADLINE_S, MessageSettings, check_settings
from fedloom.server.planning.plain_values import check_values
from fedloom.server.planning.sites.refusals import check_sites
from fedloom.server.planning.spec_tables import filled
from fedloom.server.studies import check_study
from fedloom.strategies import (
    Adapters,
    ClientRule,
    LocalTraining,
    MetricsSettings,
    Personal,
    Strategy,
    compatibility,
    privacy,
    registry,
)
from fedloom.strategies.exact.grid import Grid
from fedloom.strategies.masking.noise import SessionNoise
from fedloom.strategies.masking.over_sessions import OverSessions
from fedloom.strategies.masking.settings import Masking
from fedloom.strategies.masking.words import MaskedWords
from fedloom.strategies.privacy import Plan, Privacy, Stream
from fedloom.strategies.selection import History, Selection
from fedloom.strategies.staleness import staleness_weighting

T = TypeVar("T")

MODES = ("synchronous", "buffered")
"""Modes of rounds: all clients work on one model, or each on the newest when it was asked."""

OVER = ("updates", "sessions")
"""What an aggregation compares: updates, or the means of masking sessions."""

MAX_ROUNDS = 10**9

MOST_DRAWN = 1 << 20
"""Updates for which a Poisson-sampled round has room: a full sum would displace drawn clients."""


def _once(build: "Callable[[RunSpec], T]") -> "Callable[[RunSpec], T]":
    """Let a method that builds a part from the settings, which never change, build it once."""
    name = f"{build.__name__}()"

    @wraps(build)
    def built(spec: "RunSpec") -> T:
        parts: dict[str, Any] = vars(spec)
        if name not in parts:
            parts[name] = build(spec)
        found: T = parts[name]
        return found

    return built


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run, as submitted.

    Attributes:
        name: for display; the run's id starts with it.
        rounds: training rounds to commit.
        seed: of the selection of cohorts and of the clients' randomness.
        evaluate: clients evaluate each model that they receive, and the last one in a separate
            round; with "after", each trained model in a separate round, and not the first one.
        evaluate_only: nothing is trained: clients evaluate the given model in all rounds (default:
            one round).
        weighting: `examples`, `client` or `uniform`; by default `examples`, or `uniform` with an
            aggregation or a strategy that counts every client once.
        strategy: name and settings, `{"name": "fedavg", ...}`.
        rule: client rule, name and settings.
        aggregation: how updates become means, name and settings, `{"name": "median"}`; with `over =
            "sessions"` a robust rule over the means of masking sessions.
        compression: how updates and models are encoded, `{"up": {"name": "int8", ...}, "down":
            ...}`: a codec's settings, and for `up` also `error_feedback`.
        personal: tensors that each client keeps: settings of `Personal`.
        adapters: what is averaged of low-rank adapters: settings of `Adapters`; empty for their
            factors, of any rank that a client sends.
        cohort: settings of `RoundConfig`; with `mode = "buffered"` those of `BufferConfig`.
        selection: policy that draws cohorts, name and settings.
        metrics: settings of `MetricsSettings`.
        best: how the best model is found, and when the run ends early: settings of `BestSettings`.
        train: settings of `LocalTraining`.
        max_abs: largest magnitude of a value that clients may send.
        max_norm: largest Euclidean norm of an update; None for no limit.
        max_weight: largest weight of an update.
        sum_bits: 16, 24, 32 or 64 rounds sums to a fixed grid, so that they fit as many bits; None
            for exact sums. Runs with [privacy] always use 64 bits, to whose grid their noise
            belongs.
        precision: the largest error of a mean that the run accepts of its grid, in units of the
            values; required with sum_bits below 64.
        config: passed to the client's code unchanged.
        privacy: settings of `Privacy`; empty for no differential privacy.
        masking: settings of `Masking`; None for sums of updates that the server sees.
        priority: of runs that wait for the same clients, or in the queue, the highest comes first.
        share: of these clients, among runs of one priority: with 2 twice as many tasks as with 1.
        study: only clients of this study take part; empty for those of no study.
        sites: clients are sites, which sum the updates of their devices; goal, quorum and
            over-selection count these.
        flower: settings of `MessageSettings`: a Flower `ServerApp` decides what clients do; empty
            for rounds of this server.
    """

    name: str = "run"
    rounds: int = 10
    seed: int = 0
    evaluate: bool | Literal["after"] = True
    evaluate_only: bool = False
    weighting: str = "examples"
    strategy: Mapping[str, Any]
    rule: Mapping[str, Any]
    aggregation: Mapping[str, Any]
    compression: Mapping[str, Any]
    personal: Mapping[str, Any]
    adapters: Mapping[str, Any]
    cohort: Mapping[str, Any]
    selection: Mapping[str, Any]
    metrics: Mapping[str, Any]
    best: Mapping[str, Any]
    train: Mapping[str, Any]
    max_abs: float = 1024.0
    max_norm: float | None = None
    max_weight: float = float(1 << 18)
    sum_bits: Literal[16, 24, 32, 64] | None = None
    precision: float | None = None
    config: Mapping[str, Scalar]
    privacy: Mapping[str, Any]
    masking: Mapping[str, Any] | None = None
    priority: int = 0
    share: float = 1.0
    study: str = ""
    sites: bool = False
    flower: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Build everything once, so that settings that cannot work are refused now."""
        if not self.name.replace("-", "").replace("_", "").isalnum() or len(self.name) > 40:
            raise UsageError(
                f"Expected a name of at most 40 letters, digits, - and _, got {self.name!r}."
            )
        if not 0 < self.rounds <= MAX_ROUNDS:
            raise UsageError(f"Expected rounds from 1 to {MAX_ROUNDS}, got {self.rounds}.")
        check_priority(self.priority)
        check_share(self.share)
        check_study(self.study)
        typed("weighting", self.weighting, Literal[WEIGHTINGS])
        for name, value in self.config.items():
            typed(f"config.{name}", value, Scalar)
        if self.max_norm is not None and not self.max_norm > 0:
            raise UsageError(f"Expected max_norm > 0, got {self.max_norm}.")
        try:
            check_config(self.config)
            self._check_evaluation()
            self._check_parts()
            self.build_selection()
            self.metrics_settings()
            self.local_training().at(1, self.round_config().goal)
            self.round_config()
            self.run_config()
            self.exponent()
            self._check_local_noise()
            self._check_precision()
            self._check_masking()
            self._check_messages()
            if self.sites:
                check_sites(self)
        except (ValueError, TypeError, privacy.MissingAccountant) as error:
            raise UsageError(str(error)) from None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and other processes get the settings, and build the parts themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def build_strategy(self) -> Strategy:
        """The strategy, with its client rule and its aggregation."""
        rule = registry.client_rule(*named(self.rule, "rule", registry.CLIENT_RULES), table="rule")
        name, settings = named(self.aggregation, "aggregation", registry.AGGREGATIONS)
        over = typed("aggregation.over", settings.pop("over", OVER[0]), Literal[OVER])
        aggregation = registry.aggregation(name, settings, table="aggregation")
        if over == OVER[1]:
            aggregation = OverSessions(aggregation)
        return registry.strategy(
            *named(self.strategy, "strategy", registry.STRATEGIES),
            rule=rule,
            aggregation=aggregation,
            config={"lr": self.train.get("learning_rate", 0.0), **self.config},
            table="strategy",
        )

    @cached_property
    def client_rule(self) -> ClientRule:
        """The strategy's rule of local training."""
        return self.build_strategy().rule

    def _check_parts(self) -> None:
        """Refuse a strategy that does not work with the other parts of the run."""
        scheme, broadcast = self.build_compression(), self.build_broadcast()
        cohort, masked = self._round_config(), self.build_masking()
        compatibility.check(
            compatibility.Recipe(
                strategy=self.build_strategy(),
                weighting=self.weighting,
                quorum=cohort.quorum,
                buffered=isinstance(cohort, BufferConfig),
                selection=self.build_selection(),
                codec="" if scheme is None else scheme.codec.name,
                drifts=scheme is not None and not (scheme.codec.exact or scheme.error_feedback),
                broadcast="" if broadcast is None else broadcast.name,
                personal=self.build_personal(),
                adapters=self.build_adapters(),
                privacy=self.build_privacy(),
                evaluate=bool(self.evaluate) or self.evaluate_only,
                over_selection=cohort.over_selection,
                replace=bool(self.cohort.get("replace", False)),
                uneven=self.local_training().uneven,
                sum_bits=self._bits(),
                masking=masked,
                metrics=self.metrics_settings(),
                messages=bool(self.flower),
            )
        )

    @_once
    def build_compression(self) -> Scheme | None:
        """The encoding of updates; None to send them unencoded."""
        sums = bool(self.client_rule.remembers)
        return scheme(self._direction("up"), table="compression.up", sums=sums)

    def build_broadcast(self) -> Codec | None:
        """The encoding of model differences for clients; None to send whole models.

        The next difference always includes what the last one lost.
        """
        values = self._direction("down")
        if "error_feedback" in values:
            raise UsageError(
                "Expected no error_feedback with compression.down: what one difference loses is "
                "always in the next one. Leave it out."
            )
        made = scheme({**values, "error_feedback": False}, table="compression.down")
        if made is not None and not made.codec.contracts:
            raise UsageError(
                f"Expected no {made.codec.name} as compression.down: clients would train from "
                "values that are 1 / fraction rounds old on average. Take int8 or top_k."
            )
        return None if made is None else made.codec

    def _direction(self, name: str) -> Mapping[str, Any]:
        check_names(self.compression, ("up", "down"), "compression")
        if name not in self.compression:
            return {"name": "none"}
        values = subtable(self.compression, name, "compression")
        named(values, f"compression.{name}")
        return values

    @_once
    def build_personal(self) -> Personal:
        """The tensors that each client keeps."""
        return call(Personal, self.personal, table="personal")

    @_once
    def build_adapters(self) -> Adapters:
        """What is averaged of low-rank adapters."""
        return call(Adapters, self.adapters, table="adapters")

    @cached_property
    def needs(self) -> Literal["sum", "sessions", "each"]:
        """Whether a round needs only the sum of its updates, those of its sessions, or each."""
        return "each" if self.build_adapters().by_products else self.build_strategy().needs

    @property
    def least_sessions(self) -> int:
        """The fewest masking sessions whose sums a training round needs."""
        return self.build_strategy().aggregation.min_updates if self.needs == "sessions" else 1

    @_once
    def build_masking(self) -> Masking | None:
        """The [masking] table, or None."""
        if self.masking is None:
            return None
        if not self.masking:  # silently off, it would be taken for on
            raise UsageError(
                "Expected a setting in [masking], such as group = 64, got an empty table. Add one, "
                "or leave out [masking]."
            )
        return call(Masking, self.masking, table="masking")

    def own_sessions(self) -> Masking | None:
        """The settings of masking sessions of the run's clients; None where sites hold them."""
        return None if self.sites else self.build_masking()

    @property
    def least_devices(self) -> int:
        """The fewest devices whose updates a site may sum: those of a smallest session."""
        masking = self.build_masking()
        return 1 if masking is None else masking.min_group

    def _check_masking(self) -> None:
        settings, grid = self.build_masking(), self.grid()
        if settings is None or grid is None:
            return
        best = call(BestSettings, self.best, table="best").metric if self.best else None
        check_masking(
            settings,
            grid,
            finishers=self._finishers(),
            max_examples=self._most_examples(),
            metrics=self.metrics,
            best=best,
            trains=not self.evaluate_only,
            noise=self.session_noise(),
        )

    def _finishers(self) -> range:
        """The numbers of updates with which a round may close."""
        config = self._round_config()
        return range(config.quorum, config.goal + 1)

    def _most_examples(self) -> float:
        """The largest number of examples that counts for a metric."""
        return self.metrics_settings().max_weight or self.max_weight

    def masked_words(self, *, trains: bool = True, evaluates: bool = True) -> MaskedWords | None:
        """The words of the updates of a masked round; None without [masking].

        Args:
            trains: whether its clients train.
            evaluates: whether they evaluate.
        """
        settings, metrics = self.build_masking(), self.metrics_settings()
        if settings is None:
            return None
        return MaskedWords.of_round(
            settings.metrics if metrics.enabled and metrics.mean else {},
            weighting=self.weighting,
            max_examples=self._most_examples(),
            trains=trains,
            evaluates=evaluates,
            private=bool(self.privacy),
        )

    # ---- privacy -----------------------------------------------------------------------------

    @_once
    def build_privacy(self) -> Privacy | None:
        """The [privacy] table, or None."""
        if not self.privacy:
            return None
        return call(Privacy, self.privacy, table="privacy")

    def privacy_plan(self) -> Plan | None:
        """The run's noise, budget and claim; None without [privacy]."""
        settings = self.build_privacy()
        if settings is None:
            return None
        masking, goal = self.build_masking(), self._round_config().goal
        sessions = None
        if masking is not None:
            sessions = masking.min_group, max(masking.min_group, min(masking.group, goal))
        return privacy.plan(settings, goal=goal, rounds=self.rounds, sessions=sessions)

    def session_noise(self) -> SessionNoise | None:
        """The noise of the masking sessions of the run; None without."""
        plan, masking = self.privacy_plan(), self.build_masking()
        if plan is None or masking is None:
            return None
        return SessionNoise(
            clip=plan.settings.clip,
            noise_multiplier=plan.noise_multiplier,
            group=masking.group,
            min_group=masking.min_group,
        )

    def _check_local_noise(self) -> None:
        plan = self.privacy_plan()
        if plan is None or not plan.settings.is_local:
            return
        needed = plan.settings.clip * (1 + 14 * plan.noise_multiplier)
        if self.max_abs < needed:
            raise UsageError(
                f'Expected max_abs >= {needed:g} with privacy.mechanism = "local", whose noise is '
                f"that large, got {self.max_abs:g}. Raise max_abs."
            )

    def build_selection(self) -> Selection:
        """The policy that draws cohorts."""
        return registry.selection(
            *named(self.selection, "selection", registry.SELECTIONS), table="selection"
        )

    def select(
        self, number: int, kind: RoundKind, history: History | None, stream: Stream | None = None
    ) -> Select:
        """The draw of a round's cohort.

        Args:
            number: the round's.
            kind: an evaluation round draws uniformly, with any policy.
            history: of clients in committed rounds.
            stream: of the run's secret; keeps the draw secret if the privacy claim depends on it.
        """
        settings = self.build_privacy()
        if settings is not None and settings.sampling == "poisson":
            assert stream is not None
            assert settings.population is not None
            goal, population = self._round_config().goal, settings.population
            coins = partial(privacy.drawn, stream, number, goal=goal, population=population)
            return by_coins(coins)
        if settings is not None and settings.sampling != "none":
            assert stream is not None
            return uniform(int.from_bytes(stream("selection", number, 0, 8), "little"), number)
        if kind is RoundKind.EVALUATE:
            return uniform(self.seed, number)
        deadline_s = self.round_config().deadline_s
        return select_by(self.build_selection(), self.seed, number, history, deadline_s)

    @property
    def draws_check_ins(self) -> bool:
        """Whether rounds may draw devices that check in, which are there for a while alone.

        Not those whose privacy claim depends on whom they draw from, nor a ServerApp's, which
        chooses its clients itself, nor those of sites.
        """
        settings = self.build_privacy()
        secret = settings is not None and settings.sampling != "none"
        return not (secret or self.flower or self.sites)

    @_once
    def metrics_settings(self) -> MetricsSettings:
        """The metrics that are kept of clients; a client weighs at most as in the model."""
        return call(
            MetricsSettings, {"max_weight": self.max_weight, **self.metrics}, table="metrics"
        )

    @_once
    def local_training(self) -> LocalTraining:
        """The clients' local training in a round."""
        return call(LocalTraining, self.train, table="train")

    @_once
    def round_config(self) -> RoundConfig:
        """The settings of a round; those of a buffer in an asynchronous run."""
        config = self._round_config()
        settings = self.build_privacy()
        if settings is None:
            return config
        if settings.sampling == "none":
            return replace(config, replace=False, candidates=1)
        assert settings.population is not None
        coins = settings.sampling == "poisson"
        # A subset of one size must be of at least the population of the claim. Coins hold their
        # probability with any number of clients; fewer only make a smaller cohort.
        chosen = coins and config.candidates > 1
        return SampledConfig(
            coins=coins,
            goal=config.goal,
            deadline_s=config.deadline_s,
            patience_s=config.patience_s,
            candidates=config.candidates if chosen else max(config.candidates, settings.population),
        )

    @_once
    def _round_config(self) -> RoundConfig:
        usual = {"goal": 1, "deadline_s": DEADLINE_S} if self.flower else {}
        settings = {**usual, **self.cohort}
        mode = typed("cohort.mode", settings.pop("mode", MODES[0]), Literal[MODES])
        if mode == MODES[0]:
            return call(RoundConfig, settings, table="cohort")
        if "staleness" in settings:
            settings["staleness"] = staleness_weighting(settings["staleness"])
        return call(BufferConfig, settings, table="cohort")

    def buffer_config(self) -> BufferConfig | None:
        """The settings of a buffer; None in a synchronous run."""
        config = self.round_config()
        return config if isinstance(config, BufferConfig) else None

    def run_config(self) -> RunConfig:
        """The settings of the run, with no more rounds than its privacy budget allows."""
        plan = self.privacy_plan()
        return RunConfig(
            rounds=self.rounds if plan is None else plan.last,
            evaluate_last=bool(self.evaluate),
            evaluate_each=self.evaluate == "after" and not self.evaluate_only,
            evaluate_only=self.evaluate_only,
            most_opened=None if plan is None or plan.settings.central else plan.last,
            on_demand=bool(self.flower),
            best=self.best_settings(),
        )

    def best_settings(self) -> BestSettings | None:
        """How the best model is found; None in a run whose rounds say nothing about its models.

        Raises:
            UsageError: a setting is not valid, or the run can have no best model.
        """
        if self.flower:
            return None  # `_check_messages` refuses its settings
        if not (why := self._without_best()):
            return call(BestSettings, self.best, table="best")
        if self.best:
            raise UsageError(f"{why}, or leave out [best].")
        return None

    def _without_best(self) -> str:
        """Why the run can have no best model; empty if it can."""
        if self.privacy:
            return (
                "Expected no [best] with [privacy], got one: no noise protects what clients "
                "measure, so a private run has no metrics. Evaluate its models in another run"
            )
        if self.evaluate_only:
            return (
                "Expected a run that trains with [best], got evaluate_only = true, which makes no "
                "models. Remove evaluate_only"
            )
        if not self.evaluate:
            return (
                'Expected evaluate = true or "after" with [best], got false: no round would '
                "measure a model. Set evaluate"
            )
        if self.buffer_config() is not None:
            return (
                'Expected no [best] with cohort.mode = "buffered", got one: clients of a buffer '
                "evaluate models of several rounds, so their mean belongs to none of them. Remove "
                "cohort.mode"
            )
        metrics = self.metrics_settings()
        if not (metrics.enabled and metrics.mean):
            return (
                "Expected metrics.enabled and metrics.mean = true with [best], got false: the best "
                "model is that with the best mean. Set both to true"
            )
        return ""

    def _check_evaluation(self) -> None:
        if self.evaluate == "after" and self.buffer_config() is not None:
            raise UsageError(
                'Expected evaluate = true or false with cohort.mode = "buffered", got "after": '
                "clients train between two buffers."
            )

    def message_settings(self) -> MessageSettings | None:
        """The settings of a run of a Flower `ServerApp`; None for other runs."""
        return call(MessageSettings, self.flower, table="flower") if self.flower else None

    def _check_messages(self) -> None:
        """Check that a run of a `ServerApp` sets nothing that its app decides."""
        if self.message_settings() is None:
            return
        types = {field.name: field.type for field in fields(self)}
        usual = {f.name: f.default for f in fields(self)} | filled({"flower": self.flower}, types)
        check_settings(self.as_dict(), usual)

    def message_config(self, clients: int) -> MessageConfig:
        """The settings of a round that sends a message to each of so many clients."""
        config = self._round_config()
        return MessageConfig(
            goal=clients, deadline_s=config.deadline_s, patience_s=config.patience_s
        )

    @property
    def special(self) -> tuple[str, ...]:
        """Names of settings that change plain local training."""
        parts = self.local_training(), self.build_personal(), self.build_adapters()
        return tuple(name for part in parts for name in part.special)

    @cached_property
    def capacity(self) -> int:
        """Most updates that one round can accept: the goal, and those admitted at the same time."""
        config = self.round_config()
        beside = config.concurrency if isinstance(config, BufferConfig) else config.goal
        if self.flower:
            return MOST_DRAWN
        usual = config.goal + beside + 64
        return max(usual, MOST_DRAWN) if config.by_coins else usual

    @property
    def is_narrow(self) -> bool:
        """Whether a round's sums are rounded to a grid of 2^-exponent."""
        return self.sum_bits is not None or self.masking is not None or bool(self.privacy)

    def grid(self) -> Grid | None:
        """The grid of narrow sums; None for exact sums, and for sums that get noise as a whole."""
        hidden = bool(self.privacy) and self.masking is None
        return None if hidden or not self.is_narrow else self._grid()

    def _grid(self) -> Grid:
        masked, noise = self.build_masking(), self.session_noise()
        grid = Grid(
            bits=self._bits() or 64,
            max_abs=self.max_abs if noise is None else min(self.max_abs, noise.clip),
            weighting=self.weighting,
            max_weight=self.max_weight,
            updates=self.capacity,
            session=None if masked is None else masked.group,
        )
        return grid if noise is None else noise.on(grid)

    def _bits(self) -> int | None:
        """Bits of a narrow sum; None for exact sums."""
        masked = self.build_masking()
        return self.sum_bits if masked is None else masked.sum_bits

    def sum_facts(self, *, held: bool = False) -> dict[str, Any] | None:
        """Plain values that describe a run's narrow sums, for `sum_lines`; None as for `grid`.

        Args:
            held: whether it is a run of a parent, whose rounds have as many devices as are there.
        """
        grid, settings = self.grid(), self.build_masking()
        if grid is None:
            return None
        if settings is None:
            return grid.facts(self.precision)
        finishers = self._finishers()
        if self.sites or held:
            finishers = range(settings.min_group, min(settings.group, finishers[-1]) + 1)
        facts = masked_facts(settings, grid, finishers, self.session_noise())
        aggregation = self.build_strategy().aggregation
        if isinstance(aggregation, OverSessions):
            facts["masking"]["notes"] = {
                **facts["masking"].get("notes", {}),
                "robust": over_sessions_text(aggregation, self._finishers(), settings.group),
            }
        return facts

    def _check_precision(self) -> None:
        grid, precision = self.grid(), self.precision
        if self.masking is not None:
            for name in ("sum_bits", "precision"):
                if getattr(self, name) is not None:
                    raise UsageError(
                        f"Expected {name} in [masking], got it at the top level. Set "
                        f"masking.{name}."
                    )
            return
        if grid is None and precision is not None:
            instead = "[privacy]" if self.privacy else "exact sums"
            raise UsageError(
                f"Expected no precision with {instead}, got {precision:g}: it limits the error of "
                "a grid that sum_bits sets. Leave it out."
            )
        if grid is not None and grid.bits < 64 and precision is None:
            raise UsageError(
                f"Expected precision with sum_bits = {grid.bits}: the largest error of a mean that "
                f"you accept, in units of the values. These bounds reach {grid.largest_error:.4g}."
            )
        if grid is not None and precision is not None:
            grid.check(precision)

    def exponent(self) -> int:
        """The fixed-point format of a round's sums; it follows from the specification alone."""
        most = self._grid().exponent
        plan = self.privacy_plan()
        if plan is None or not plan.settings.central:
            return most
        return privacy.grid_exponent(
            plan.noise_multiplier, plan.settings.clip, most, plan.settings.grid_bits
        )

    @cached_property
    def remembers(self) -> bool:
        """Whether clients keep tensors from round to round."""
        compression = self.build_compression()
        of_codec = compression is not None and compression.remembers
        own = self.build_personal().remembers
        return of_codec or own or bool(self.client_rule.remembers)

    def as_dict(self) -> dict[str, Any]:
        """The table from which `parse` builds this."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()}


def parse(values: Mapping[str, Any]) -> RunSpec:
    """A checked specification from parsed TOML or JSON.

    Raises:
        UsageError: an unknown setting, a wrong type or a combination that cannot work.
    """
    check_values(values)
    merged = filled(values, {field.name: field.type for field in fields(RunSpec)})
    if "weighting" not in merged and not _is_weighted(merged):
        merged["weighting"] = "uniform"
    return RunSpec(**merged)


def _is_weighted(values: Mapping[str, Any]) -> bool:
    """Whether updates may count by their weights; unknown names are refused elsewhere."""
    aggregation = registry.AGGREGATIONS.get(str(values["aggregation"].get("name")))
    strategy = registry.STRATEGIES.get(str(values["strategy"].get("name")))
    takes = getattr(strategy, "weightings", WEIGHTINGS)
    return getattr(aggregation, "weighted", True) and "examples" in takes
