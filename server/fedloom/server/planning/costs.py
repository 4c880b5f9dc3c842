"""What a task costs a client: bytes down, bytes up, and passes over its examples.

Bytes are those of files, as a server's ledger counts them: whole containers with their headers,
without the messages around them (an offer, an update's header) and without TLS. They are exact with
three exceptions: `lossless` counts as if nothing shrank, `top_k` as if its places were random (the
simulator's clock and records take what these two really make), and a client that returns other
tensors than the task asks for sends others.

Passes are those of PyTorch clients, as numbers of examples. A pass with gradients counts as a whole
one if some tensors are frozen, and a training that `patience` may end early as a whole one.
"""

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import DifferenceRef, TaskDescription
from fedloom.protocol.tensors.container import TensorEntry, build_header
from fedloom.protocol.tensors.model_differences import first_step
from fedloom.protocol.updates.compression import array_name
from fedloom.server.planning.masking import body_bytes
from fedloom.strategies import DELTA, Personal, RoundSettings
from fedloom.strategies.masking.words import MaskedWords

Counts = NDArray[np.int64]


def download_bytes(task: TaskDescription, held: Container[str]) -> int:
    """Return the bytes of the files that a client downloads for a task.

    Args:
        task: with its files.
        held: digests of the files that the client has.
    """
    total = 0
    if task.model is not None and task.model.digest not in held:
        sizes = [each.file.size_bytes for each in task.differences]
        first = first_step([d.base in held for d in task.differences], sizes, task.model.size_bytes)
        total += task.model.size_bytes if first is None else sum(sizes[first:])
    if task.received is not None and task.received.digest not in held:
        total += task.received.size_bytes
    return total


def kept_differences(steps: Sequence[DifferenceRef], model_bytes: int) -> tuple[DifferenceRef, ...]:
    """Return the newest differences that are offered: at least one, together at most the model.

    Args:
        steps: oldest first.
        model_bytes: of the model that they lead to.
    """
    first = 0
    while first < len(steps) - 1 and sum(d.file.size_bytes for d in steps[first:]) > model_bytes:
        first += 1
    return tuple(steps[first:])


def upload_bytes(
    task: TaskDescription,
    manifest: Manifest,
    *,
    boxes: Mapping[str, tuple[int, ...]] | None = None,
    trainable: Collection[str] | None = None,
    masked: tuple[int, MaskedWords] | None = None,
) -> int:
    """Return the bytes of the update's body that a client uploads.

    0 if it only evaluates and sums are not masked.

    Args:
        task: with the client's seed, if `train.tensor_share` draws tensors by it.
        manifest: of the model.
        boxes: shapes of the tensors of which a narrow client sends a part.
        trainable: tensors with gradients; None for all float tensors. Of others a client rule
            sends no more than the difference.
        masked: bits of a value and the words beside the values, in a masked run.
    """
    shapes = {n: (boxes or {}).get(n, spec.shape) for n, spec in manifest.specs.items()}
    parts = _parts(task, manifest, trainable) if task.train else []
    if masked is not None:
        values = sum(math.prod(shapes[name]) for name in parts)
        return body_bytes(values + len(task.rule.scalars) * task.train, *masked)
    entries: list[TensorEntry] = []
    for number, name in enumerate(parts):
        entries += _arrays(task, f"{number}", manifest.wire_dtype(name), shapes[name])
    return build_header(entries)[1].size_bytes if entries else 0


def _parts(
    task: TaskDescription, manifest: Manifest, trainable: Collection[str] | None
) -> list[str]:
    """The tensor of each part of a body, in order."""
    specs, rule = manifest.specs, task.rule
    stay = task.personal.kept(specs) | task.adapters.frozen(specs)
    sent = task.settings.tensors(specs.keys() - stay, task.seed)
    parts = [(DELTA, name) for name in specs if name in sent]
    if not (rule.is_elementary or rule.picks):

        def has_gradient(name: str) -> bool:
            return manifest.is_float(name) and (trainable is None or name in trainable)

        # As `apply_rule` orders them.
        parts = [part for part in parts if not has_gradient(part[1])] + [
            (group, name) for _, name in parts if has_gradient(name) for group in rule.groups
        ]
    if task.privacy is not None:  # as `Guard.protect` sends them
        parts = sorted((group, name) for group, name in parts if manifest.is_float(name))
    return [name for _, name in parts]


def _arrays(
    task: TaskDescription, values: str, dtype: str, shape: tuple[int, ...]
) -> list[TensorEntry]:
    """The arrays of one part of a body."""
    codec = None if task.scheme is None else task.scheme.codec
    if codec is None or dtype != "F32" or not codec.applies(shape):
        return [TensorEntry(values, dtype, shape)]
    layout = codec.layout(shape).items()
    return [TensorEntry(array_name(values, role), info.dtype, info.shape) for role, info in layout]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """The examples that a task passes through the model on each client.

    Attributes:
        trained: with gradients, with repetitions; shape (clients,).
        evaluated: without gradients; shape (clients,).
    """

    trained: Counts
    evaluated: Counts


def work(
    task: TaskDescription,
    sizes: Counts,
    held_out: Counts | None = None,
    *,
    most_steps: Counts | None = None,
) -> Work:
    """Return the work of a task on each client.

    Args:
        task: whose settings, rule and personalisation decide.
        sizes: examples to train on, at least 1, shape (clients,).
        held_out: examples to evaluate on; None for none.
        most_steps: of local training, within a time budget; None for no budget.
    """
    trained, evaluated = np.zeros_like(sizes), np.zeros_like(sizes)
    if task.evaluates and held_out is not None:
        evaluated = evaluated + held_out
    if task.rule.picks:  # by the loss of each model
        picking = np.ones_like(sizes) if task.train else np.sign(evaluated)
        evaluated = evaluated + picking * len(task.rule.groups) * sizes
    if not task.train:
        return Work(trained=trained, evaluated=evaluated)
    trained = trained_examples(sizes, task.settings, most_steps) * passes_a_step(task.personal)
    if task.personal.head_epochs:
        head = replace(task.settings, epochs=task.personal.head_epochs, steps=None)
        trained = trained + trained_examples(sizes, head, most_steps)
    if task.rule.needs_gradient:
        trained = trained + sizes
    elif task.rule.needs_loss:
        evaluated = evaluated + sizes
    return Work(trained=trained, evaluated=evaluated)


def passes_a_step(personal: Personal) -> int:
    """Return how often a step of local training passes its batch through a model."""
    return 1 if personal.own_model is None else 2


def trained_examples(
    sizes: Counts, settings: RoundSettings, most_steps: Counts | None = None
) -> Counts:
    """Return the number of examples in the steps of local training, with repetitions.

    Args:
        sizes: examples of each client, at least 1, shape (clients,).
        settings: epochs, or steps over shuffled passes of which the last batch may be smaller.
        most_steps: of each client; None for no limit.
    """
    batch = np.minimum(settings.batch_size or sizes, sizes)
    in_a_pass = -(-sizes // batch)
    steps = (settings.epochs or 0) * in_a_pass if settings.steps is None else settings.steps
    if most_steps is not None:
        steps = np.minimum(steps, most_steps)
    passes, rest = np.divmod(steps, in_a_pass)
    return np.asarray(passes * sizes + rest * batch, np.int64)
