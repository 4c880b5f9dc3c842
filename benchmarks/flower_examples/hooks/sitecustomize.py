"""Replaces data, fixes seeds and records results in every process of a Flower example.

Python imports this before the program, because the runner puts its folder first on PYTHONPATH. It
changes modules when the program imports them, and imports none itself, so other processes of a
deployment stay as they are. Without FLOWER_EXAMPLE in the environment it does nothing.
"""

import importlib.abc
import importlib.util
import os
import sys

PATCHES = {
    # module -> (module of this folder, function that gets it after its import)
    "datasets": ("replaced_data", "datasets"),
    "evaluate": ("replaced_models", "evaluate"),
    "torchvision.models": ("replaced_models", "torchvision_models"),
    "transformers.models.auto.modeling_auto": ("replaced_models", "auto_models"),
    "transformers.models.auto.tokenization_auto": ("replaced_models", "auto_tokenizers"),
    "torch": ("fixed_seeds", "torch"),
    "flwr.client": ("moved_names", "client"),
    "flwr.common.typing": ("moved_names", "common_typing"),
    "flwr.clientapp.client_app": ("fixed_seeds", "client_app"),
    "flwr.serverapp.server_app": ("recorded", "server_app"),
    "flwr.serverapp.strategy.result": ("recorded", "strategy_result"),
    "flwr.server.server": ("recorded", "older_server"),
    "flwr.server.workflow.default_workflows": ("recorded", "workflow"),
}


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the modules of PATCHES as the others do, and patches them once they are executed."""

    def __init__(self):
        self.asking = set()

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - the protocol's arguments
        if name not in PATCHES or name in self.asking:
            return None
        self.asking.add(name)  # find_spec asks this finder again
        spec = importlib.util.find_spec(name)
        self.asking.remove(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                file, function = PATCHES[name]
                getattr(importlib.import_module(file), function)(module)

            spec.loader.exec_module = exec_module
        return spec


if "FLOWER_EXAMPLE" in os.environ:
    sys.meta_path.insert(0, AfterImport())
