"""Lazy imports: a package or a registry loads a module when one of its names is first used.

Importing all strategies takes a quarter of a second on a small machine, and a device needs few.

A package's `__init__.pyi` is the one list of its names: type checkers read it, and so do
`attach_stub`, after SPEC 1 of scientific-python (https://scientific-python.org/specs/spec-0001/),
and `Registry`. A line is one of

    from .module import Name as Name
    from .module import Name as Name  # [table] name_in_settings
    from .package import *
"""

import importlib
import re
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
_LINE = re.compile(
    r"from \.(?P<module>[\w.]+) import (?:\*|(?P<name>\w+) as (?P=name))"
    r"(?:  # \[(?P<table>[\w ]+)\] (?P<setting>\w+))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A name that a package exports.

    Attributes:
        name: of a class, a function or a constant.
        module: its module.
        table: kind of setting that can name it, such as `strategy`; empty for none.
        setting: its name there.
    """

    name: str
    module: str
    table: str
    setting: str


@cache
def exports(package: str) -> tuple[Export, ...]:
    """Return the names in a package's stub."""
    module: Any = importlib.import_module(package)
    stub = module.__spec__.loader.get_data(f"{module.__file__}i")  # from a zip file, too
    found: list[Export] = []
    for line in filter(None, stub.decode().splitlines()):
        match = _LINE.fullmatch(line)
        assert match is not None, f"{package}: {line}"
        home = f"{package}.{match['module']}"
        if match["name"] is None:
            found += exports(home)
            continue
        table, setting = match["table"] or "", match["setting"] or ""
        found.append(Export(name=match["name"], module=home, table=table, setting=setting))
    return tuple(found)


class Registry(MutableMapping[str, T]):
    """The classes that settings of one kind can name; each is imported on first access.

    Args:
        package: exports the classes.
        table: of the lines in its stub.
    """

    def __init__(self, package: str, table: str) -> None:
        lines = [export for export in exports(package) if export.table == table]
        self._classes: dict[str, Export | T] = {line.setting: line for line in lines}

    def __getitem__(self, name: str) -> T:
        found = self._classes[name]
        if not isinstance(found, Export):
            return found
        value: T = getattr(importlib.import_module(found.module), found.name)
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._classes[name] = value

    def __delitem__(self, name: str) -> None:
        del self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)


def attach_stub(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    No name may be that of a module in the package: the module would replace it once imported.

    Args:
        package: its `__name__`.
    """
    homes = {export.name: export.module for export in exports(package)}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    names = sorted(homes)
    return find, lambda: names, names
