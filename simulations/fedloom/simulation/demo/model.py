"""The demo's model: a small convolutional network for images from 8×8 up."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_MEAN, _SPREAD = 0.3, 0.4
_LARGE = 16


class SmallCNN(nn.Module):
    """Two convolutions, pooling, one hidden layer.

    No batch normalisation: its running statistics follow each client's own mix of labels, and
    averaging them over skewed clients hurts (Hsieh et al. 2020, "The non-IID data quagmire of
    decentralized machine learning", section 5). Pixels are centred instead, by fixed
    constants.

    Args:
        image_shape: (channels, height, width), height and width at least 8; images of at
            least 16 are also halved between the convolutions.
        num_classes: number of scores.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        self._halvings = 2 if min(height, width) >= _LARGE else 1
        features = 32 * (height >> self._halvings) * (width >> self._halvings)
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.hidden = nn.Linear(features, 64)
        self.scores = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score each class.

        Args:
            x: float32 in [0, 1], shape (batch, channels, height, width).

        Returns:
            Scores before softmax, shape (batch, num_classes).
        """
        x = functional.relu(self.conv1((x - _MEAN) / _SPREAD))
        if self._halvings > 1:
            x = functional.max_pool2d(x, 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.hidden(x.flatten(1)))
        scores: Tensor = self.scores(x)
        return scores


def build(image_shape: tuple[int, int, int], num_classes: int, *, seed: int) -> SmallCNN:
    """Make the network with its initial weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(image_shape, num_classes)
