"""The default config of a Flower app: `[tool.flwr.app.config]` in its `pyproject.toml`."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.protocol.settings import dotted, toml

FILE = "pyproject.toml"
LEVELS = 3
"""Folders that are searched, upwards from the module's."""


def config_of(code: str) -> dict[str, Any]:
    """The defaults of an app's config, by flat names (`a.b`); empty without a project.

    Args:
        code: `package.module:app` or `FILE.py:app`, already loaded.

    Raises:
        UsageError: the project's file is not TOML.
    """
    where = code.rpartition(":")[0]
    if where.endswith(".py"):
        file: str | None = where
    else:
        spec = importlib.util.find_spec(where)
        file = None if spec is None else spec.origin
    if file is None:
        return {}
    for folder in list(Path(file).resolve().parents)[:LEVELS]:
        app = _app(folder / FILE)
        if app is not None:
            return dict(dotted(app.get("config", {})))
    return {}


def _app(path: Path) -> Mapping[str, Any] | None:
    document = toml.read_optional(path, "the app's project")
    if document is None:
        return None
    found: Mapping[str, Any] | None = document.get("tool", {}).get("flwr", {}).get("app")
    return found
