"""Federated learning on a device: write a `Client`, then `run` it.

    >>> import numpy as np
    >>> from fedloom.client import Client
    >>> class Mean(Client):
    ...     data = np.array([1.0, 2.0, 6.0], np.float32)
    ...     def train(self, params, task):
    ...         step = np.float32(task.settings.learning_rate) * (self.data.mean() - params["mean"])
    ...         return {"mean": params["mean"] + step}, len(self.data), {}
    >>> from fedloom.client.testing import rounds
    >>> run = {"train": {"epochs": 1, "learning_rate": 1.0}}
    >>> rounds(Mean(), {"mean": np.zeros(1, np.float32)}, run=run).params["mean"]
    array([3.], dtype=float32)

`run(Mean(), config="client.toml")` connects to a server and trains when the server asks.
`fedloom.client.torch` makes a client from a PyTorch module, `fedloom.client.numpy` from a gradient
in numpy, `fedloom.client.sklearn` from a linear model. `save_file` and `load_file` write and read
models. This package requires neither torch nor the server's libraries.
"""

import fedloom.protocol.transport  # noqa: F401 - before gRPC is imported
from fedloom.client.agent.agent import Agent, run
from fedloom.client.api import Client, MaskOf, Metrics, Params, SliceOf, Task, Update, Weighting
from fedloom.client.config import ClientConfig
from fedloom.client.files import load_file, save_file
from fedloom.client.gates import Gate
from fedloom.client.model import Model
from fedloom.protocol.task_kind import Kind

__all__ = [
    "Agent",
    "Client",
    "ClientConfig",
    "Gate",
    "Kind",
    "MaskOf",
    "Metrics",
    "Model",
    "Params",
    "SliceOf",
    "Task",
    "Update",
    "Weighting",
    "load_file",
    "run",
    "save_file",
]
