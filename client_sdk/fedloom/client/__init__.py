"""Federated learning on a device: write a `Client`, then `run` it.

    from fedloom.client import Client, run

    class Digits(Client):
        def train(self, params, task): ...      # returns params, num_examples, metrics
        def evaluate(self, params, task): ...   # returns num_examples, metrics

    run(Digits(), config="client.toml")

`fedloom.client.torch` makes one from a PyTorch module. `save_file` and `load_file` write and read
models. This package needs neither torch nor any library of the server.
"""

import fedloom.protocol.transport  # noqa: F401 - before gRPC is imported
from fedloom.client.agent.agent import Agent, run
from fedloom.client.api import (
    Client,
    Kind,
    MaskOf,
    Metrics,
    Params,
    SliceOf,
    Task,
    Update,
    Weighting,
)
from fedloom.client.config import ClientConfig
from fedloom.client.files import load_file, save_file
from fedloom.client.gates import Gate
from fedloom.client.model import Model

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
