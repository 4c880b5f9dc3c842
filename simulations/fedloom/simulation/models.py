"""Networks by name, with initial weights drawn from a seed, and losses by name.

Sources: McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized
data", section 3: the 2NN (199,210 parameters), the CNN (1,663,370) and the character LSTM; Caldas
et al. 2018, "LEAF: A benchmark for federated settings", for the latter's sizes.

Invariants: the same name, settings and seed give the same bits; torch's global generator is not
changed. Scores have shape [batch, classes] or [batch, classes, places], as in torch's
cross_entropy.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom.cli.common.load_code import find
from fedloom.client.torch.loop import Loss
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import check_names, lookup
from fedloom.protocol.user_code import summarised
from fedloom.simulation import networks
from fedloom.strategies.setting_checks import annotations, in_words, parameters

Shape = Sequence[int]


def logistic(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return mlp(input_shape=input_shape, num_classes=num_classes, hidden=())


def two_nn(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """McMahan's 2NN: two hidden layers of 200."""
    return mlp(input_shape=input_shape, num_classes=num_classes, hidden=(200, 200))


def mlp(
    *, input_shape: Shape, num_classes: int, hidden: Sequence[int], activation: str = "relu"
) -> nn.Module:
    """Linear layers of the hidden sizes, each followed by `relu`, `tanh` or `sigmoid`."""
    between = lookup("an activation", activation, _ACTIVATIONS)
    listed = isinstance(hidden, list | tuple)
    if not listed or not all(type(size) is int and size >= 1 for size in hidden):
        raise UsageError(f"Expected model.hidden as a list of sizes >= 1, got {hidden!r}.")
    layers: list[nn.Module] = [nn.Flatten()] if len(input_shape) > 1 else []
    width = prod(input_shape)
    for size in hidden:
        layers += [nn.Linear(width, size), between()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def cnn(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """McMahan's CNN: 5×5 convolutions of 32 and 64, each halved by pooling, and 512 units."""
    return _convolutional(input_shape, num_classes, kernel=5, channels=(32, 64), hidden=512)


def digits_cnn(*, input_shape: Shape, num_classes: int) -> nn.Module:
    """A small CNN for images from 4×4 up: 3×3 convolutions of 16 and 32, and 64 units."""
    return _convolutional(input_shape, num_classes, kernel=3, channels=(16, 32), hidden=64)


def char_lstm(
    *,
    num_classes: int,
    input_shape: Shape = (),  # noqa: ARG001 - any length of text works
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """McMahan's character LSTM: embedding, stacked LSTMs, a score for each character."""
    return CharLSTM(num_classes, embedding, hidden, layers)


def lstm(
    *,
    num_classes: int,
    input_shape: Shape = (),
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
) -> nn.Module:
    """An LSTM for tokens: with `vocabulary` a class for each text, else the next token."""
    if vocabulary is None:
        return char_lstm(
            num_classes=num_classes,
            input_shape=input_shape,
            embedding=embedding,
            hidden=hidden,
            layers=layers,
        )
    return networks.TextLSTM(vocabulary, num_classes, embedding, hidden, layers)


def transformer(
    *,
    num_classes: int,
    input_shape: Shape,
    vocabulary: int | None = None,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> nn.Module:
    """A small transformer: with `vocabulary` a class for each text, else the next token."""
    if len(input_shape) != 1:
        raise UsageError(
            f"Expected texts of shape (tokens,) for a transformer, got {tuple(input_shape)}. Use a "
            "source of text, or resnet18-gn for images."
        )
    return networks.Transformer(
        num_classes if vocabulary is None else vocabulary,
        input_shape[0],
        num_classes,
        width,
        layers,
        heads,
        dropout,
        reads_all=vocabulary is not None,
    )


def resnet18_gn(*, input_shape: Shape, num_classes: int, groups: int = 2) -> nn.Module:
    """ResNet-18 with GroupNorm for small images; 11,173,962 parameters for CIFAR-10."""
    if len(input_shape) != 3 or min(input_shape[1:]) < 8:
        raise UsageError(
            "Expected images of shape (channels, height, width), at least 8×8, for resnet18-gn, "
            f"got inputs of shape {tuple(input_shape)}."
        )
    if type(groups) is not int or groups < 1 or 64 % groups:
        raise UsageError(f"Expected model.groups as a divisor of 64, got {groups!r}.")
    return networks.ResNet(input_shape[0], num_classes, groups)


class CharLSTM(nn.Module):
    """Predicts the next character at every place.

    Args:
        num_classes: size of the alphabet.
        embedding: size of a character's vector.
        hidden: size of each LSTM's state.
        layers: number of stacked LSTMs.
    """

    def __init__(self, num_classes: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.scores = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Score the next character: int64 [batch, places] to float [batch, classes, places]."""
        seen, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.scores(seen)
        return scores.transpose(1, 2)


def _convolutional(
    input_shape: Shape, num_classes: int, *, kernel: int, channels: tuple[int, int], hidden: int
) -> nn.Module:
    if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < 4:
        raise UsageError(
            "Expected images of shape (height, width) or (channels, height, width), at least 4×4, "
            f"for a convolutional model, got inputs of shape {tuple(input_shape)}. Use mlp."
        )
    depth = input_shape[0] if len(input_shape) == 3 else 1
    height, width = input_shape[-2:]
    first, second = channels
    features = second * (height // 4) * (width // 4)
    unflatten = [] if len(input_shape) == 3 else [nn.Unflatten(1, (1, height))]
    return nn.Sequential(
        *unflatten,
        nn.Conv2d(depth, first, kernel, padding=kernel // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, kernel, padding=kernel // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )


_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "2nn": two_nn,
    "mlp": mlp,
    "cnn": cnn,
    "digits-cnn": digits_cnn,
    "char-lstm": char_lstm,
    "lstm": lstm,
    "transformer": transformer,
    "resnet18-gn": resnet18_gn,
}
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
}


def build(
    name: str | Callable[..., nn.Module],
    *,
    seed: int = 0,
    input_shape: Shape | None = None,
    num_classes: int | None = None,
    **settings: Any,
) -> nn.Module:
    """Make a network.

    Args:
        name: a key of `MODELS`, or the user's own as `file.py:function` or
            `package.module:function`, or the function.
        seed: of the initial weights.
        input_shape: of one example.
        num_classes: number of scores. The user's own function gets these two only if it has
            arguments of their names.
        settings: further arguments of the function.

    Raises:
        UsageError: the model is unknown, or settings are unknown or missing.
    """
    make: Callable[..., nn.Module]
    if not isinstance(name, str):
        make, name = name, called(name)
    elif ":" in name:
        make = find(name)
    else:
        make = lookup("a model's name, or FILE.py:NAME", name, MODELS)
    known = {"input_shape": input_shape, "num_classes": num_classes}
    inferred = {key: value for key, value in known.items() if value is not None}
    arguments = {**_taken(make, inferred), **settings}
    check_names(settings.keys() - _taken(make, settings).keys(), parameters(make), "model")
    for missing in parameters(make).keys() - arguments.keys() if make in MODELS.values() else ():
        if parameters(make)[missing].default is inspect.Parameter.empty and missing not in known:
            kind = in_words(annotations(make).get(missing))
            raise UsageError(f"Missing setting model.{missing} of {name}: set it to {kind}.")
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"The settings {sorted(arguments)} do not fit the model {name}: {error}."
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU, where modules are built
        model = _made(name, make, arguments)
    if not isinstance(model, nn.Module):
        raise UsageError(f"Expected {name} to return a module, got {type(model).__name__}.")
    return model


def _made(name: str, make: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return make(**arguments)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"The model {name} cannot be made with these settings: {summarised(error)}."
        ) from error


def called(function: Callable[..., object]) -> str:
    """The name of a function, a class or another callable, for messages and records.

    >>> called(two_nn), called(partial(two_nn))
    ('fedloom.simulation.models:two_nn', 'fedloom.simulation.models:two_nn')
    """
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def loss(name: str | Loss) -> Loss:
    """A loss: a key of `LOSSES`, or the user's own as `file.py:function`, of (outputs, targets).

    A function is returned as it is.

    Raises:
        UsageError: the loss is unknown.
    """
    if not isinstance(name, str):
        return name
    if ":" in name:
        found: Loss = find(name)
        return found
    return lookup("a loss's name, or FILE.py:NAME", name, LOSSES)


def of_values(loss: Loss, output: Tensor, target: Tensor) -> Tensor:
    """The loss of a model that predicts one value per example.

    Args:
        loss: of outputs and targets of the same shape.
        output: shape (N, 1), which would broadcast against (N,), or that of the target.
        target: shape (N,).
    """
    alike = output.squeeze(-1) if output.shape == (*target.shape, 1) else output
    return loss(alike, target)


def _taken(make: Callable[..., nn.Module], offered: Mapping[str, Any]) -> dict[str, Any]:
    takes = inspect.signature(make).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    return {name: value for name, value in offered.items() if anything or name in takes}
