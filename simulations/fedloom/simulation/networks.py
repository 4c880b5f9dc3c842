"""Networks that are more than a sequence of layers: a ResNet, an LSTM and a transformer for text.

Sources: He et al. 2016, "Deep residual learning for image recognition", table 1 (18 layers), with
the stem and strides that are usual for images of 32×32: a 3×3 convolution, no pooling; GroupNorm in
place of BatchNorm as in Hsieh et al. 2020, "The non-IID data quagmire of decentralized machine
learning", section 5, with two groups as in Reddi et al. 2021, "Adaptive federated optimization",
section 4. Vaswani et al. 2017, "Attention is all you need"; learned positions and normalisation
before each part as in Radford et al. 2019, "Language models are unsupervised multitask learners".

Invariant: token 0 is padding where a text has one class.

Legend: B examples, T tokens of a text, V tokens that exist, D width, K classes.
"""

import torch
from torch import Tensor, nn

from fedloom.protocol.errors import UsageError


class ResNet(nn.Module):
    """ResNet-18 with GroupNorm for small images: 11,168,832 + 513·K parameters with 3 channels.

    Args:
        channels: of an image.
        num_classes: K.
        groups: of every GroupNorm.
    """

    def __init__(self, channels: int, num_classes: int, groups: int) -> None:
        super().__init__()
        widths, blocks, width = (64, 128, 256, 512), [], 64
        for number, wide in enumerate(widths):
            blocks += [_Block(width, wide, 1 if number == 0 else 2, groups)]
            blocks += [_Block(wide, wide, 1, groups)]
            width = wide
        self.stem = nn.Sequential(_convolution(channels, 64), nn.GroupNorm(groups, 64), nn.ReLU())
        self.blocks = nn.Sequential(*blocks)
        self.scores = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score images: [B, channels, H, W] to [B, K]."""
        features = self.blocks(self.stem(x)).mean(dim=(2, 3))
        scores: Tensor = self.scores(features)
        return scores


class _Block(nn.Module):
    def __init__(self, width: int, wide: int, stride: int, groups: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            _convolution(width, wide, stride),
            nn.GroupNorm(groups, wide),
            nn.ReLU(),
            _convolution(wide, wide),
            nn.GroupNorm(groups, wide),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width, wide, 1, stride, bias=False), nn.GroupNorm(groups, wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


def _convolution(width: int, wide: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, wide, 3, stride, padding=1, bias=False)


class Transformer(nn.Module):
    """A small transformer: the next token at every place, or one class for a text.

    It has V·D + T·D + L·(12·D² + 13·D) + 2·D + K·(D + 1) parameters.

    Args:
        vocabulary: V.
        length: T, the longest text.
        num_classes: K.
        width: D.
        layers: L.
        heads: of attention; they divide D.
        dropout: probability, within layers.
        reads_all: whether a text has one class; each place then sees all others.
    """

    def __init__(  # noqa: PLR0917 - the sizes of a transformer
        self,
        vocabulary: int,
        length: int,
        num_classes: int,
        width: int,
        layers: int,
        heads: int,
        dropout: float,
        *,
        reads_all: bool,
    ) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"Expected model.heads to divide width = {width}, got {heads}.")
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_classes)
        self.reads_all = reads_all

    def forward(self, x: Tensor) -> Tensor:
        """Score texts: int64 [B, T] to [B, K, T], or to [B, K] if a text has one class."""
        length = x.shape[1]
        h = self.tokens(x) + self.places(torch.arange(length, device=x.device))
        if self.reads_all:
            scores: Tensor = self.scores(_mean(self.norm(self.layers(h)), x))
            return scores
        later = torch.ones((length, length), dtype=torch.bool, device=x.device).triu(1)
        scores = self.scores(self.norm(self.layers(h, mask=later)))
        return scores.transpose(1, 2)


class TextLSTM(nn.Module):
    """One class for a text, from the mean of an LSTM's states.

    Args:
        vocabulary: V.
        num_classes: K.
        embedding: size of a token's vector.
        hidden: size of each LSTM's state.
        layers: number of stacked LSTMs.
    """

    def __init__(
        self, vocabulary: int, num_classes: int, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.scores = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score texts: int64 [B, T] to [B, K]."""
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.scores(_mean(states, x))
        return scores


def _mean(states: Tensor, x: Tensor) -> Tensor:
    """Mean of the states [B, T, D] of tokens that are not padding, [B, D]."""
    there = (x != 0).unsqueeze(2).to(states.dtype)
    return (states * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)
