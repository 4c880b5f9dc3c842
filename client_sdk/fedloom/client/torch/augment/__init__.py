"""Transforms of inputs whose random numbers are keyed by (seed, epoch, example).

    client = TorchClient(model, (x, y), loss, transform=[Crop(padding=4), Flip()])

A task's seed depends on the run's seed, the round and the client, so every client, round, epoch and
example has its own numbers.
"""

from fedloom.client.torch.augment.draws import Draws
from fedloom.client.torch.augment.examples import Transformed
from fedloom.client.torch.augment.pipeline import PerExample, Pipeline, Step
from fedloom.client.torch.augment.transforms import (
    Crop,
    Cutout,
    Flip,
    Jitter,
    Noise,
    Normalise,
    Transform,
)

__all__ = [
    "Crop",
    "Cutout",
    "Draws",
    "Flip",
    "Jitter",
    "Noise",
    "Normalise",
    "PerExample",
    "Pipeline",
    "Step",
    "Transform",
    "Transformed",
]
