"""Settings declared once, as a dataclass: read from TOML and the environment, written, documented.

A settings class is a frozen, keyword-only dataclass whose fields are made by `setting`, each with
its description. A field whose type is another such class is a table; with `| None` it is an
optional table. Checks, template, documentation and environment variables follow from it.

Invariant: the environment overrides the file, and the file overrides the default.
"""

import dataclasses
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings.tables import subtable, typed
from fedloom.protocol.settings.toml import text_of
from fedloom.strategies.setting_checks import alternatives, annotations, hint, in_words

PREFIX = "FEDLOOM_"

Values: TypeAlias = Mapping[str, Any]
"""Values by key, `name` or `table.name`; an optional table that is present is a key too."""
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
        default: value if it is left out; without one the setting is required.
        doc: one sentence, with its unit.
        example: shown in the template if there is no default.
        default_factory: as in `dataclasses.field`.
        least: smallest number.
        most: largest number.
    """
    metadata = {"doc": doc, "example": example, "least": least, "most": most}
    return field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting.

    Attributes:
        table: that contains it; empty at the top level.
        name: in the table.
        kind: its type.
        default: `MISSING` if it is required.
        doc: its description.
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
        """Environment variable that overrides the setting."""
        return PREFIX + self.key.replace(".", "_").upper()


@cache
def declared(kind: type) -> tuple[Setting, ...]:
    """Return every setting of a settings class: those at the top level first, then each table's."""
    return tuple(sorted(_declared(kind, ""), key=lambda s: bool(s.table)))


def _declared(kind: type, table: str) -> Iterator[Setting]:
    hints = annotations(kind)
    for item in dataclasses.fields(kind):
        if (inner := _table_class(hints[item.name])) is not None:
            yield from _declared(inner, item.name)
            continue
        made = item.default_factory
        default = item.default if made is MISSING else made()
        yield Setting(table, item.name, hints[item.name], default, **item.metadata)


def _table_class(kind: Any) -> type | None:
    return next((k for k in alternatives(kind) if dataclasses.is_dataclass(k)), None)  # type: ignore[return-value]


def build(kind: type[T], values: Values, table: str = "") -> T:
    """Build a settings object from checked values and defaults.

    Args:
        kind: the settings class.
        values: by key.
        table: that contains them all, for messages.

    Raises:
        UsageError: a required setting is missing, or the class refuses the values.
    """
    given: dict[str, Any] = {}
    for name, hinted in annotations(cast("type", kind)).items():
        inner = _table_class(hinted)
        if inner is None:
            if name in values:
                given[name] = values[name]
        elif name in values or type(None) not in alternatives(hinted):
            start = f"{name}."
            inside = {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}
            given[name] = build(inner, inside, name)
    for item in declared(cast("type", kind)):
        if not item.table and item.default is MISSING and item.name not in given:
            key = f"{table}.{item.name}" if table else item.name
            raise UsageError(f"Missing setting {key}: set it to {in_words(item.kind)}.")
    return kind(**given)


def value_of(settings: Any, item: Setting) -> Any:
    """Return the value of a setting in a settings object."""
    inside = getattr(settings, item.table) if item.table else settings
    return getattr(inside, item.name)


# ---- reading ---------------------------------------------------------------------------------


def from_table(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of a parsed document, by key.

    Raises:
        UsageError: a name is not declared, or a value is not of its type or out of range.
    """
    known = {s.key: s for s in declared(kind)}
    tables = {s.table for s in known.values()} - {""}
    optional = {n for n, h in annotations(kind).items() if type(None) in alternatives(h)}
    _check_names(document, "", known, tables)
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in tables:
            values[name] = check(known[name], value, name)
            continue
        inner = subtable(document, name)
        _check_names(inner, name, known, ())
        if name in optional:
            values[name] = True
        for each, found in inner.items():
            key = f"{name}.{each}"
            values[key] = check(known[key], found, key)
    return values


def _check_names(
    names: Mapping[str, Any], table: str, known: Mapping[str, Setting], tables: Collection[str]
) -> None:
    here = {s.name for s in known.values() if s.table == table} | set(tables)
    for name in names:
        if name not in here:
            key = f"{table}.{name}" if table else name
            elsewhere = [s.key for s in known.values() if s.name == name]
            raise UsageError(f"Unknown setting {key!r}. {hint(name, here, elsewhere)}")


def from_environment(kind: type, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the checked values of environment variables, by key.

    Raises:
        UsageError: a variable has the prefix of a table but an unknown name, or a value of the
            wrong type or out of range.
    """
    known = {s.variable: s for s in declared(kind)}
    tables = tuple({f"{PREFIX}{s.table.upper()}_" for s in known.values() if s.table})
    values = {}
    for name, text in environ.items():
        if name in known:
            found = known[name]
            values[found.key] = check(found, _parsed(found.kind, text), name)
        elif tables and name.startswith(tables):
            raise UsageError(f"Unknown variable {name!r}. {hint(name, known)}")
    return values


def _parsed(kind: Any, text: str) -> Any:
    """The value of a variable as in TOML, or the text if it cannot be converted.

    Lists are separated by commas; tables are `name=value` separated by commas.
    """
    kinds = [typing.get_origin(k) or k for k in alternatives(kind)]
    text = text.strip()
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


def check(item: Setting, value: Any, name: str) -> Any:
    """Return a value in the type of its setting.

    Args:
        item: the setting.
        value: as TOML has it.
        name: for messages.

    Raises:
        UsageError: it is of another type, or out of range.
    """
    if isinstance(value, float) and item.kind in (int, int | None) and value.is_integer():
        value = int(value)  # such as max_model_bytes = 1e9
    found = typed(name, value, item.kind)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return found
    low = item.least is not None and not found >= item.least
    high = item.most is not None and not found <= item.most
    if low or high or found != found:  # noqa: PLR0124 - only NaN differs from itself
        bounds = [f"at least {item.least:g}"] if item.least is not None else []
        bounds += [f"at most {item.most:g}"] if item.most is not None else []
        wanted = " and ".join(bounds) or "a number"
        raise UsageError(f"Expected {name} to be {wanted}, got {found}.")
    return found


# ---- writing ---------------------------------------------------------------------------------


def template(kind: type, head: Sequence[str], given: Values, without: Collection[str] = ()) -> str:
    """Return a file with every setting, its description, and its default as a comment.

    Args:
        kind: the settings class.
        head: first lines.
        given: values to write as settings, by key.
        without: tables to leave out.
    """
    lines, table = list(head), ""
    items = [s for s in declared(kind) if s.table not in without and s.key not in without]
    free = [s for s in items if s.kind == dict[str, str]]
    for item in items:
        if item in free:
            continue
        if item.table != table:
            table = item.table
            lines += ["", f"[{table}]"]
        lines += ["", f"# {item.doc}", _line(item, given)]
    for item in free:
        pairs = given.get(item.key) or {}
        example = [f"# {k} = {text_of(v)}" for k, v in (item.example or {}).items()]
        lines += ["", f"# {item.doc}", f"[{item.key}]"]
        lines += [f"{k} = {text_of(v)}" for k, v in pairs.items()] or example
    return "\n".join(lines) + "\n"


def _line(item: Setting, given: Values) -> str:
    if item.key in given:
        return f"{item.name} = {text_of(given[item.key])}"
    empty = item.default in (None, "", ()) and item.example is not None
    return f"# {item.name} = {text_of(item.example if empty else item.default)}"


def markdown(kind: type) -> str:
    """Return the settings as a table for the documentation."""
    rows = ["| setting | variable | type | default | |", "|---|---|---|---|---|"]
    for item in declared(kind):
        if item.default is MISSING:
            default = "required"
        else:
            empty = item.default in (None, "", (), {})
            default = "–" if empty else f"`{text_of(item.default)}`"
        words = in_words(item.kind).replace("|", "\\|")
        rows.append(
            f"| `{item.key}` | `{item.variable}` | {words} | {default} | {_bounded(item)} |"
        )
    return "\n".join(rows) + "\n"


def _bounded(item: Setting) -> str:
    if item.least is not None and item.most is not None:
        return f"{item.doc}; {item.least:g} to {item.most:g}"
    return item.doc
