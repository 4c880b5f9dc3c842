"""Transforms of a batch of inputs: cropping, flips, colour, noise, cutout, normalisation.

Sources: random crops with padding and flips as in He et al. 2016, "Deep residual learning for image
recognition", section 4.2; crops to a smaller size, the centre in evaluation, as in McMahan et al.
2017, section 3; cutout as in DeVries and Taylor 2017, "Improved regularization of convolutional
neural networks with cutout", section 3.

Invariant: a result depends only on the example and its numbers: no operation sums over a batch.

Legend: B examples, C channels, H×W pixels; inputs are float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedloom.client.torch.augment.draws import Draws
from fedloom.protocol.errors import UsageError

Shape: TypeAlias = tuple[int, ...]
_LARGEST = 1e30
"""Of a setting: inputs stay finite in float32, whose largest number is 3.4e38."""


class Transform(ABC):
    """Changes a batch of inputs; subclass it for one of your own.

    Attributes:
        moves_pixels: whether a target with its own pixels, such as a mask, would no longer fit.
    """

    moves_pixels: ClassVar[bool] = False

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of an example after this transform.

        Raises:
            UsageError: it does not support examples of this shape.
        """
        return shape

    @abstractmethod
    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """The inputs in training: [B, …] to [B, …], not in place."""

    def evaluate(self, x: Tensor) -> Tensor:
        """The inputs in evaluation; default: unchanged."""
        return x


def _image(name: str, shape: Shape) -> tuple[int, int]:
    """Height and width."""
    if len(shape) not in (2, 3):
        raise UsageError(
            f"The transform {name} needs images of shape (height, width) or (channels, height, "
            f"width), got inputs of shape {shape}. Remove it, or use images."
        )
    return shape[-2], shape[-1]


def _count(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise UsageError(f"Expected {name} as a whole number >= {least}, got {value!r}.")


def _number(name: str, value: Any, least: float = 0.0, most: float = _LARGEST) -> None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not least <= value <= most:
        raise UsageError(f"Expected {name} as a number of {least:g} to {most:g}, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop(Transform):
    """Cut out a square at a random place, of the image with zeros around it.

    In evaluation the centre of the image without padding.

    Attributes:
        size: height and width of the result; None for the image's own.
        padding: zeros on each side.
    """

    size: int | None = None
    padding: int = 0
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size is not None:
            _count("crop.size", self.size, 1)
        _count("crop.padding", self.padding, 0)
        if self.size is None and not self.padding:
            raise UsageError("The transform crop needs padding or size, such as padding = 4.")

    def output_shape(self, shape: Shape) -> Shape:
        """(…, H, W) to (…, size, size)."""
        height, width = _image("crop", shape)
        if self.size is None:
            return shape
        if self.size > min(height, width):
            raise UsageError(
                f"Expected crop.size <= {min(height, width)} for images of {height}×{width}, got "
                f"{self.size}. Lower it."
            )
        return (*shape[:-2], self.size, self.size)

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Crops at places of equal probability."""
        height, width = self.output_shape(tuple(x.shape[1:]))[-2:]
        padded = pad(x, [self.padding] * 4)
        room = torch.tensor([padded.shape[-2] - height + 1, padded.shape[-1] - width + 1])
        top, left = (draws.uniform(2) * room).long().to(x.device).unbind(1)
        planes = padded if x.ndim == 4 else padded.unsqueeze(1)
        # Windows are views: 14 times the speed of indexing single pixels.
        windows = planes.unfold(2, height, 1).unfold(3, width, 1)
        out = windows[torch.arange(len(x), device=x.device), :, top, left]
        return out if x.ndim == 4 else out.squeeze(1)

    def evaluate(self, x: Tensor) -> Tensor:
        """The centre."""
        height, width = self.output_shape(tuple(x.shape[1:]))[-2:]
        top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
        return x[..., top : top + height, left : left + width].contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip(Transform):
    """Mirror left and right; of digits and letters it changes the meaning.

    Attributes:
        probability: of a flip.
    """

    probability: float = 0.5
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _number("flip.probability", self.probability, 0, 1)

    def output_shape(self, shape: Shape) -> Shape:
        """As given."""
        _image("flip", shape)
        return shape

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Some images mirrored."""
        chosen = (draws.uniform(1) < self.probability).to(x.device)
        return torch.where(chosen.view(-1, *[1] * (x.ndim - 1)), x.flip(-1), x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutout(Transform):
    """Set a square around a random pixel to 0; it may reach over the border.

    Attributes:
        size: height and width of the square.
    """

    size: int
    moves_pixels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _count("cutout.size", self.size, 1)

    def output_shape(self, shape: Shape) -> Shape:
        """As given."""
        height, width = _image("cutout", shape)
        if self.size > min(height, width):
            raise UsageError(
                f"Expected cutout.size <= {min(height, width)} for images of {height}×{width}, got "
                f"{self.size}. Lower it."
            )
        return shape

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Images with a hole."""
        sides = torch.tensor(x.shape[-2:])
        start = ((draws.uniform(2) * sides).long() - self.size // 2).to(x.device)
        rows, columns = (torch.arange(int(side), device=x.device) for side in sides)
        tall = (rows >= start[:, :1]) & (rows < start[:, :1] + self.size)
        wide = (columns >= start[:, 1:]) & (columns < start[:, 1:] + self.size)
        hole = tall[:, :, None] & wide[:, None, :]
        return x.masked_fill(hole if x.ndim == 3 else hole[:, None], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Transform):
    """Add Gaussian noise.

    Attributes:
        deviation: standard deviation.
    """

    deviation: float

    def __post_init__(self) -> None:
        _number("noise.deviation", self.deviation)

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Noisy inputs."""
        return x + self.deviation * draws.normal(tuple(x.shape[1:])).to(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter(Transform):
    """Shift the features of an example: x becomes c·x + b, with its own c and b.

    Attributes:
        contrast: c is uniform in 1 ± contrast; at most 1.
        brightness: b is uniform in ± brightness.
    """

    contrast: float = 0.0
    brightness: float = 0.0

    def __post_init__(self) -> None:
        _number("jitter.contrast", self.contrast, 0, 1)
        _number("jitter.brightness", self.brightness)
        if not self.contrast and not self.brightness:
            raise UsageError("The transform jitter needs contrast or brightness, such as 0.2.")

    def train(self, x: Tensor, draws: Draws) -> Tensor:
        """Shifted inputs."""
        drawn = (2 * draws.uniform(2) - 1).to(x).view(2 * len(x), *[1] * (x.ndim - 1))
        factor, shift = 1 + self.contrast * drawn[0::2], self.brightness * drawn[1::2]
        return x * factor + shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(Transform):
    """Subtract a mean and divide by a deviation, in training and evaluation.

    Attributes:
        mean: one number, or one for each channel (or column of a table).
        deviation: from 1e-30 on, likewise.
    """

    mean: float | Sequence[float]
    deviation: float | Sequence[float]

    def __post_init__(self) -> None:
        for name, given in (("mean", self.mean), ("deviation", self.deviation)):
            values: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
            for value in values:
                least = -_LARGEST if name == "mean" else 1 / _LARGEST
                _number(f"normalise.{name}", value, least)

    def output_shape(self, shape: Shape) -> Shape:
        """As given."""
        channels = 1 if len(shape) == 2 else (shape or (1,))[0]
        for name, given in (("mean", self.mean), ("deviation", self.deviation)):
            if isinstance(given, list | tuple) and len(given) != channels:
                raise UsageError(
                    f"Expected normalise.{name} as one number, or as {channels} for inputs of "
                    f"shape {shape}, got {len(given)}."
                )
        return shape

    def train(self, x: Tensor, draws: Draws) -> Tensor:  # noqa: ARG002 - draws nothing
        """Normalised inputs."""
        return self.evaluate(x)

    def evaluate(self, x: Tensor) -> Tensor:
        """Normalised inputs."""
        mean, deviation = (_along(value, x) for value in (self.mean, self.deviation))
        return (x - mean) / deviation


def _along(value: float | Sequence[float], x: Tensor) -> Tensor:
    """Numbers of the channels, in the shape that broadcasts over a batch."""
    tensor = torch.tensor(value, dtype=x.dtype, device=x.device)
    return tensor.view(-1, *[1] * (x.ndim - 2)) if tensor.ndim and x.ndim > 2 else tensor
