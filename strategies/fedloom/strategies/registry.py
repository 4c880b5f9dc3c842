"""Strategies and client rules by name, for settings that arrive as text.

Names and settings come from run files and from the wire, so every mistake is answered with what
was expected and what is known.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fedloom.strategies.aggregation import Aggregation
from fedloom.strategies.client_rules import ClientRule
from fedloom.strategies.lazy_imports import Registry

if TYPE_CHECKING:
    from fedloom.strategies.base import Strategy
    from fedloom.strategies.selection import Selection

T = TypeVar("T")

STRATEGIES: Final[MutableMapping[str, Callable[..., "Strategy"]]] = Registry(
    "fedloom.strategies",
    {
        "fedavg": "FedAvg",
        "fedavgm": "FedAvgM",
        "fedadagrad": "FedAdagrad",
        "fedadam": "FedAdam",
        "fedyogi": "FedYogi",
        "fedlamb": "FedLamb",
        "feddyn": "FedDyn",
        "fednova": "FedNova",
        "ifca": "Ifca",
        "mimelite": "MimeLite",
        "qfedavg": "QFedAvg",
        "scaffold": "Scaffold",
    },
)
CLIENT_RULES: Final[MutableMapping[str, Callable[..., ClientRule]]] = Registry(
    "fedloom.strategies",
    {
        "plain": "Plain",
        "fedprox": "FedProx",
    },
)
AGGREGATIONS: Final[MutableMapping[str, Callable[..., Aggregation]]] = Registry(
    "fedloom.strategies",
    {
        "mean": "Mean",
        "median": "Median",
        "trimmed_mean": "TrimmedMean",
        "krum": "Krum",
        "multi_krum": "MultiKrum",
        "bulyan": "Bulyan",
        "geometric_median": "GeometricMedian",
        "centered_clipping": "CenteredClipping",
        "norm_bounding": "NormBounding",
        "fltrust": "FLTrust",
    },
)
_HALVES: Final[MutableMapping[str, Callable[..., ClientRule]]] = Registry(
    "fedloom.strategies",
    {
        "feddyn": "FedDynRule",
        "fednova": "FedNovaRule",
        "ifca": "IfcaRule",
        "mimelite": "MimeLiteRule",
        "qfedavg": "QFedAvgRule",
        "scaffold": "ScaffoldRule",
    },
)
"""Rules that come with a strategy of the same name, and are not chosen by themselves."""
_PARTS: Final = ("rule", "aggregation")
"""Fields of strategies that are not settings."""

SELECTIONS: Final[MutableMapping[str, Callable[..., "Selection"]]] = Registry(
    "fedloom.strategies",
    {
        "uniform": "Uniform",
        "size": "BySize",
        "power_of_choice": "PowerOfChoice",
        "oort": "Oort",
        "deadline": "Deadline",
        "sticky": "Sticky",
        "stratified": "Stratified",
    },
)


def strategy(
    name: str,
    settings: Mapping[str, object] | None = None,
    *,
    rule: ClientRule | None = None,
    aggregation: Aggregation | None = None,
) -> "Strategy":
    """Return the strategy of this name.

    >>> strategy("fedavg", {"server_learning_rate": 0.5}, rule=client_rule("fedprox", {"mu": 1}))
    FedAvg(server_learning_rate=0.5, schedule=Schedule(), rule=FedProx(mu=1), aggregation=Mean())

    Args:
        name: a key of `STRATEGIES`.
        settings: its dataclass's fields; those left out keep their defaults.
        rule: what the devices do; plain local training by default.
        aggregation: how updates become means; the mean by default.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range, or the parts do
            not go together.
    """
    build = _lookup("strategy", name, STRATEGIES)
    _check_settings(name, build, settings or {})
    parts = {"rule": rule, "aggregation": aggregation}
    chosen = {part: value for part, value in parts.items() if value is not None}
    return build(**dict(settings or {}), **chosen)


def client_rule(name: str, settings: Mapping[str, object] | None = None) -> ClientRule:
    """Return the client rule of this name.

    >>> client_rule("fedprox", {"mu": 0.01})
    FedProx(mu=0.01)

    Args:
        name: a key of `CLIENT_RULES`.
        settings: its dataclass's fields.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range.
    """
    build = _HALVES[name] if name in _HALVES else _lookup("client rule", name, CLIENT_RULES)
    _check_settings(name, build, settings or {})
    return build(**dict(settings or {}))


def aggregation(name: str, settings: Mapping[str, object] | None = None) -> Aggregation:
    """Return the aggregation of this name.

    >>> aggregation("trimmed_mean", {"fraction": 0.1})
    TrimmedMean(fraction=0.1)

    Args:
        name: a key of `AGGREGATIONS`.
        settings: its dataclass's fields.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range.
    """
    build = _lookup("aggregation", name, AGGREGATIONS)
    _check_settings(name, build, settings or {})
    return build(**dict(settings or {}))


def selection(name: str, settings: Mapping[str, object] | None = None) -> "Selection":
    """Return the selection policy of this name.

    >>> selection("power_of_choice", {"choices": 3})
    PowerOfChoice(choices=3, loss='loss')

    Args:
        name: a key of `SELECTIONS`.
        settings: its dataclass's fields; those left out keep their defaults.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: the name or a setting is unknown, missing, or out of range.
    """
    build = _lookup("selection", name, SELECTIONS)
    _check_settings(name, build, settings or {})
    return build(**dict(settings or {}))


def _lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise ValueError(f"Expected a {kind}, got {name!r}; {_hint(name, known)}.")
    return known[name]


def _check_settings(name: str, build: Any, settings: Mapping[str, object]) -> None:
    """Raise `ValueError` for a setting that is not one, or one that has to be there."""
    known = {field.name: field for field in fields(build) if field.name not in _PARTS}
    for setting in settings:
        if setting not in known:
            raise ValueError(
                f"Expected a setting of {name}, got {setting!r}; {_hint(setting, known)}."
            )
    for setting, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and setting not in settings:
            raise ValueError(
                f"Expected {name} to have the setting {setting}, got {sorted(settings)}; "
                f"{_hint(setting, known)}."
            )


def _hint(name: object, known: Iterable[str]) -> str:
    names = sorted(known)
    nearest = get_close_matches(str(name), names, n=1)
    listed = f"known: {', '.join(names) or 'none'}"
    return f"did you mean {nearest[0]!r}? {listed}" if nearest and nearest[0] != name else listed
