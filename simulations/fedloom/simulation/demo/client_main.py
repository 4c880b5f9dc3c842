"""The code of each of the demo's clients: all that a device's owner has to write.

SHARD=shard.npz fedloom client run fedloom.simulation.demo.client_main:client --config client.toml
"""

import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from fedloom.client.torch import TorchClient
from fedloom.simulation.demo import data
from fedloom.simulation.demo.model import SmallCNN

SHARD = "SHARD"
"""Name of the environment variable with the file of this client's data, .npz."""


def client() -> TorchClient:
    """The client of the shard that the environment names."""
    train, held_out, num_classes = data.read(Path(os.environ[SHARD]))
    return TorchClient(
        SmallCNN(train.x.shape[1:], num_classes),
        (torch.from_numpy(train.x), torch.from_numpy(train.y)),
        cross_entropy,
        evaluate=(torch.from_numpy(held_out.x), torch.from_numpy(held_out.y)),
    )
