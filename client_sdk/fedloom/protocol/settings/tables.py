"""Tables of settings: their names, and the functions and dataclasses that take them as arguments.

Errors are `UsageError`s. Invariant: types are checked against annotations before a call, so a wrong
type in a file is an error message and never a traceback.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, get_origin

from fedloom.protocol.errors import UsageError
from fedloom.strategies import setting_checks
from fedloom.strategies.setting_checks import MISFIT, misfit, shown

T = TypeVar("T")

_BY_NAME = (
    "strategy", "rule", "aggregation", "selection", "up", "down", "model", "optimizer", "attack",
)  # fmt: skip
"""Tables with a `name`, which people write in place of the table."""


@contextmanager
def within(where: object) -> Iterator[None]:
    """Begin the messages of usage errors with the source of the settings, such as a file."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


@contextmanager
def usage_errors() -> Iterator[None]:
    """Convert value and type errors of the lower packages into usage errors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def check_names(
    values: Iterable[str],
    known: Collection[str],
    table: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """As `setting_checks.check_names`, with a UsageError instead of a ValueError."""
    with usage_errors():
        setting_checks.check_names(values, known, table, elsewhere)


def lookup(kind: str, name: object, known: Mapping[str, T]) -> T:
    """As `setting_checks.lookup`, with a UsageError instead of a ValueError."""
    with usage_errors():
        return setting_checks.lookup(kind, name, known)


def typed(key: str, value: Any, kind: Any) -> Any:
    """Return a value in the type of its setting.

    Args:
        key: dotted name of the setting, for messages.
        value: as TOML or JSON has it.
        kind: annotated type, such as `int | None`.

    Raises:
        UsageError: it is of another type.
    """
    found = setting_checks.fitted(value, kind)
    if found is MISFIT:
        raise UsageError(misfit(key, kind, value))
    return found


def checked(
    values: Mapping[str, Any], kinds: Mapping[str, Any], elsewhere: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the settings of a document in their types; tables are copied without checks.

    Args:
        values: as TOML or JSON has them.
        kinds: annotated type of every setting; a `Mapping[…]` is a table.
        elsewhere: settings in tables, by their last part.

    Raises:
        UsageError: a setting is unknown or of another type.
    """
    check_names(values, kinds, elsewhere=elsewhere)
    return {
        name: subtable(values, name)
        if get_origin(kinds[name]) is Mapping
        else typed(name, value, kinds[name])
        for name, value in values.items()
    }


def subtable(values: Mapping[str, Any], name: str, above: str = "") -> dict[str, Any]:
    """Return a copy of a table in a table; empty if it is left out.

    Args:
        values: of the outer table.
        name: of the inner table.
        above: dotted name of the outer table.

    Raises:
        UsageError: it is not a table.
    """
    table = values.get(name, {})
    if not isinstance(table, Mapping):
        key = f"{above}.{name}" if above else name
        by_name = isinstance(table, str) and name in _BY_NAME
        write = f" Write {name} = {{ name = {shown(table).removesuffix(' (text)')} }}." * by_name
        raise UsageError(f"Expected a table [{key}], got {shown(table)}.{write}")
    return dict(table)


def named(
    values: Mapping[str, Any], table: str, known: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Return the `name` of a table, and its other settings.

    Args:
        values: the table.
        table: its dotted name, for messages.
        known: names, for messages.

    Raises:
        UsageError: the name is missing or not text.
    """
    settings = dict(values)
    if "name" not in settings:
        for name in values:
            if setting_checks.nearest(name, ("name",)):
                raise UsageError(f"Unknown setting '{table}.{name}'. Did you mean 'name'?")
        to = f"one of {', '.join(sorted(known))}" if known else "text"
        raise UsageError(f"Missing setting {table}.name: set it to {to}.")
    return typed(f"{table}.name", settings.pop("name"), str), settings


def check_call(
    build: Callable[..., object], settings: Mapping[str, Any], *, owner: str = "", table: str = ""
) -> None:
    """As `setting_checks.check_settings`, with UsageErrors; lists stand for tuples."""
    with usage_errors():
        setting_checks.check_settings(build, settings, owner=owner, table=table)


def call(
    build: Callable[..., T], settings: Mapping[str, Any], *, owner: str = "", table: str = ""
) -> T:
    """Call a function, or build a dataclass, with settings that `check_call` accepts.

    Raises:
        UsageError: a setting is unknown, missing, of another type or, in a dataclass, not valid.
    """
    check_call(build, settings, owner=owner, table=table)
    with usage_errors() if isinstance(build, type) else nullcontext():
        return build(**settings)
