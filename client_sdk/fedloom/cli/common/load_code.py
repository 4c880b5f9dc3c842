"""Finding people's own code, by file or by module."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedloom.client import Client, Params
from fedloom.protocol.errors import UsageError


def load_client(code: str) -> Client:
    """Load `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: there is no such thing, or it is not a client. What the code itself raises
            while it is imported or called comes through as it is.
    """
    found = find(code)
    if not isinstance(found, Client) and callable(found):
        found = found()
    if not isinstance(found, Client):
        raise UsageError(
            f"Expected {code} to be a fedloom.client.Client, or to make one, got a "
            f"{type(found).__name__}."
        )
    return found


def load_flower(code: str, config: Path) -> Client:
    """Load a Flower app as a client.

    Args:
        code: names a `ClientApp`.
        config: path of the client's settings.

    Raises:
        UsageError: there is no such thing, it is no `ClientApp`, or Flower is not installed.
    """
    from fedloom.client import config as settings  # noqa: PLC0415 - only this needs it
    from fedloom.client import flower  # noqa: PLC0415

    found = settings.load(config)
    return flower.load(code, find, found.state_dir, found.flower)


def initial_of_flower(code: str) -> Params:
    """Load the model that a run begins with, from what a Flower app has for it.

    Raises:
        UsageError: there is no such thing, it is no model, or Flower is not installed.
    """
    from fedloom.client import flower  # noqa: PLC0415 - only this needs it
    from fedloom.protocol import extras  # noqa: PLC0415

    extras.flower("for an app that was written for it")
    found = find(code)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "state_dict")):
        found = found()
    return flower.initial(found)


def initial_model(code: str) -> Params:
    """Load the model that a run begins with, from a client or from a dict of arrays.

    Raises:
        UsageError: there is no such thing, or it is neither, or the client has none.
    """
    found = find(code)
    if not isinstance(found, Client | Mapping) and callable(found):
        found = found()
    params = found.initial() if isinstance(found, Client) else found
    if params is None:
        raise UsageError(
            f"Expected {code} to say what a run begins with, got none. Give the client a method "
            "`initial` that returns arrays by name."
        )
    if not isinstance(params, Mapping) or not all(
        isinstance(name, str) and isinstance(value, np.ndarray) for name, value in params.items()
    ):
        raise UsageError(
            f"Expected {code} to be a client or arrays by name, got a {type(params).__name__}."
        )
    return dict(params)


def find(code: str) -> Any:
    """Find `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: there is no such thing. What the code itself raises while it is imported comes
            through as it is.
    """
    where, _, name = code.rpartition(":")
    if not where or not name:
        raise UsageError(f"Expected FILE.py:NAME or MODULE:NAME, got {code!r}.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"Expected {name!r} in {where}, got no such name.")
        found = getattr(found, part)
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"Expected code in {path}, got no such file.")
    # As when it is run as a script, so that it can import its neighbours and be unpickled.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a fault of the module, not its absence
        raise UsageError(
            f"Expected a module {name!r}, got none ({error.name} is missing): "
            "run this from its folder, or install it."
        ) from None
