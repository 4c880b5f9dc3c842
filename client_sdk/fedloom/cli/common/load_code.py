"""Loads a user's code by file or module: clients, Flower apps, initial models.

What the code itself raises becomes an error for its author; see `user_code`.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from fedloom.client import Client, Params
from fedloom.protocol.errors import UsageError
from fedloom.protocol.user_code import loading

_MOST_NAMES = 8


def load_client(code: str) -> Client:
    """Load a client from `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: it does not exist, is not a client, or raises an error.
    """
    found = find(code)
    if not isinstance(found, Client) and callable(found):
        found = called(code, found)
    if isinstance(found, Client):
        return found
    if any(hasattr(found, name) for name in ("train", "evaluate")):
        name = type(found).__name__
        raise UsageError(
            f"{code} is a {name}, which is no fedloom.client.Client. Derive its class from Client: "
            f"class {name}(Client)."
        )
    raise UsageError(
        f"{code} is a {type(found).__name__}. Name a fedloom.client.Client, or a class or "
        "function that returns one."
    )


def load_flower(code: str, config: Path) -> Client:
    """Load a Flower app as a client.

    Args:
        code: the `ClientApp`, as `path/to/file.py:name` or `package.module:name`.
        config: path of client.toml.

    Raises:
        UsageError: it does not exist, is not a `ClientApp`, or Flower is not installed.
    """
    from fedloom.client import config as settings  # noqa: PLC0415 - only this needs it
    from fedloom.client import flower  # noqa: PLC0415

    found = settings.load(config)
    return flower.load(code, find, found.state_dir, found.flower)


def initial_of_flower(code: str) -> Params:
    """Load the initial model of a run from a Flower app.

    Raises:
        UsageError: it does not exist, is not a model, or Flower is not installed.
    """
    from fedloom.client import flower  # noqa: PLC0415 - only this needs it
    from fedloom.protocol import extras  # noqa: PLC0415

    extras.flower("for Flower apps")
    found = find(code)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "state_dict")):
        found = called(code, found)
    return flower.initial(found)


def initial_model(code: str) -> Params:
    """Load the initial model of a run from a client or a dict of arrays.

    Raises:
        UsageError: it does not exist, is neither, or the client has no initial model.
    """
    found = find(code)
    if not isinstance(found, Client | Mapping) and callable(found):
        found = called(code, found)
    with loading(code):
        params = found.initial() if isinstance(found, Client) else found
    if params is None:
        raise UsageError(
            f"{code} has no initial model. Give the client a method `initial` that returns arrays "
            "by name."
        )
    if not isinstance(params, Mapping) or not all(
        isinstance(name, str) and isinstance(value, np.ndarray) for name, value in params.items()
    ):
        raise UsageError(
            f"{code} is a {type(params).__name__}. Name a client, or a dict of arrays by name."
        )
    return dict(params)


def called(code: str, make: Callable[..., Any]) -> Any:
    """Call a class or a function of the user's code without arguments.

    Raises:
        UsageError: it needs arguments, or raises an error.
    """
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise UsageError(
            f"Expected {code} to need no arguments, got: {error}. Name an object, or a function "
            "that gives the arguments: def client(): return …"
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    with loading(code):
        return make()


def find(code: str) -> Any:
    """Import `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: it does not exist, or importing it raises an error.
    """
    where, _, name = code.rpartition(":")
    if not where or not name:
        example = f", such as {code}:client" if code.endswith(".py") else ""
        raise UsageError(f"Expected FILE.py:NAME or MODULE:NAME{example}, got {code!r}.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no {name!r}.{_names(found, part)}")
        found = getattr(found, part)
    return found


def _names(found: Any, wanted: str) -> str:
    """What the user may have meant, or what there is."""
    own = getattr(found, "__module__", getattr(found, "__name__", ""))
    there = [
        name
        for name, value in getattr(found, "__dict__", {}).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", own) == own
    ]
    if close := get_close_matches(wanted, there, 1):
        return f" Did you mean {close[0]!r}?"
    return f" It defines {', '.join(there[:_MOST_NAMES])}." if there else " It defines nothing."


class _Fresh(SourceFileLoader):
    """Compiles a file each time.

    Python's compiled copy counts as current after an edit within a second that keeps the length.
    """

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the loader of one file
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.{_nearby(path)}")
    # As for a script: the file can import its neighbours, and its classes can be unpickled.
    sys.path.insert(0, str(path.resolve().parent))
    loader = _Fresh(path.stem, str(path.absolute()))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with loading(str(path)):
        loader.exec_module(module)
    return module


def _nearby(path: Path) -> str:
    """The file in the same folder that may be meant."""
    there = [each.name for each in path.parent.glob("*.py")]
    close = get_close_matches(path.name, there, 1)
    return f" Did you mean {path.with_name(close[0])}?" if close else ""


def _from_path(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    if name.startswith(".") or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"Expected a file whose name ends in .py, or a module, got {name!r}.")
    with loading(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # an error in the module
            missing = error.name
    raise UsageError(
        f"There is no module {name!r} ({missing} is missing). Run this command from the module's "
        "folder, or install the module."
    )
