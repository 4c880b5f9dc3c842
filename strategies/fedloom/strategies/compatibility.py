"""Checks that the parts of a run are compatible.

Each check compares two parts; its message names them and says why they do not work together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fedloom.strategies.adapters.settings import Adapters
from fedloom.strategies.base import Strategy
from fedloom.strategies.client_rules import ClientRule
from fedloom.strategies.exact.partial import DELTA
from fedloom.strategies.local_optimizers import LocalOptimizer, LocalSteps
from fedloom.strategies.masking.over_sessions import RULES
from fedloom.strategies.masking.settings import Masking
from fedloom.strategies.metrics import MetricsSettings
from fedloom.strategies.optimizers.fedavg import FedAvg
from fedloom.strategies.optimizers.schedules import Schedule
from fedloom.strategies.personal.settings import Personal
from fedloom.strategies.privacy.settings import Privacy
from fedloom.strategies.selection import Selection, Uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parts of a run that may be incompatible.

    Attributes:
        strategy: with its client rule and its aggregation.
        weighting: `examples`, `client` or `uniform`.
        quorum: the fewest updates with which a round closes.
        buffered: whether rounds are buffers that take updates of older models too.
        selection: policy that draws cohorts.
        codec: of updates; empty for none.
        drifts: whether what the codec loses is lost for good: it is lossy, without error feedback.
        broadcast: codec of differences between models; empty for none.
        personal: tensors or models that each client keeps.
        adapters: what is averaged of low-rank adapters.
        privacy: the [privacy] table, if there is one.
        evaluate: whether clients report metrics of the models that they get.
        over_selection: of the cohort.
        replace: whether an idle client replaces a lost one.
        uneven: setting of [train] that makes clients send different coordinates; empty for none.
        sum_bits: of a narrow sum; None for exact sums.
        masking: the [masking] table, if there is one.
        metrics: that are kept of a round.
        messages: whether a Flower `ServerApp` decides what clients do.
    """

    strategy: Strategy
    weighting: str = "examples"
    quorum: int = 1
    buffered: bool = False
    selection: Selection = field(default_factory=Uniform)
    codec: str = ""
    drifts: bool = False
    broadcast: str = ""
    personal: Personal = field(default_factory=Personal)
    adapters: Adapters = field(default_factory=Adapters)
    privacy: Privacy | None = None
    evaluate: bool = False
    over_selection: float = 1.0
    replace: bool = False
    uneven: str = ""
    sum_bits: int | None = None
    masking: Masking | None = None
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    messages: bool = False


_STEPS: Final = {
    LocalSteps.CONSTANT: "plain gradient descent at the task's learning rate",
    LocalSteps.DESCENT: "plain gradient descent",
    LocalSteps.LINEAR: "gradient descent, plain or with momentum or weight decay,",
}


def check_optimizer(rule: ClientRule, optimizer: LocalOptimizer) -> None:
    """Refuse a local optimizer for which a client rule's formulas do not hold.

    A run does not name it: a simulation calls this when it is built, and a client in its training.

    Raises:
        ValueError: the message names the rule, the optimizer and the reason.
    """
    if optimizer.steps > rule.local_steps:
        raise ValueError(
            f"Expected {_STEPS[rule.local_steps]} as the local optimizer with the client rule "
            f"{rule.name}, which {rule.because}, got {optimizer.name}. Change the optimizer, or "
            "run with another strategy."
        )


Check: TypeAlias = Callable[[Recipe], str]
"""Returns why a recipe cannot work; empty if it can."""


def _weighting(recipe: Recipe) -> str:
    if recipe.weighting in recipe.strategy.weightings:
        return ""
    return (
        f"Expected weighting = {' or '.join(recipe.strategy.weightings)} with the strategy "
        f"{type(recipe.strategy).__name__}, got {recipe.weighting!r}."
    )


def _counts_once(recipe: Recipe) -> str:
    aggregation = recipe.strategy.aggregation
    if aggregation.weighted or recipe.weighting == "uniform":
        return ""
    return (
        f"Expected weighting = uniform with the aggregation {aggregation.name}, which counts every "
        f"client once, got {recipe.weighting!r}."
    )


def _enough(recipe: Recipe) -> str:
    aggregation = recipe.strategy.aggregation
    if recipe.quorum >= aggregation.min_updates:
        return ""
    return (
        f"Expected cohort.quorum >= {aggregation.min_updates} with the aggregation "
        f"{aggregation.name}{_settings_text(aggregation.settings())}, which needs so many updates, "
        f"got {recipe.quorum}."
    )


def _settings_text(settings: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name} = {value}" for name, value in settings.items())
    return f" ({listed})" if listed else ""


def _only_deltas(recipe: Recipe) -> str:
    aggregation, rule = recipe.strategy.aggregation, recipe.strategy.rule
    more = [*(group for group in rule.groups if group != DELTA), *rule.scalars]
    if aggregation.needs == "sum" or not more:
        return ""
    return (
        f"Expected a client rule that sends only its update with the aggregation "
        f"{aggregation.name}, which is robust for nothing else, got {rule.name}, which also sends "
        f"{', '.join(more)}."
    )


def _memory_in_buffers(recipe: Recipe) -> str:
    rule = recipe.strategy.rule
    kept = dict.fromkeys((*rule.remembers, *rule.receives))
    if not (recipe.buffered and kept):
        return ""
    return (
        f"Expected synchronous rounds with the rule {rule.name}, got buffered ones: its "
        f"{', '.join(kept)} and the server's belong to one model. Leave out cohort.mode, or take "
        "a rule without memory."
    )


def _each_in_buffers(recipe: Recipe) -> str:
    aggregation = recipe.strategy.aggregation
    if not recipe.buffered or aggregation.needs == "sum":
        return ""
    return (
        f"Expected the aggregation mean with buffered rounds, got {aggregation.name}: it compares "
        "updates, and those of a buffer are of different models. Leave out cohort.mode or "
        "[aggregation]."
    )


def _learning_in_buffers(recipe: Recipe) -> str:
    if not recipe.buffered or not recipe.selection.needs:
        return ""
    return (
        f"Expected the selection uniform with buffered rounds, got {recipe.selection.name}: it "
        "learns from what a round's clients did, and those of a buffer are still at work. Leave "
        "out cohort.mode or [selection]."
    )


SPARSE: Final = ("top_k", "random_k")
"""Codecs whose updates are mostly zeros."""


def _sparse(recipe: Recipe) -> str:
    aggregation = recipe.strategy.aggregation
    if aggregation.needs == "sum" or recipe.codec not in SPARSE:
        return ""
    return (
        f"Expected a codec that sends every value with the aggregation {aggregation.name}, which "
        f"compares clients, got {recipe.codec}: zeros of omitted values would outvote the rest."
    )


def _lost_for_good(recipe: Recipe) -> str:
    """Refuse losses that a strategy would add up.

    SCAFFOLD's c is the sum of the changes of all c_i, and FedDyn's h of all deltas. What a codec
    loses of them once separates the server's memory from the clients' for the rest of the run.
    """
    rule = recipe.strategy.rule
    if not (recipe.drifts and rule.remembers):
        return ""
    return (
        f"Expected compression.up with error_feedback = true, or lossless, with the client rule "
        f"{rule.name}, whose server adds up what clients send, got {recipe.codec} without: what it "
        "loses would be missing from the server's memory for good."
    )


OMITTING: Final = (*SPARSE, "low_rank")
"""Codecs that leave out parts of an update, which arrive rounds later or never."""


def _late_parts(recipe: Recipe) -> str:
    rule = recipe.strategy.rule
    for direction, codec in (("up", recipe.codec), ("down", recipe.broadcast)):
        if codec in OMITTING and not rule.bears_delay:
            return (
                f"Expected a codec that sends all of a tensor with the client rule {rule.name}, "
                f"got compression.{direction} = {codec}: the server adds up all updates, and with "
                "parts that arrive rounds later the model diverges. Take int8 or int4."
            )
    return ""


def _differences_in_buffers(recipe: Recipe) -> str:
    if not (recipe.buffered and recipe.broadcast):
        return ""
    return (
        f"Expected synchronous rounds with compression.down = {recipe.broadcast}, got buffered "
        "ones, whose clients hold different models. Leave out cohort.mode or compression.down."
    )


def _privacy(recipe: Recipe) -> str:  # noqa: PLR0911 - a list of pairs
    """Refuse parts that let a client exceed its clip, or reveal its data elsewhere."""
    privacy, strategy = recipe.privacy, recipe.strategy
    if privacy is None:
        return ""
    rule = strategy.rule
    if privacy.in_sessions and recipe.masking is None:
        return (
            "Expected [masking] with privacy.mechanism = distributed, got none: each device adds a "
            "share of the noise, so an update alone would have too little. Add [masking], or take "
            "local."
        )
    if recipe.weighting != "uniform":
        return (
            f'Expected weighting = "uniform" with [privacy], got {recipe.weighting!r}: a weight '
            "that a client brings makes it count for more than its clip."
        )
    if strategy.aggregation.name != "mean":
        return (
            f"Expected the aggregation mean with [privacy], got {strategy.aggregation.name}: the "
            "noise is that of a sum of clipped updates."
        )
    if tuple(rule.groups) != (DELTA,) or rule.scalars:
        more = [group for group in rule.groups if group != DELTA] + list(rule.scalars)
        return (
            f"Expected a client rule that sends only clipped updates with [privacy], got "
            f"{rule.name}, which sends {', '.join(more)} as well."
        )
    if recipe.codec not in {"", "lossless"}:
        return (
            f"Expected no codec but lossless with [privacy], got {recipe.codec}: what it gives "
            "could be longer than the clip."
        )
    if recipe.evaluate:
        return (
            "Expected evaluate = false with [privacy], got true: metrics that clients report are "
            "not private. Evaluate the models on other examples."
        )
    if recipe.selection.name != "uniform":
        return (
            f'Expected selection.name = "uniform" with [privacy], got {recipe.selection.name!r}: '
            "other cohorts would reveal what clients reported."
        )
    return _cohort(recipe, privacy)


def _cohort(recipe: Recipe, privacy: Privacy) -> str:
    if recipe.buffered:
        return (
            'Expected rounds of one cohort with [privacy], got cohort.mode = "buffered": weights '
            "by staleness are not uniform."
        )
    if recipe.over_selection != 1 or recipe.replace:
        got = "replace = true" if recipe.replace else f"over_selection = {recipe.over_selection:g}"
        return (
            f"Expected a cohort that is drawn once with [privacy], got cohort.{got}: one client's "
            "failure would decide whether another one counts."
        )
    if privacy.sampling != "none" and recipe.quorum != 1:
        return (
            f'Expected no cohort.quorum with privacy.sampling = "{privacy.sampling}", got '
            f"{recipe.quorum}: in the rounds that are not abandoned, a client that always answers "
            "would be drawn more often than the claim assumes. Leave it out."
        )
    return ""


def _whole_tensors(recipe: Recipe) -> str:
    rule = recipe.strategy.rule
    if not recipe.uneven or rule.is_elementary:
        return ""
    return (
        f"Expected a client rule that only changes gradients with train.{recipe.uneven}, by which "
        f"clients send different parts of the model, got {rule.name}, which needs all of it. "
        f"Leave out train.{recipe.uneven}, or take plain or fedprox."
    )


def _uneven(recipe: Recipe) -> str:
    if not recipe.uneven:
        return ""
    if recipe.strategy.aggregation.name == "flower":
        return (
            f"Expected clients that send the same tensors with a strategy of Flower, which takes "
            f"whole models, got train.{recipe.uneven}. Leave it out."
        )
    if recipe.privacy is not None:
        return (
            f"Expected clients that send the same tensors with [privacy], got "
            f"train.{recipe.uneven}: the number that sent a value would reveal who took part."
        )
    if recipe.personal.own_model is not None:
        return (
            f"Expected every client to train all that it sends with personal.name = "
            f"{recipe.personal.name}, whose own models are whole, got train.{recipe.uneven}. Leave "
            "out one of them."
        )
    if recipe.uneven == "widths" and recipe.personal.keep:
        return (
            "Expected whole models with [personal], whose tensors are kept whole, got "
            "train.widths. Leave out one of them."
        )
    return ""


def _several_models(recipe: Recipe) -> str:
    if not recipe.strategy.rule.picks or recipe.personal.own_model is None:
        return ""
    return (
        f"Expected one shared model with personal.name = {recipe.personal.name}, got several with "
        f"the strategy {recipe.strategy.rule.name}. Leave out one of them."
    )


def _narrow(recipe: Recipe) -> str:
    """Sums below 64 bits are only for means whose error a run can state."""
    strategy, bits = recipe.strategy, recipe.sum_bits
    if bits is None or bits >= 64:
        return ""
    if recipe.privacy is not None and recipe.masking is None:
        return (
            f"Expected sum_bits = 64 or none with [privacy], whose noise is on a grid of 64 bits, "
            f"got {bits}. Leave it out."
        )
    without = "Leave out sum_bits and precision."
    if recipe.masking is not None:
        without = "Set masking.sum_bits = 64."
    if strategy.needs == "each":
        return (
            f"Expected no sum_bits with the aggregation {strategy.aggregation.name}, which adds "
            f"nothing up, got {bits}. Leave out sum_bits and precision."
        )
    if strategy.rule.scalars:
        return (
            f"Expected sum_bits = 64 or none with the client rule {strategy.rule.name}, whose "
            f"means are divided by that of {strategy.rule.scalars[0]}, got {bits}: precision would "
            f"not bound the error of a step. {without}"
        )
    return ""


_EXAMPLE_BY_EXAMPLE: Final = frozenset({"examples", "loss", "label"})
"""What selection policies can know of a client only from its own report."""


_OVER: Final = ', or of sessions: set aggregation.over = "sessions"'


def _over_sessions(recipe: Recipe) -> str:
    aggregation, masking = recipe.strategy.aggregation, recipe.masking
    if aggregation.needs != "sessions":
        return ""
    if masking is None:
        return (
            'Expected [masking] with aggregation.over = "sessions", got none: without it, a rule '
            "reads each update. Add [masking], or leave out aggregation.over."
        )
    sessions = -(-recipe.quorum // masking.group)
    if sessions < aggregation.min_updates:
        return (
            f"Expected a cohort.quorum of at least {aggregation.min_updates} sessions with "
            f"{aggregation.name} over sessions, got {recipe.quorum} clients in {sessions} of up to "
            f"{masking.group}. Raise cohort.quorum to "
            f"{(aggregation.min_updates - 1) * masking.group + 1}, or lower masking.group."
        )
    return ""


def _masking(recipe: Recipe) -> str:
    """With masked sums the server sees sums of sessions; refuse what needs more, or tells more."""
    masking, strategy, metrics = recipe.masking, recipe.strategy, recipe.metrics
    if masking is None:
        return ""
    aggregation, rule = strategy.aggregation.name, strategy.rule
    reported = recipe.selection.needs & _EXAMPLE_BY_EXAMPLE
    each = f"adapters.aggregate = {recipe.adapters.aggregate}"
    refused = (  # (whether, what, why it cannot work)
        (recipe.messages, "[flower]", "its messages are not summed"),
        (
            strategy.needs == "each",
            f"the aggregation {aggregation}",
            "it needs each update" + ("" if aggregation not in RULES else _OVER),
        ),
        (
            strategy.needs == "sessions" and bool(recipe.uneven),
            f"train.{recipe.uneven} with aggregation.over = sessions",
            "few sessions would send some values, and rules need many",
        ),
        (recipe.adapters.by_products, each, "it needs each update"),
        (recipe.buffered, 'cohort.mode = "buffered"', "a session is of one model"),
        (bool(recipe.codec), f"compression.up = {recipe.codec}", "masked words do not shrink"),
        (
            recipe.privacy is not None and not recipe.privacy.in_sessions,
            f"privacy.mechanism = {recipe.privacy.mechanism}" if recipe.privacy else "",
            "the noise of a session is of its devices, as with distributed",
        ),
        (
            recipe.uneven == "tensor_share",
            "train.tensor_share",
            "values that few members send would be nearly alone in their sum",
        ),
        (
            rule.picks,
            f"the strategy {rule.name}",
            "which model a client sends depends on its data, and the parts of an update show it",
        ),
        (
            bool(reported),
            f"selection.name = {recipe.selection.name}",
            f"it learns from each client's {' and '.join(sorted(reported))}",
        ),
        (metrics.per_client, "metrics.per_client = true", "only sums of metrics are known"),
        (bool(metrics.bins), f"metrics.bins = {metrics.bins}", "only sums of metrics are known"),
        (bool(metrics.edges), "metrics.edges", "only sums of metrics are known"),
    )
    for found, what, why in refused:
        if found:
            return f"Expected no {what} with [masking]: {why}. Leave out one of them."
    if recipe.quorum < masking.min_group:
        return (
            f"Expected cohort.quorum >= masking.min_group = {masking.min_group}, got "
            f"{recipe.quorum}: a smaller session is abandoned. Raise cohort.quorum and "
            "cohort.goal, or lower masking.min_group."
        )
    return ""


def _is_plain(strategy: Strategy) -> bool:
    """Whether the next model is the current one and the mean."""
    return (
        type(strategy) is FedAvg
        and strategy.server_learning_rate == 1
        and strategy.schedule == Schedule()
    )


def _adapters(recipe: Recipe) -> str:
    """Products are of the tensors that all clients received, as clients trained them."""
    asked, strategy = recipe.adapters, recipe.strategy
    if asked.aggregate == "factors":
        return ""
    refused = {"[personal]": recipe.personal.remembers}
    if asked.by_products:
        refused |= {
            "a strategy other than fedavg with server_learning_rate = 1": not _is_plain(strategy),
            f"the aggregation {strategy.aggregation.name}": strategy.aggregation.name != "mean",
            f"the client rule {strategy.rule.name}": not strategy.rule.is_elementary,
            'cohort.mode = "buffered"': recipe.buffered,
            f"compression.up = {recipe.codec}": recipe.codec not in {"", "lossless"},
            f"compression.down = {recipe.broadcast}": bool(recipe.broadcast),
            "[privacy]": recipe.privacy is not None,
            f"train.{recipe.uneven}": bool(recipe.uneven),
            "sum_bits": recipe.sum_bits is not None,
        }
    found = [name for name, there in refused.items() if there]
    if not found:
        return ""
    return (
        f'Expected plain averaging with adapters.aggregate = "{asked.aggregate}", got '
        f"{', '.join(found)}. Leave it out, or take factors."
    )


CHECKS: Final[tuple[Check, ...]] = (
    _masking,
    _over_sessions,
    _weighting,
    _counts_once,
    _enough,
    _only_deltas,
    _memory_in_buffers,
    _each_in_buffers,
    _learning_in_buffers,
    _sparse,
    _lost_for_good,
    _late_parts,
    _differences_in_buffers,
    _privacy,
    _whole_tensors,
    _uneven,
    _several_models,
    _narrow,
    _adapters,
)


def check(recipe: Recipe) -> None:
    """Refuse parts that cannot work together.

    Raises:
        ValueError: the message names the two parts and the reason.
    """
    for refuses in CHECKS:
        if reason := refuses(recipe):
            raise ValueError(reason)
