"""The demo's model: a small convolutional network for images of any size from 8×8 up."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmallCNN(nn.Module):
    """Two convolutions with pooling, then one hidden layer.

    No batch normalisation: its running statistics follow each client's own mix of labels, and
    averaging them over skewed clients hurts (Hsieh et al. 2020, "The non-IID data quagmire of
    decentralized machine learning", section 5).

    Args:
        image_shape: (channels, height, width), height and width at least 4.
        num_classes: how many scores to give.
        widths: channels of the two convolutions.
        hidden: units of the hidden layer.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        widths: tuple[int, int] = (16, 32),
        hidden: int = 64,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.conv1 = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(widths[0], widths[1], kernel_size=3, padding=1)
        self.hidden = nn.Linear(widths[1] * (height // 4) * (width // 4), hidden)
        self.scores = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score each class: (batch, channels, height, width) to (batch, num_classes)."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.hidden(x.flatten(1)))
        scores: Tensor = self.scores(x)
        return scores


def build(image_shape: tuple[int, int, int], num_classes: int, *, seed: int) -> SmallCNN:
    """Make the network with its initial weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCNN(image_shape, num_classes)
