"""The project of a Flower app: `[tool.flwr.app]` in its `pyproject.toml`."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError
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
            return defaults(app)
    return {}


def app_of(folder: Path) -> Mapping[str, Any]:
    """The table `[tool.flwr.app]` of an app.

    Raises:
        UsageError: there is none.
    """
    app = _app(folder / FILE)
    if app is None:
        raise UsageError(f"Expected [tool.flwr.app] in {folder / FILE}, got none.")
    return app


def server_app_of(folder: Path) -> str:
    """The `package.module:name` of an app's `ServerApp`.

    Raises:
        UsageError: it has none.
    """
    code = app_of(folder).get("components", {}).get("serverapp")
    if not isinstance(code, str) or not all(code.partition(":")):
        raise UsageError(
            f'Expected serverapp = "MODULE:NAME" in [tool.flwr.app.components] of '
            f"{folder / FILE}, got {code!r}."
        )
    return code


def defaults(app: Mapping[str, Any]) -> dict[str, Any]:
    """The default config of an app, by flat names (`a.b`)."""
    return dict(dotted(app.get("config", {})))


def _app(path: Path) -> Mapping[str, Any] | None:
    document = toml.read_optional(path, "the app's project")
    if document is None:
        return None
    found: Mapping[str, Any] | None = document.get("tool", {}).get("flwr", {}).get("app")
    return found
