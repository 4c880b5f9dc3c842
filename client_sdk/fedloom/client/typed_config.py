"""A run's `[config]` as a dataclass of the training code."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import check_call
from fedloom.strategies.setting_checks import alternatives, fitted

T = TypeVar("T")

_KINDS = (bool, int, float, str, type(None))


def typed(config: Mapping[str, Any], kind: type[T]) -> T:
    """Make a dataclass from a run's config.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     dropout: float = 0.1
    ...     layers: int = 2
    >>> typed({"layers": 3}, Settings)
    Settings(dropout=0.1, layers=3)

    Args:
        config: booleans, numbers and strings by name.
        kind: a dataclass of these types; fields with a default may be left out.

    Raises:
        TypeError: `kind` is not a dataclass, or a field has a type that a run's config cannot hold.
        UsageError: a name is unknown or missing, or a value has another type.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"Expected a dataclass of settings, got {kind!r}.")
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        options = alternatives(hints[field.name])
        if field.init and any(k not in _KINDS and get_origin(k) is not Literal for k in options):
            raise TypeError(
                f"Expected the field {field.name!r} to be bool, int, float, str, Literal or None, "
                f"the types of a run's [config], got {hints[field.name]!r}."
            )
    check_call(kind, config, table="config")
    found = {name: fitted(value, hints[name]) for name, value in config.items()}
    try:
        return kind(**found)
    except (TypeError, ValueError) as error:  # the author's own check
        raise UsageError(f"The client refuses the run's [config]: {error}") from error
