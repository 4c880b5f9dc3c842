"""Digests of a user's code and data, to notice changes between two runs of a program.

A digest of code follows from its bytecode, so comments and the layout of lines do not count. It
includes what the code names in the user's own modules: functions, classes, and numbers, texts and
arrays. What comes from installed packages counts by name. Lists, dictionaries and global objects,
which a program may change while it runs, count by their types alone.

Bytecode is that of one minor version of Python: digests of different ones cannot be compared.
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

_SAMPLE_BYTES = 4 << 20
"""Of a larger array, rows at even distances are digested."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, EllipsisType)
_CODE = (FunctionType, MethodType, type, partial)
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_path("stdlib")

Seen: TypeAlias = dict[int, Any]
"""Objects met so far by their ids; they are kept so that no id is used again."""


def code_digest(code: object) -> str:
    """SHA-256 of functions, classes and objects of the user's, lower-case hex.

    >>> code_digest(eval("lambda x: x + 1", {"__name__": "__main__"})) == code_digest(
    ...     eval("lambda x: x + 2", {"__name__": "__main__"})
    ... )
    False

    Args:
        code: one, or a tuple of them; None for none.
    """
    return _digest(_tokens(code, {}))


def arrays_digest(arrays: Sequence[Any]) -> str:
    """SHA-256 of arrays, lower-case hex; of larger ones than 4 MiB, of rows at even distances."""
    return _digest(token for array in arrays for token in _of_array(array))


def _digest(tokens: Iterator[str | bytes]) -> str:
    digest = sha256()
    for token in tokens:
        encoded = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _of_array(array: Any) -> Iterator[str | bytes]:
    yield f"{array.dtype} {tuple(array.shape)}"
    if not array.shape or not len(array):
        yield np.asarray(array).tobytes()
        return
    row_bytes = max(array.size * array.dtype.itemsize // len(array), 1)
    count = min(len(array), max(_SAMPLE_BYTES // row_bytes, 1))
    rows = np.linspace(0, len(array) - 1, count).astype(np.int64)
    found = array[rows]  # rows of a file are read here
    yield "" if found.dtype.hasobject else found.tobytes()


def _of_tensor(tensor: torch.Tensor) -> Iterator[str | bytes]:
    found = tensor.detach().cpu()
    try:
        yield from _of_array((found.float() if found.dtype == torch.bfloat16 else found).numpy())
    except (TypeError, RuntimeError):  # sparse or quantised
        yield f"{found.dtype} {tuple(found.shape)}"


def _tokens(value: Any, seen: Seen) -> Iterator[str | bytes]:
    """The parts of a value in a fixed order."""
    kind = type(value)
    yield kind.__name__
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, tuple):
        for item in value:
            yield from _tokens(item, seen)
    elif isinstance(value, frozenset):
        yield from sorted(_digest(_tokens(item, seen)) for item in value)
    elif isinstance(value, np.ndarray | np.generic):
        yield from _of_array(value)
    elif isinstance(value, torch.Tensor):
        yield from _of_tensor(value)
    elif id(value) not in seen:
        seen[id(value)] = value
        yield from _of_object(value, seen)


def _of_object(value: Any, seen: Seen) -> Iterator[str | bytes]:
    if isinstance(value, partial):
        yield from _tokens((value.func, value.args, tuple(sorted(value.keywords.items()))), seen)
    elif isinstance(value, MethodType):
        yield from _tokens((value.__func__, value.__self__), seen)
    elif isinstance(value, FunctionType):
        yield from _of_function(value, seen)
    elif isinstance(value, type):
        yield from _of_class(value, seen)
    elif isinstance(value, nn.Module):
        yield repr(value)
        yield from _tokens(tuple(type(module) for module in value.modules()), seen)
    elif not isinstance(value, list | dict | set | bytearray | ModuleType):
        yield from _tokens((type(value), getattr(value, "__wrapped__", None)), seen)
        yield from _of_attributes(value, seen)


def _of_function(function: FunctionType, seen: Seen) -> Iterator[str | bytes]:
    if not _is_users(function):
        yield function.__qualname__
    else:
        yield from _of_bytecode(function.__code__, function.__globals__, seen)
    keywords = tuple(sorted((function.__kwdefaults__ or {}).items()))
    held = tuple(_content(cell) for cell in function.__closure__ or ())
    wrapped = getattr(function, "__wrapped__", None)
    yield from _tokens((function.__defaults__, keywords, held, wrapped), seen)


def _of_bytecode(code: CodeType, scope: Mapping[str, Any], seen: Seen) -> Iterator[str | bytes]:
    yield code.co_code
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_bytecode(constant, scope, seen)
        else:
            yield from _tokens(constant, seen)
    for name in code.co_names:
        found = scope.get(name)
        named = [found]
        if isinstance(found, ModuleType) and _is_own(found.__name__):
            named = [getattr(found, each, None) for each in code.co_names]
        for each in named:
            if _is_followed(each):
                yield from _tokens(each, seen)


def _is_followed(value: Any) -> bool:
    """Whether a global is code or a constant: other objects may change while a program runs."""
    code = isinstance(value, _CODE) or hasattr(value, "__wrapped__")
    return code or isinstance(value, (tuple, np.ndarray, np.generic, torch.Tensor, *_PLAIN))


def _of_class(kind: type, seen: Seen) -> Iterator[str | bytes]:
    yield kind.__qualname__
    if not _is_users(kind):
        return
    for base in kind.__bases__:
        yield from _tokens(base, seen)
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__  # noqa: PLW2901
        elif isinstance(value, property):
            value = value.fget  # noqa: PLW2901
        if isinstance(value, _CODE) or (_is_followed(value) and not name.startswith("__")):
            yield name
            yield from _tokens(value, seen)


def _of_attributes(value: Any, seen: Seen) -> Iterator[str | bytes]:
    """The settings of an object; of one of a package only numbers, texts and arrays."""
    names = [each.name for each in fields(value)] if is_dataclass(value) else []
    held = {name: getattr(value, name, None) for name in names} | getattr(value, "__dict__", {})
    own = _is_users(type(value))
    for name, each in sorted(held.items()):
        if own or not name.startswith("_"):
            yield name
            if own or _is_followed(each) or callable(each):
                yield from _tokens(each, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _is_users(code: Any) -> bool:
    return _is_own(str(getattr(code, "__module__", "")))


def _is_own(module: str) -> bool:
    """Whether a module is of the user's program, not of an installed package."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module == "fedloom" or module.startswith("fedloom."):
        return False
    installed = any(part in _INSTALLED for part in Path(file).parts)
    return not installed and not file.startswith(_STANDARD)
