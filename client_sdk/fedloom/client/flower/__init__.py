"""Runs unmodified apps of Flower as clients.

    fedloom client run --flower quickstart.client_app:app

or, in code,

    from fedloom.client import ClientConfig, run
    from fedloom.client.flower import flower_client

    run(flower_client(app, "client-state"), config="client.toml")

docs/flower.md lists what is supported. Importing this needs no flwr; making a client does.

Invariant: a device that runs a Flower app connects only to its own server.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedloom.client.api import Client, Params
from fedloom.protocol import extras, flower_project


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
        state_dir: of the client; the app's contexts are in its folder `flower`.
        node_config: the `node_config` of the app's context, such as `partition-id`; numbers and
            booleans may be text.
        defaults: of the run's config.

    Raises:
        UsageError: it is not a `ClientApp`, or Flower is not installed.
    """
    extras.flower("for Flower apps")
    adapter = importlib.import_module("fedloom.client.flower.adapter")
    client: Client = adapter.FlowerClient(
        app, Path(state_dir), node_config=node_config or {}, defaults=defaults or {}
    )
    return client


def load(
    code: str, find: Callable[[str], Any], state_dir: Path, node_config: Mapping[str, Any]
) -> Client:
    """Make a client of the app `package.module:app` or `FILE.py:app`.

    The defaults of the run's config come from the app's `pyproject.toml`, if it has one. Other
    arguments as in `flower_client`.

    Raises:
        UsageError: it does not exist, is not a `ClientApp`, or Flower is not installed.
    """
    extras.flower("for Flower apps")
    app = find(code)
    defaults = flower_project.config_of(code)
    return flower_client(app, state_dir, node_config=node_config, defaults=defaults)


def initial(found: Any) -> Params:
    """The initial model of a run, from a Flower app.

    Args:
        found: a torch module, an `ArrayRecord`, `Parameters`, a list of arrays or arrays by name.

    Returns:
        Arrays by name; arrays of a list are named "0", "1", …

    Raises:
        UsageError: it is none of these, or Flower is not installed.
    """
    extras.flower("for Flower apps")
    records = importlib.import_module("fedloom.client.flower.records")
    params: Params = records.initial(found)
    return params
