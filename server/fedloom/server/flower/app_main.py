"""The process of a Flower `ServerApp`: `python -m fedloom.server.flower.app_main FD`."""

import importlib
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity

from fedloom.protocol import flower_project
from fedloom.protocol.errors import FedloomError
from fedloom.protocol.flower_messages import number_of
from fedloom.server.flower.grid import FleetGrid, ServerLink

SERVER = 1
"""Flower's number of the server node."""


def main() -> None:
    """Run the app to its end; the exit code is 1 if it failed."""
    link = ServerLink(socket.socket(fileno=int(sys.argv[1])), _end_group)
    order = link.first()
    folder = Path(order["folder"])
    try:
        project, code = flower_project.app_of(folder), flower_project.server_app_of(folder)
        sys.path.insert(0, str(folder))
        app = _load(code, order["seed"])
        if not isinstance(app, ServerApp):
            sys.exit(
                f"Expected {code} to be a flwr.serverapp.ServerApp, got a {type(app).__name__}."
            )
        context = Context(
            run_id=number_of(order["run"]),
            node_id=SERVER,
            node_config={},
            state=RecordDict(),
            run_config={**flower_project.defaults(project), **order["config"]},
        )
        TaskIdentity.task_id = SERVER
        TaskIdentity.run_id, TaskIdentity.node_id = context.run_id, SERVER
        drafts, max_bytes = Path(order["drafts"]), int(order["max_bytes"])
        app(FleetGrid(link, context.run_id, drafts, max_bytes), context)
    except FedloomError as error:
        sys.exit(f"{error}")


def _load(code: str, seed: int) -> Any:
    """Import the app, and seed the process's generators: an app that is repeated draws the same."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what apps use
    module, _, name = code.partition(":")
    app = getattr(importlib.import_module(module), name)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    return app


def _end_group() -> None:
    """The server has ended."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
