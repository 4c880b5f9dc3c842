"""Checks of settings by name and type: unknown names, missing ones, values of another type.

Registries, codecs and `fedloom.protocol.settings` share them, so messages have one form.
"""

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")

MISFIT: Final = object()
"""What `fitted` returns for a value of another type."""

_MAX_SHOWN: Final = 80
_SYNONYMS: Final[Mapping[str, str]] = {
    "async": "buffered",
    "asynchronous": "buffered",
    "average": "mean",
    "clients": "goal",
    "clientsperround": "goal",
    "cohortsize": "goal",
    "colorjitter": "jitter",
    "equal": "uniform",
    "f1score": "f1",
    "fedper": "shared",
    "femnist": "leaf",
    "gaussiannoise": "noise",
    "horizontalflip": "flip",
    "labelskew": "dirichlet",
    "lambda": "mu",
    "nll": "cross_entropy",
    "noniid": "dirichlet",
    "quantity": "power-law",
    "quantityskew": "power-law",
    "random": "uniform",
    "randomcrop": "crop",
    "randomerasing": "cutout",
    "randomhorizontalflip": "flip",
    "sent140": "leaf",
    "sentiment140": "leaf",
    "size": "goal",
    "std": "deviation",
}
"""Other words of the field for names and settings, without case, hyphens and underscores."""
_WORDS: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


# ---- names -----------------------------------------------------------------------------------


def hint(name: object, known: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return the nearest known name, if one is near, and all known names.

    >>> hint("meen", ["mean", "median"])
    "Did you mean 'mean'? Known: mean, median."

    Args:
        name: what the user wrote.
        known: valid names.
        elsewhere: names in other tables, proposed if no known name is near.
    """
    names = sorted(known)
    near = nearest(name, names) or next(iter(elsewhere), None)
    meant = f"Did you mean {near!r}? " if near is not None and near != name else ""
    return f"{meant}Known: {', '.join(names) or 'none'}."


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that a user most likely meant; None if no name is near.

    >>> nearest("Meen", ["mean", "median"]), nearest("lr", ["epochs", "learning_rate"])
    ('mean', 'learning_rate')
    >>> nearest("std", ["mean", "deviation"]), nearest("poly", ["hinge", "polynomial"])
    ('deviation', 'polynomial')
    """
    if not isinstance(name, str):
        return None
    folded, wanted = {_folded(each): each for each in known}, _folded(name)
    if (meant := _folded(_SYNONYMS.get(wanted, ""))) in folded:
        return folded[meant]
    if len(name) > 1 and name.lower() in (initials := _initials(folded.values())):
        return initials[name.lower()]
    near = get_close_matches(wanted, folded, n=1)
    if not near and len(wanted) > 2:
        begun = [each for each in folded if each.startswith(wanted)]
        near = begun if len(begun) == 1 else []
    return folded[near[0]] if near else None


def _initials(names: Iterable[str]) -> dict[str, str]:
    """Names by the initials of their words, or of their last words."""
    found: dict[str, str] = {}
    for name in names:
        first = "".join(word[0] for word in re.split("[_-]", name) if word).lower()
        for start in range(max(len(first) - 1, 1)):
            found.setdefault(first[start:], name)
    return found


def spelled(name: str, known: Collection[str]) -> str:
    """Return the known name that differs only in case, hyphens and underscores, or the name.

    >>> spelled("FedAvg", ["fedavg", "fedadam"]), spelled("SignFlip", ["sign_flip"])
    ('fedavg', 'sign_flip')
    """
    if name in known:
        return name
    found = [each for each in known if _folded(each) == _folded(name)]
    return found[0] if len(found) == 1 else name


def _folded(name: str) -> str:
    return re.sub("[ _-]", "", name).lower()


def lookup(kind: str, name: object, known: Mapping[str, T]) -> T:
    """Return the entry of a registry by the name that the user wrote, in any case; see `spelled`.

    `kind` is of the entry, with its article, or the setting that names it.

    Raises:
        ValueError: the name is unknown.
    """
    if not isinstance(name, str) or (found := spelled(name, known)) not in known:
        raise ValueError(f"Expected {kind}, got {name!r}. {hint(name, known)}")
    return known[found]


def check_names(
    values: Iterable[str],
    known: Collection[str],
    table: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Refuse settings that a table does not have.

    Args:
        values: names of the settings.
        known: valid names.
        table: dotted name of the table; empty at the top level.
        elsewhere: dotted names of settings in other tables, by their last part.

    Raises:
        ValueError: a setting is unknown; the message has the nearest name.
    """
    for name in values:
        if name not in known:
            other = nearest(name, elsewhere or ())
            others = [] if other is None or elsewhere is None else [elsewhere[other]]
            raise ValueError(f"Unknown setting {_key(table, name)!r}. {hint(name, known, others)}")


def check_settings(
    build: Callable[..., object],
    values: Mapping[str, object],
    *,
    owner: str = "",
    table: str = "",
    without: Collection[str] = (),
) -> None:
    """Check settings against the parameters of a function or the fields of a dataclass.

    Args:
        build: function or dataclass.
        values: the settings by name.
        owner: name of `build` for the user, for messages.
        table: dotted name of the settings' table, for messages.
        without: parameters that are not settings.

    Raises:
        ValueError: a setting is unknown or missing, or a text is not one of its choices.
        TypeError: a value is of another type than is annotated.
    """
    of = f" of {owner}" if owner else ""
    known = {n: p for n, p in parameters(build).items() if n not in without}
    hints = annotations(build)
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"Unknown setting {_key(table, name)!r}{of}. {hint(name, known)}")
        kind = hints.get(name, Any)
        if fitted(value, kind) is MISFIT:
            error = ValueError if isinstance(value, str) and choices(kind) else TypeError
            raise error(misfit(f"{_key(table, name)}{of}", kind, value))
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            kind = in_words(hints.get(name, Any))
            raise ValueError(f"Missing setting {_key(table, name)}{of}: set it to {kind}.")


# Cached, since each task of a round checks settings: both take about 0.05 ms a class.


@lru_cache(maxsize=512)
def parameters(build: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the keyword parameters of a function, or the fields of a dataclass."""
    return inspect.signature(build).parameters


@lru_cache(maxsize=512)
def annotations(build: Callable[..., object]) -> Mapping[str, Any]:
    """Return the annotated types of a function's parameters, or of a dataclass's fields."""
    return types.MappingProxyType(typing.get_type_hints(build))


def _key(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name


# ---- types -----------------------------------------------------------------------------------


def fitted(value: Any, kind: Any) -> Any:
    """Convert a TOML value to an annotated type, or return `MISFIT`.

    Whole numbers are accepted for floats, lists for tuples, text for paths. A type that TOML does
    not have accepts any value: its owner checks it.

    >>> fitted([1, 2], tuple[float, ...]), fitted("1", int) is MISFIT
    ((1.0, 2.0), True)
    """
    options = alternatives(kind)
    for option in options:
        if _is(value, option):
            return value
    for option in options:
        found = _converted(value, option)
        if found is not MISFIT:
            return found
    return MISFIT


def alternatives(kind: Any) -> list[Any]:
    """Return the members of a union, or the type alone."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [a for option in typing.get_args(kind) for a in alternatives(option)]
    return [kind]


def _is(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return any(type(value) is type(c) and value == c for c in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, kind) and not isinstance(value, bool)
    if kind in (None, type(None)):
        return value is None
    return kind in (bool, str) and isinstance(value, kind)


def _converted(value: Any, kind: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is float:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else MISFIT
    if kind in (int, bool, str, None, type(None)) or origin is Literal:
        return MISFIT
    if _is_path(kind):
        return (
            kind(value) if (isinstance(value, str) and value) or _is_path(type(value)) else MISFIT
        )
    if origin in (tuple, list, Sequence):
        return _items(value, args)
    if origin in (dict, Mapping):
        return _entries(value, args)
    return value


def _items(value: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return MISFIT
    same = len(args) == 1 or args[-1:] == (...,)
    if not same and len(args) != len(value):
        return MISFIT
    kinds = args[:1] * len(value) if same else args
    made = tuple(fitted(item, kind) for item, kind in zip(value, kinds, strict=True))
    return MISFIT if any(item is MISFIT for item in made) else made


def _entries(value: Any, args: tuple[Any, ...]) -> Any:
    """Return a table; numbers in a table of texts become text."""
    if not isinstance(value, Mapping):
        return MISFIT
    kind = args[1] if args else Any
    made = {str(n): _text(v) if kind is str else fitted(v, kind) for n, v in value.items()}
    return MISFIT if any(item is MISFIT for item in made.values()) else made


def _text(value: Any) -> Any:
    if isinstance(value, dict | list):
        return MISFIT
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_path(kind: Any) -> bool:
    # By its name: modules here must not import pathlib, which accesses files.
    return isinstance(kind, type) and "PurePath" in (base.__name__ for base in kind.__mro__)


# ---- words -----------------------------------------------------------------------------------


def misfit(key: str, kind: Any, value: object) -> str:
    """Return the message for a value of another type than the annotated one."""
    near = nearest(value, choices(kind))
    meant = f" Did you mean {near!r}?" if near else ""
    return (
        f"Expected {key} as {in_words(kind)}, got {shown(value)}.{meant or _unquoted(value, kind)}"
    )


def choices(kind: Any) -> list[str]:
    """Return the texts that a `Literal` lists; none for other types."""
    literals = (k for k in alternatives(kind) if typing.get_origin(k) is Literal)
    return [c for k in literals for c in typing.get_args(k) if isinstance(c, str)]


def in_words(kind: Any) -> str:
    """Return a type in words, without None.

    >>> in_words(int | None), in_words(tuple[str, ...])
    ('a whole number', 'a list of texts')
    """
    kept = [k for k in alternatives(kind) if k not in (None, type(None))]
    return " or ".join(dict.fromkeys(map(_in_words, kept)))


def _in_words(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return " or ".join(json.dumps(choice) for choice in args)
    if _is_path(kind):
        return "a path"
    if origin in (tuple, list, Sequence):
        return f"a list of {_plural(args[0])}"
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        return "a table of texts" if args[1:] == (str,) else "a table"
    return str(getattr(kind, "__name__", kind))


def _unquoted(value: Any, kind: Any) -> str:
    """The remedy for a number or a truth value in quotes.

    >>> _unquoted("20", int), _unquoted("x", int)
    (' Write it without quotes: 20.', '')
    """
    if not isinstance(value, str):
        return ""
    with suppress(ValueError):
        plain = json.loads(value)
        if not isinstance(plain, str) and fitted(plain, kind) is not MISFIT:
            return f" Write it without quotes: {value}."
    return ""


def _plural(kind: Any) -> str:
    plurals = {str: "texts", int: "whole numbers", float: "numbers"}
    return plurals.get(kind, f"which each is {in_words(kind)}")


def shown(value: object) -> str:
    """Return a value as TOML or JSON writes it, with its type in words.

    >>> shown("5"), shown(5), shown(True)
    ('"5" (text)', '5 (a number)', 'true')
    """
    if isinstance(value, str):
        return f"{_cut(value)} (text)"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value} (a number)"
    if isinstance(value, list | tuple):
        return f"{_cut(value)} (a list)"
    if isinstance(value, Mapping):
        return f"{_cut(value)} (a table)"
    of_toml = type(value).__module__ == "datetime"
    return repr(value) if of_toml else f"an object of type {type(value).__name__}"


def _cut(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
