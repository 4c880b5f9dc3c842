"""Lazy imports: a package or a registry loads a module when one of its names is first used.

Importing all strategies takes a quarter of a second on a small machine, and a device needs few.
`attach_stub` follows SPEC 1 of scientific-python, https://scientific-python.org/specs/spec-0001/.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A mapping from names of settings to classes; a class is imported when it is first read.

    Args:
        package: exports the classes.
        classes: name → the class's name in the package. Further entries are the classes themselves.
    """

    def __init__(self, package: str, classes: Mapping[str, str]) -> None:
        self._package = package
        self._classes: dict[str, str | T] = dict(classes)

    def __getitem__(self, name: str) -> T:
        found = self._classes[name]
        if not isinstance(found, str):
            return found
        value: T = getattr(importlib.import_module(self._package), found)
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
    """Return `__getattr__`, `__dir__` and `__all__` of a package from its `__init__.pyi`.

    The stub is the one list of the package's names: type checkers read it, and this function does.
    It holds lines `from .module import Name as Name` only. No name may be that of a module in the
    package: the module would replace it once imported.

    Args:
        package: its `__name__`.
    """
    module: Any = sys.modules[package]
    stub = module.__spec__.loader.get_data(f"{module.__file__}i")  # from a zip file, too
    homes = {
        name.name: f"{package}.{line.module}"
        for line in ast.parse(stub).body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    names = sorted(homes)
    return find, lambda: names, names
