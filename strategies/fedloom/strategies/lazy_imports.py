"""Names that are imported when they are asked for: a device imports what its run needs, no more.

All strategies together take a quarter of a second to import on a small machine.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(MutableMapping[str, T]):
    """A mapping whose values lie in modules, until they are asked for; more can be put into it.

    Args:
        where: name → "module:attribute".
    """

    def __init__(self, where: Mapping[str, str]) -> None:
        self._where: dict[str, str | T] = dict(where)

    def __getitem__(self, name: str) -> T:
        found = self._where[name]
        if not isinstance(found, str):
            return found
        module, _, attribute = found.partition(":")
        value: T = getattr(importlib.import_module(module), attribute)
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._where[name] = value

    def __delitem__(self, name: str) -> None:
        del self._where[name]

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def exports(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__` (PEP 562).

    Args:
        package: its `__name__`.
        where: module in it → the names that it gives, with spaces between. No name may be a
            module's: once that is imported, it would be found instead.
    """
    modules = {name: module for module, names in where.items() for name in names.split()}
    assert not modules.keys() & where.keys()

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return find
