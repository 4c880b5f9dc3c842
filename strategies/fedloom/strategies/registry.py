"""Strategies, client rules, aggregations and selections by name.

Names and settings come from run files and from the wire; an error lists the known names. The names
are in `__init__.pyi` of the package.
"""

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final, TypeVar

from fedloom.strategies.aggregation import Aggregation
from fedloom.strategies.client_rules import ClientRule
from fedloom.strategies.lazy_imports import Registry
from fedloom.strategies.setting_checks import check_settings, lookup, parameters, spelled

if TYPE_CHECKING:
    from fedloom.strategies.base import Strategy
    from fedloom.strategies.selection import Selection

T = TypeVar("T")

HOSTED: Final = "flower:"
"""The beginning of the names of Flower's strategies, which a server's operator adds."""

STRATEGIES: Final[MutableMapping[str, Callable[..., "Strategy"]]] = Registry(
    "fedloom.strategies", "strategy"
)
CLIENT_RULES: Final[MutableMapping[str, Callable[..., ClientRule]]] = Registry(
    "fedloom.strategies", "rule"
)
AGGREGATIONS: Final[MutableMapping[str, Callable[..., Aggregation]]] = Registry(
    "fedloom.strategies", "aggregation"
)
_HALVES: Final[MutableMapping[str, Callable[..., ClientRule]]] = Registry(
    "fedloom.strategies", "own rule"
)
"""Client rules of the strategies of the same names; a run file cannot choose them alone."""
_PARTS: Final = ("rule", "aggregation", "config")
"""Fields of strategies that are not settings."""

SELECTIONS: Final[MutableMapping[str, Callable[..., "Selection"]]] = Registry(
    "fedloom.strategies", "selection"
)


def strategy(
    name: str,
    settings: Mapping[str, object] | None = None,
    *,
    rule: ClientRule | None = None,
    aggregation: Aggregation | None = None,
    config: Mapping[str, object] | None = None,
    table: str = "",
) -> "Strategy":
    """Return the strategy of this name.

    >>> strategy("fedavg", {"server_learning_rate": 0.5}, rule=client_rule("fedprox", {"mu": 1}))
    FedAvg(server_learning_rate=0.5, schedule=Schedule(), rule=FedProx(mu=1), aggregation=Mean())

    Args:
        name: a key of `STRATEGIES`.
        settings: its dataclass's fields; the others have their defaults.
        rule: of local training; plain by default.
        aggregation: of updates; the mean by default.
        config: of the run, for strategies that pass it on, whose field it is.
        table: of the settings, for messages.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range, or the parts are
            incompatible.
    """
    build = strategy_of(name)
    parts: dict[str, object] = {"rule": rule, "aggregation": aggregation}
    if "config" in parameters(build):
        parts["config"] = config
    chosen = {part: value for part, value in parts.items() if value is not None}
    return _build(build, name, settings, table, **chosen)


def strategy_of(name: object) -> Callable[..., "Strategy"]:
    """Return what makes the strategy of a name.

    Raises:
        ValueError: the name is unknown; says where a name of another table belongs.
    """
    if isinstance(name, str) and spelled(name, STRATEGIES) not in STRATEGIES:
        _check_table(name)
    return lookup("a strategy", name, STRATEGIES)


def _check_table(name: str) -> None:
    """Refuse the name of another part of a run as a strategy's."""
    if name.lower() == "fedbuff":
        raise ValueError(f'Expected a strategy, got {name!r}: set cohort.mode = "buffered".')
    others: Mapping[str, Mapping[str, object]]
    others = {"rule": CLIENT_RULES, "aggregation": AGGREGATIONS, "selection": SELECTIONS}
    for table, known in others.items():
        if (own := spelled(name, known)) in known:
            raise ValueError(
                f"Expected a strategy, got {name!r}, which is set in another table: {table} = "
                f'{{ name = "{own}" }}.'
            )


def client_rule(
    name: str, settings: Mapping[str, object] | None = None, *, table: str = ""
) -> ClientRule:
    """Return the client rule of this name.

    >>> client_rule("fedprox", {"mu": 0.01})
    FedProx(mu=0.01)

    `name` is a key of `CLIENT_RULES`; the other arguments and the errors are those of `strategy`.
    """
    build = _HALVES[name] if name in _HALVES else lookup("a client rule", name, CLIENT_RULES)
    return _build(build, name, settings, table)


def aggregation(
    name: str, settings: Mapping[str, object] | None = None, *, table: str = ""
) -> Aggregation:
    """Return the aggregation of this name.

    >>> aggregation("trimmed_mean", {"fraction": 0.1})
    TrimmedMean(fraction=0.1)

    `name` is a key of `AGGREGATIONS`; the other arguments and the errors are those of `strategy`.
    """
    return _build(lookup("an aggregation", name, AGGREGATIONS), name, settings, table)


def selection(
    name: str, settings: Mapping[str, object] | None = None, *, table: str = ""
) -> "Selection":
    """Return the selection policy of this name.

    >>> selection("power_of_choice", {"choices": 3})
    PowerOfChoice(choices=3, loss='loss')

    `name` is a key of `SELECTIONS`; the other arguments and the errors are those of `strategy`.
    """
    return _build(lookup("a selection", name, SELECTIONS), name, settings, table)


def _build(
    build: Callable[..., T],
    name: str,
    settings: Mapping[str, object] | None,
    table: str,
    **parts: object,
) -> T:
    values = dict(settings or {})
    check_settings(build, values, owner=name, table=table, without=_PARTS)
    return build(**values, **parts)
