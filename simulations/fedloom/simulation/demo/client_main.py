"""The program that each of the demo's clients runs: all that a device's owner has to write.

python -m fedloom.simulation.demo.client_main --config client.toml --shard shard.npz
"""

import argparse
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from fedloom.client import run
from fedloom.client.torch import TorchClient
from fedloom.simulation.demo.model import SmallCNN
from fedloom.simulation.sources import shards


def client(shard: Path) -> TorchClient:
    """The client of one shard."""
    train, held_out = shards.load(shard, "train"), shards.load(shard, "held_out")
    return TorchClient(
        SmallCNN(train.image_shape, train.num_classes),
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
