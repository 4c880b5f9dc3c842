"""Loads the operator's code that `[flower]` in `server.toml` names."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedloom.protocol import extras
from fedloom.protocol.errors import UsageError


def find(code: str, folder: Path) -> Any:
    """Import `FILE.py:name` or `package.module:name`.

    Args:
        code: names the object.
        folder: where files, and modules that are not installed, are searched.

    Raises:
        UsageError: it does not exist, Flower is not installed, or the code fails.
    """
    where, _, name = code.rpartition(":")
    if not where or not name:
        raise UsageError(f"Expected FILE.py:NAME or MODULE:NAME in [flower], got {code!r}.")
    extras.flower("for Flower strategies")
    try:
        module = _from_file(folder / where) if where.endswith(".py") else _module(where, folder)
        return getattr(module, name)
    except Exception as error:  # any error of the operator's code
        raise UsageError(
            f"Cannot load the Flower strategy {code}: {type(error).__name__}: {error}"
        ) from error


def _module(where: str, folder: Path) -> Any:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(where)


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
