"""Settings declared once, as a dataclass: read from TOML and the environment, printed, documented.

A settings class is a frozen, keyword-only dataclass whose fields are made by `setting`, each with
its sentence; a field whose type is such a class again is a table. From the declaration alone come
the checks, the commented template, the table of the documentation and the environment variables.

Invariant: the environment goes over the file, and the file over the default.
"""

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from fedloom.protocol.errors import UsageError

PREFIX = "FEDLOOM_"

Values: TypeAlias = Mapping[str, Any]
"""Key (`name` or `table.name`) → value."""
T = TypeVar("T")


def setting(
    default: Any = MISSING,
    *,
    doc: str,
    example: Any = None,
    default_factory: Any = MISSING,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare a setting.

    Args:
        default: what holds where nobody says otherwise; none: it must be given.
        doc: one sentence, with its unit.
        example: shown in the template where there is no default to show.
        default_factory: as of `dataclasses.field`.
        least: smallest number.
        most: largest number.
    """
    metadata = {"doc": doc, "example": example, "least": least, "most": most}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting.

    Attributes:
        table: it is in; empty at the top.
        name: in the table.
        kind: its type.
        default: `MISSING` where it must be given.
        doc: its sentence.
        example: of a value.
        least: smallest number.
        most: largest number.
    """

    table: str
    name: str
    kind: Any
    default: Any
    doc: str
    example: Any
    least: float | None
    most: float | None

    @property
    def key(self) -> str:
        """`name`, or `table.name`."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def variable(self) -> str:
        """Of the environment."""
        return PREFIX + self.key.replace(".", "_").upper()


@cache
def declared(kind: type) -> tuple[Setting, ...]:
    """Every setting of a settings class: those at the top first, then each table's."""
    return tuple(sorted(_declared(kind, ""), key=lambda s: bool(s.table)))


def _declared(kind: type, table: str) -> Iterator[Setting]:
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _declared(hints[item.name], item.name)
            continue
        made = item.default_factory
        yield Setting(
            table,
            item.name,
            hints[item.name],
            item.default if made is MISSING else made(),
            item.metadata["doc"],
            item.metadata["example"],
            item.metadata["least"],
            item.metadata["most"],
        )


def build(kind: type[T], values: Values) -> T:
    """Make a settings object of checked values; what is left out has its default."""
    given: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            start = f"{name}."
            inner = {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
            given[name] = build(hint, inner)  # type: ignore[arg-type]
        elif name in values:
            given[name] = values[name]
    return kind(**given)


# ---- reading ---------------------------------------------------------------------------------


def from_toml(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """The checked values of a parsed TOML document.

    Raises:
        UsageError: it has a name that is not declared, or a value that is not of its type.
    """
    known = {s.key: s for s in declared(kind)}
    tables = {s.table for s in known.values()} - {""}
    values = {}
    for key, value in _flat(document, tables):
        if key not in known:
            raise UsageError(_unknown(key, known))
        values[key] = check(known[key], value, key)
    return values


def _flat(document: Mapping[str, Any], tables: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name not in tables:
            yield name, value
        elif not isinstance(value, dict):
            raise UsageError(f"expected a table [{name}], got {_shown(value)}.")
        else:
            yield from ((f"{name}.{inner}", v) for inner, v in value.items())


def from_environment(kind: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """The checked values of environment variables.

    Raises:
        UsageError: one is named like a table of the settings and like none in it, or holds a value
            that is not of its type.
    """
    known = {s.variable: s for s in declared(kind)}
    tables = tuple({f"{PREFIX}{s.table.upper()}_" for s in known.values() if s.table})
    values = {}
    for name, text in environ.items():
        if name in known:
            found = known[name]
            values[found.key] = check(found, _parsed(found.kind, text), name)
        elif tables and name.startswith(tables):
            raise UsageError(_unknown(name, known))
    return values


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:  # perhaps the right name in the wrong table
        close = [key for key in known if key.split(".")[-1] == name.rsplit(".", maxsplit=1)[-1]]
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}."
    return f"expected a setting that there is, got {name}: {hint}"


def _parsed(kind: Any, text: str) -> Any:
    """What the text of a variable stands for, as TOML would have it; the text where nothing fits.

    Lists are separated by commas; tables are `name=value` separated by commas.
    """
    kinds, text = _alternatives(kind), text.strip()
    if dict in kinds:
        pairs = [item.partition("=") for item in text.split(",") if item.strip()]
        return {k.strip(): v.strip() for k, sign, v in pairs} if all(p[1] for p in pairs) else text
    if tuple in kinds:
        return [item.strip() for item in text.split(",") if item.strip()]
    if bool in kinds and (word := text.lower()) in _WORDS:
        return _WORDS[word]
    for number in (int, float):
        if number in kinds or (number is int and float in kinds):
            try:
                return number(text)
            except ValueError:
                continue
    return text


_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}


def _alternatives(kind: Any) -> list[Any]:
    """The types that a value may have, without None: `tuple[str, …]` as tuple, and so on."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [a for k in typing.get_args(kind) for a in _alternatives(k)]
    if kind is type(None):
        return []
    return [kind if typing.get_origin(kind) is Literal else typing.get_origin(kind) or kind]


# ---- checking --------------------------------------------------------------------------------


def check(declared_as: Setting, value: Any, name: str) -> Any:
    """A value in the type of its setting.

    Args:
        declared_as: the setting.
        value: as TOML gives it.
        name: to call it by in an error.

    Raises:
        UsageError: it is of another type, or out of range.
    """
    for kind in _alternatives(declared_as.kind):
        made = _CONVERT.get(kind, _choice(kind))(value)
        if made is not None:
            _check_range(declared_as, made, name)
            return made
    raise UsageError(f"expected {name} as {type_name(declared_as.kind)}, got {_shown(value)}.")


def _check_range(declared_as: Setting, value: Any, name: str) -> None:
    least, most = declared_as.least, declared_as.most
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low = least is not None and not value >= least
    high = most is not None and not value <= most
    if low or high or value != value:  # noqa: PLR0124 - only NaN differs from itself
        bounds = [f"at least {least:g}"] if least is not None else []
        bounds += [f"at most {most:g}"] if most is not None else []
        raise UsageError(f"expected {name} {' and '.join(bounds) or 'as a number'}, got {value}.")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _texts(value: Any) -> tuple[str, ...] | None:
    fits = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return tuple(value) if fits else None


def _pairs(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict) or any(isinstance(v, dict | list) for v in value.values()):
        return None
    return {
        str(k): v if isinstance(v, str) else json.dumps(v, default=str) for k, v in value.items()
    }


def _choice(kind: Any) -> Callable[[Any], Any]:
    choices = typing.get_args(kind)
    return lambda value: value if isinstance(value, str) and value in choices else None


_CONVERT: Mapping[Any, Callable[[Any], Any]] = {
    bool: lambda v: v if isinstance(v, bool) else None,
    int: lambda v: v if isinstance(v, int) and not isinstance(v, bool) else None,
    float: _number,
    str: lambda v: v if isinstance(v, str) else None,
    Path: lambda v: Path(v) if isinstance(v, str) and v else None,
    tuple: _texts,
    dict: _pairs,
}
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    tuple: "a list of texts",
    dict: "a table of texts",
}


def type_name(kind: Any) -> str:
    """A setting's type in words."""
    return " or ".join(
        _NAMES[k] if k in _NAMES else " or ".join(f'"{c}"' for c in typing.get_args(k))
        for k in _alternatives(kind)
    )


_TOML_NAMES = {bool: "true or false", str: "text", list: "a list", dict: "a table"}


def _shown(value: Any) -> str:
    kind = _TOML_NAMES.get(type(value), "a number" if isinstance(value, int | float) else "")
    shown = text_of(value) if kind else repr(value)
    return f"{shown} ({kind})" if kind else shown


# ---- writing ---------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """A value as TOML writes it; `unset` for None."""
    if value is None:
        return "unset"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text_of, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def value_of(settings: Any, declared_as: Setting) -> Any:
    """What a settings object has for a setting."""
    inside = getattr(settings, declared_as.table) if declared_as.table else settings
    return getattr(inside, declared_as.name)
