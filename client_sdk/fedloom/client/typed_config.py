"""A run's `[config]` as the dataclass that the client's author wrote, checked field by field."""

import dataclasses
import difflib
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedloom.protocol.errors import UsageError

T = TypeVar("T")

_SPOKEN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "left out",
}


def typed(config: Mapping[str, Any], kind: type[T]) -> T:
    """Make a dataclass of a run's config.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Settings:
    ...     dropout: float = 0.1
    ...     layers: int = 2
    >>> typed({"layers": 3}, Settings)
    Settings(dropout=0.1, layers=3)

    Args:
        config: names and what they are set to: truths, numbers and text.
        kind: a dataclass of such; fields that have a default may be left out.

    Raises:
        TypeError: `kind` is no dataclass, or a field is of a type that a run's config cannot hold.
        UsageError: a name that it lacks, one that is missing, or a value of another type.
    """
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise TypeError(f"Expected a dataclass of settings, got {kind!r}.")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = get_type_hints(kind)
    for name in fields:
        _speak(hints[name], name)
    for name in config:
        if name not in fields:
            raise UsageError(_unknown(name, list(fields)))
    for name, field in fields.items():
        if name not in config and _is_required(field):
            raise UsageError(
                f"Expected config.{name}, {_speak(hints[name], name)}, in the run's [config], "
                "got none. Set it."
            )
    found = {name: _fitted(name, value, hints[name]) for name, value in config.items()}
    try:
        return kind(**found)
    except (TypeError, ValueError) as error:  # the author's own check
        raise UsageError(f"Expected other settings in the run's [config]: {error}") from error


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"Expected settings of {', '.join(known) or 'no name'}, got config.{name}.{meant}"


def _fitted(name: str, value: Any, hint: Any) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if get_origin(option) is Literal:
            if any(value == choice and type(value) is type(choice) for choice in get_args(option)):
                return value
        elif type(value) is option:
            return value
    if float in options and type(value) is int:
        return float(value)
    raise UsageError(
        f"Expected config.{name} to be {_speak(hint, name)}, got {value!r}. Mend the run's "
        "[config]."
    )


def _speak(hint: Any, name: str) -> str:
    """A type in words."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_speak(option, name) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint not in _SPOKEN:
        raise TypeError(
            f"Expected the field {name!r} to be bool, int, float or str, or one of such, as a "
            f"run's [config] holds nothing else, got {hint!r}."
        )
    return _SPOKEN[hint]
