"""The program of each of the demo's clients: all that a device's owner has to write.

python -m fedloom.simulation.demo.client_main --config client.toml --shard shard.npz
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from fedloom.client import run
from fedloom.client.torch import TorchClient
from fedloom.simulation.demo import data
from fedloom.simulation.demo.model import SmallCNN


def client(shard: Path) -> TorchClient:
    """The client of one shard."""
    train, held_out, num_classes = data.read(shard)
    return TorchClient(
        SmallCNN(train.x.shape[1:], num_classes),
        (torch.from_numpy(train.x), torch.from_numpy(train.y)),
        cross_entropy,
        evaluate=(torch.from_numpy(held_out.x), torch.from_numpy(held_out.y)),
    )


def main() -> None:
    """Take part in the federation of a client.toml with the data of a shard."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="from `fedloom client enroll`")
    parser.add_argument("--shard", type=Path, required=True, help="this client's data, .npz")
    arguments = parser.parse_args()
    run(client(arguments.shard), config=arguments.config)


if __name__ == "__main__":
    main()
