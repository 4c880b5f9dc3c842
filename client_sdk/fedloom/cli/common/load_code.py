"""Loads a user's code by file or module: clients, Flower apps, initial models."""

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
    """Load a client from `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: it does not exist, or is not a client. Exceptions of the code itself are
            passed on.
    """
    found = find(code)
    if not isinstance(found, Client) and callable(found):
        found = found()
    if not isinstance(found, Client):
        raise UsageError(
            f"{code} is a {type(found).__name__}. Name a fedloom.client.Client, or a class or "
            "function that returns one."
        )
    return found


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
        found = found()
    return flower.initial(found)


def initial_model(code: str) -> Params:
    """Load the initial model of a run from a client or a dict of arrays.

    Raises:
        UsageError: it does not exist, is neither, or the client has no initial model.
    """
    found = find(code)
    if not isinstance(found, Client | Mapping) and callable(found):
        found = found()
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


def find(code: str) -> Any:
    """Import `path/to/file.py:name` or `package.module:name`.

    Raises:
        UsageError: it does not exist. Exceptions of the code itself are passed on.
    """
    where, _, name = code.rpartition(":")
    if not where or not name:
        raise UsageError(f"Expected FILE.py:NAME or MODULE:NAME, got {code!r}.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no {name!r}.")
        found = getattr(found, part)
    return found


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    # As for a script: the file can import its neighbours, and its classes can be unpickled.
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
            raise  # an error in the module
        raise UsageError(
            f"There is no module {name!r} ({error.name} is missing). Run this command from the "
            "module's folder, or install the module."
        ) from None
