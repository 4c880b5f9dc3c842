"""Apps that were written for Flower, as clients of a federation, without a change.

    fedloom client run --flower quickstart.client_app:app

or, in code,

    from fedloom.client import ClientConfig, run
    from fedloom.client.flower import flower_client

    run(flower_client(app, "client-state"), config="client.toml")

docs/flower.md says what runs and what does not. Importing this needs no flwr; making a client does.

Invariant: a device that runs an app for Flower speaks to its own server and to nobody else.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedloom.client.api import Client, Params
from fedloom.protocol import extras


def flower_client(
    app: Any,
    state_dir: str | Path,
    *,
    node_config: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Client:
    """Make a client of a Flower `ClientApp`.

    Args:
        app: the `ClientApp`.
        state_dir: of the client; the app's contexts lie in the folder `flower` in it.
        node_config: what the app finds in its context's `node_config`, such as `partition-id`;
            numbers and truths may be written as text.
        defaults: of the run's config, for what the run does not set.

    Raises:
        UsageError: it is no `ClientApp`, or Flower is not installed.
    """
    extras.flower("for an app that was written for it")
    adapter = importlib.import_module("fedloom.client.flower.adapter")
    client: Client = adapter.FlowerClient(
        app, Path(state_dir), node_config=node_config or {}, defaults=defaults or {}
    )
    return client


def load(
    code: str, find: Callable[[str], Any], state_dir: Path, node_config: Mapping[str, Any]
) -> Client:
    """Make a client of the app that `package.module:app` or `FILE.py:app` names.

    The defaults of the run's config come from the app's own `pyproject.toml`, if it has one.

    Args:
        code: names the app.
        find: loads what it names.
        state_dir: as of `flower_client`.
        node_config: likewise.

    Raises:
        UsageError: there is no such thing, or it is no `ClientApp`, or Flower is not installed.
    """
    extras.flower("for an app that was written for it")
    app = find(code)
    projects = importlib.import_module("fedloom.client.flower.projects")
    defaults = projects.config_of(code)
    return flower_client(app, state_dir, node_config=node_config, defaults=defaults)


def initial(found: Any) -> Params:
    """What a run begins with, from what a Flower app has for it.

    Args:
        found: a torch module, an `ArrayRecord`, `Parameters`, a list of arrays or arrays by name.

    Returns:
        Arrays by name; those of a list are named by their places, "0", "1", …

    Raises:
        UsageError: it is none of these, or Flower is not installed.
    """
    extras.flower("for an app that was written for it")
    records = importlib.import_module("fedloom.client.flower.records")
    params: Params = records.initial(found)
    return params
