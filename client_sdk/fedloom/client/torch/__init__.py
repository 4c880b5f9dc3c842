"""Clients that train PyTorch modules: about ten lines for a user.

    from fedloom.client import run
    from fedloom.client.torch import TorchClient

    client = TorchClient(model, (x, y), loss=torch.nn.functional.cross_entropy, evaluate=(vx, vy))
    run(client, config="client.toml")

Importing this imports torch; importing `fedloom.client` does not.
"""

from fedloom.client.torch.adapters import lora, merged
from fedloom.client.torch.client import TorchClient
from fedloom.client.torch.modules import load, load_file, parameters, save_file

__all__ = ["TorchClient", "load", "load_file", "lora", "merged", "parameters", "save_file"]
