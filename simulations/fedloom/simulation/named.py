"""Things chosen by name with settings that come as text: every mistake says what is known.

Invariant: a setting is checked against the annotation of the parameter that takes it, before
anything is called, so a wrong type is the user's mistake and never a traceback.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fedloom.protocol.errors import UsageError

T = TypeVar("T")


def lookup(kind: str, name: object, known: Mapping[str, T]) -> T:
    """Return what is known under a name.

    Args:
        kind: what it is, with its article, such as `a partitioner`.
        name: what the user wrote.
        known: by name.

    Raises:
        UsageError: nothing is.
    """
    if not isinstance(name, str) or name not in known:
        raise UsageError(f"Expected {kind}, got {name!r}. {hint(name, known)}")
    return known[name]


def hint(name: object, known: Iterable[str]) -> str:
    """Say which name may have been meant, and which there are."""
    names = sorted(known)
    nearest = get_close_matches(str(name), names, n=1)
    meant = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return f"{meant}Known: {', '.join(names) or 'none'}."


def parameters(build: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Keyword parameters of a function, or fields of a dataclass."""
    return dict(inspect.signature(build).parameters)


def call(name: str, build: Callable[..., T], settings: Mapping[str, Any]) -> T:
    """Call a function, or build a dataclass, with settings that a user wrote.

    Args:
        name: what the user calls it, for messages.
        build: takes keyword arguments.
        settings: by parameter name; lists stand for tuples.

    Raises:
        UsageError: a setting is unknown, missing, or of another type than is annotated.
    """
    known = parameters(build)
    for setting in settings:
        if setting not in known:
            raise UsageError(
                f"Expected a setting of {name}, got {setting!r}. {hint(setting, known)}"
            )
    missing = [
        setting
        for setting, parameter in known.items()
        if parameter.default is parameter.empty and setting not in settings
    ]
    if missing:
        raise UsageError(f"Expected {name} to have the setting {missing[0]!r}, got none. Add it.")
    hints = get_type_hints(build if inspect.isfunction(build) else build.__init__)
    for setting, value in settings.items():
        if not _fits(value, hints.get(setting, Any)):
            raise UsageError(
                f"Expected {name}'s {setting} to be {_spoken(hints[setting])}, got {value!r}."
            )
    return build(**settings)


def _fits(value: object, annotation: Any) -> bool:
    origin, options = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in options)
    if origin is Literal:
        return value in options
    if origin is None:
        return _fits_plain(value, annotation)
    if issubclass(origin, Sequence):
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(_fits(item, options[0]) for item in cast("Sequence[Any]", value))
    return isinstance(value, origin)


def _fits_plain(value: object, annotation: Any) -> bool:
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str | Path)
    return value is None if annotation is None else isinstance(value, annotation)


_SPOKEN = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    type(None): "left out",
}


def _spoken(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        kept = [option for option in get_args(annotation) if option is not type(None)]
        return " or ".join(dict.fromkeys(map(_spoken, kept)))
    if origin is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if origin is not None and issubclass(origin, Sequence):
        return f"a list of which each is {_spoken(get_args(annotation)[0])}"
    return _SPOKEN.get(annotation, str(getattr(annotation, "__name__", annotation)))
