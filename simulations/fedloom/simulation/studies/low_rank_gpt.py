"""A tiny GPT with low-rank adapters, and clients that train them: the subject of a study.

The vocabulary has 16 words and a mark for each of 8 domains. A text is its domain's mark and words
of a Markov chain. The base model is trained on one chain under all marks; then each client has
texts of a domain of its own, with a chain of its own. So clients differ, and one model can still
fit all of them.

Legend: r a rank, s the scale lora_alpha / r.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.client import Client, SliceOf, Task, Update
from fedloom.strategies.adapters.settings import layers

WORDS, DOMAINS, LENGTH = 16, 8, 16
WIDTH, HEADS, BLOCKS = 32, 2, 2
SCALE: Final = 2.0
TEXTS, TEST_TEXTS = 256, 128
"""Texts of each domain, for training and for the test."""
_DISTINCT: Final = 2.0
"""Standard deviation of the logarithms of a chain's probabilities."""


class Adapted(nn.Module):
    """A linear layer: a frozen weight, an adapter, and what the model has beside it."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.base = nn.Linear(into, out)
        self.lora_a = nn.Parameter(torch.zeros(0, into))
        self.lora_b = nn.Parameter(torch.zeros(out, 0))
        self.beside: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        out: Tensor = self.base(x)
        if self.beside is not None:
            out = out + nn.functional.linear(x, self.beside)
        low = nn.functional.linear(x, self.lora_a)
        return out + SCALE * nn.functional.linear(low, self.lora_b)


class GptBlock(nn.Module):
    """Attention and a network, with adapters in all of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = Adapted(WIDTH, 3 * WIDTH)
        self.out = Adapted(WIDTH, WIDTH)
        self.up = Adapted(WIDTH, 2 * WIDTH)
        self.down = Adapted(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return out


class TinyGpt(nn.Module):
    """Predicts the next word at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + DOMAINS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(GptBlock() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next word, [batch, length, words], from words [batch, length]."""
        x = self.words(x) + self.places(torch.arange(x.shape[1]))
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out

    def loss(self, texts: Tensor) -> Tensor:
        """Mean cross-entropy of all words of texts, [batch, 1 + length]."""
        logits = self(texts[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, texts[:, 1:].flatten())

    def adapted(self) -> dict[str, Adapted]:
        """Its adapted layers, by their names in a run's model."""
        found = {n: module for n, module in self.named_modules() if isinstance(module, Adapted)}
        return {name.replace(".", "_"): module for name, module in found.items()}


# ---- data ------------------------------------------------------------------------------------


def _texts(domain: int, count: int, chain: int, generator: np.random.Generator) -> Tensor:
    """Texts of a domain's mark and the words of a chain, [count, 1 + LENGTH]."""
    logits = np.random.default_rng([17, chain]).normal(size=(WORDS, WORDS)) * _DISTINCT
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    limits = shares.cumsum(1)
    texts = np.empty((count, 1 + LENGTH), np.int64)
    texts[:, 0] = WORDS + domain
    texts[:, 1] = generator.integers(0, WORDS, count)
    for place in range(2, 1 + LENGTH):
        drawn = generator.random(count)[:, None] > limits[texts[:, place - 1]]
        texts[:, place] = np.minimum(drawn.sum(1), WORDS - 1)
    return torch.from_numpy(texts)


def client_texts(number: int, seed: int) -> Tensor:
    """The texts of one client, whose domain has its number."""
    return _texts(number, TEXTS, 1 + number, np.random.default_rng([seed, number]))


@lru_cache
def test_texts(seed: int) -> Tensor:
    """Test texts of all domains."""
    generator = np.random.default_rng([seed, 1000])
    return torch.cat([_texts(n, TEST_TEXTS, 1 + n, generator) for n in range(DOMAINS)])


# ---- the base model --------------------------------------------------------------------------


@lru_cache
def _trained_base(seed: int) -> Mapping[str, Tensor]:
    """The values of the base model, trained on one chain under all marks."""
    torch.manual_seed(seed)
    model, generator = TinyGpt(), np.random.default_rng([seed, 2000])
    texts = torch.cat([_texts(n, TEXTS, 0, generator) for n in range(DOMAINS)])
    params = [p for n, p in model.named_parameters() if "lora" not in n]
    minimize(model, params, texts, steps=300, rate=3e-3, seed=seed, batch_size=32)
    return {n: value for n, value in model.state_dict().items() if "lora" not in n}


def base_model(seed: int) -> TinyGpt:
    """The base model without adapters; nothing of it is trained any more."""
    model = TinyGpt()
    model.load_state_dict(_trained_base(seed), strict=False)
    return model.requires_grad_(requires_grad=False)


def minimize(
    model: TinyGpt, params: Sequence[Tensor], texts: Tensor, *, steps: int, rate: float,
    seed: int, batch_size: int,
) -> float:  # fmt: skip
    """Train with Adam on random batches; returns the mean loss."""
    optimizer = torch.optim.Adam(params, lr=rate)
    generator, total = torch.Generator().manual_seed(seed), 0.0
    for _ in range(steps):
        batch = texts[torch.randint(len(texts), (batch_size,), generator=generator)]
        optimizer.zero_grad()
        loss = model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(loss.detach())
    return total / max(steps, 1)


# ---- adapters --------------------------------------------------------------------------------


class _Weight(nn.Module):
    """A tensor by the name `weight`, as peft's names end."""

    def __init__(self, values: Tensor, *, trained: bool) -> None:
        super().__init__()
        self.weight: Tensor
        if trained:
            self.weight = nn.Parameter(values)
        else:
            self.register_buffer("weight", values)


def adapters(rank: int, seed: int, *, rest: bool) -> nn.Module:
    """The adapters alone, by peft's names: A as peft draws it, B zero."""
    generator = torch.Generator().manual_seed(seed)
    root = nn.Module()
    for name, layer in TinyGpt().adapted().items():
        out, into = layer.base.weight.shape
        a = (2 * torch.rand(rank, into, generator=generator) - 1) / math.sqrt(into)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["lora_A"] = _Weight(a, trained=True)
        parts["lora_B"] = _Weight(torch.zeros(out, rank), trained=True)
        if rest:
            parts["lora_rest"] = _Weight(torch.zeros(out, into), trained=False)
        root.add_module(name, nn.Sequential(parts))
    return root


def put(model: TinyGpt, params: Mapping[str, NDArray[Any]], rank: int) -> None:
    """Give a model the leading ranks of a run's adapters, and the others beside them."""
    found = {layer.name: layer for layer in layers(params)}
    for name, module in model.adapted().items():
        layer = found[name]
        a, b = (torch.from_numpy(np.array(params[n])) for n in (layer.a, layer.b))
        module.lora_a = nn.Parameter(a[:rank].clone())
        module.lora_b = nn.Parameter(b[:, :rank].clone())
        rest = torch.from_numpy(np.array(params.get(layer.rest, np.zeros((len(b), a.shape[1])))))
        module.beside = SCALE * (rest.float() + b[:, rank:] @ a[rank:])


def loss_of(params: Mapping[str, NDArray[Any]], seed: int) -> float:
    """The loss of a run's adapters on the test texts."""
    model = base_model(seed)
    put(model, params, max(len(params[layer.a]) for layer in layers(params)))
    with torch.no_grad():
        return float(model.loss(test_texts(seed)))


class AdapterClient(Client):
    """Trains the adapters on the texts of one domain.

    Args:
        number: of the domain.
        rank: of this device.
        seed: of the base model and the texts.
    """

    def __init__(self, number: int, rank: int, seed: int) -> None:
        self._number, self._rank, self._seed = number, rank, seed

    def train(self, params: dict[str, NDArray[Any]], task: Task) -> Update:
        """Train for the task's steps; returns the leading ranks."""
        model, settings = base_model(self._seed), task.settings
        put(model, params, self._rank)
        chosen, modules = task.tensors(params), model.adapted()
        trained: dict[str, Tensor] = {}
        for layer in layers(params):
            module = modules[layer.name]
            both = {layer.a: module.lora_a, layer.b: module.lora_b}
            trained |= {n: each for n, each in both.items() if n in chosen}
        loss = minimize(
            model, list(trained.values()), client_texts(self._number, self._seed),
            steps=settings.steps or 1, rate=settings.learning_rate, seed=task.seed % 2**32,
            batch_size=settings.batch_size,
        )  # fmt: skip
        sent: dict[str, Any] = {}
        for name, tensor in trained.items():
            values = tensor.detach().numpy()
            box = tuple((0, stop) for stop in values.shape)
            sent[name] = values if values.shape == params[name].shape else SliceOf(values, box)
        return Update(sent, TEXTS, {"loss": loss})
