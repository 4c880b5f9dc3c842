"""Compression of an update on the device, with error feedback.

Agent and simulator share this, so that the same training sends the same bytes. With error feedback,
the encoding error of each round is added to the values of the next one. The sum of all sent values
and the stored error then equals the sum of all updates, up to rounding.

References:
    Seide et al. 2014, 1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs, section 3.1 (quantisation error carried over).
    Karimireddy et al. 2019, Error Feedback Fixes SignSGD and other Gradient Compression Schemes,
    https://arxiv.org/abs/1901.09847, algorithm 2.

Invariants: memory belongs to one round and is never changed; the same parts, seed and memory give
the same bytes and the same memory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedloom.protocol.codecs.base import Floats
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.protocol.updates.compression import EncodedPart, Scheme, encode
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import Coverage, Mask, Slice
from fedloom.strategies.exact.lazy_arrays import (
    Box,
    Chosen,
    Held,
    Patched,
    Pieces,
    Values,
    changed,
    pieces_of,
)

ERROR = "compression error"
"""Slot of the encoding error; the full name is this, a dot and the group."""
CODEC = "compression memory"
"""Slot of a codec's memory; the full name is this, a dot, the group, a dot and the codec's name."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """An update after compression.

    Attributes:
        parts: to send.
        memory: slot → tensor → array, to store for this client's next round.
    """

    parts: list[TensorPart] = field(default_factory=list)
    memory: dict[str, dict[str, Values]] = field(default_factory=dict)


def compress(
    scheme: Scheme,
    parts: Iterable[TensorPart],
    manifest: Manifest,
    task_seed: int,
    memory: Mapping[str, Mapping[str, Values]],
    *,
    scratch: Scratch | None = None,
) -> Compressed:
    """Encode the parts to which the codec applies.

    Args:
        scheme: of the run.
        parts: values beside received ones.
        manifest: of the model.
        task_seed: of the task.
        memory: slot → tensor → array, from this client's last accepted round; slots other than
            compression's are not returned.
        scratch: for the results of each tensor, before the next one is read; None: results stay in
            memory.
    """
    kept = {
        slot: dict(tensors) for slot, tensors in memory.items() if slot.startswith((ERROR, CODEC))
    }
    done = Compressed(memory=kept)
    for part in parts:
        if manifest.wire_dtype(part.tensor) == "F32":
            part = _part(scheme, part, manifest, task_seed, done.memory, scratch)  # noqa: PLW2901
        done.parts.append(part)
    return done


def _part(  # noqa: PLR0917 - the loop's state
    scheme: Scheme,
    part: TensorPart,
    manifest: Manifest,
    task_seed: int,
    memory: dict[str, dict[str, Values]],
    scratch: Scratch | None,
) -> TensorPart:
    """The part as it is sent; adds to `memory`, whose arrays are not changed."""
    errors = memory.setdefault(f"{ERROR}.{part.group}", {}) if scheme.error_feedback else {}
    error = errors.get(part.tensor)
    shape = part.values.shape
    coded = not isinstance(part.coverage, Mask) and scheme.codec.applies(shape)
    if not coded and error is None:
        return part
    values = _own(part)
    if scheme.error_feedback:
        _add(values, error, part.coverage)
    if not coded:
        sent = values.reshape(shape)
        errors[part.tensor] = _rest(_after(error, None, part, manifest), scratch)
        return part._replace(values=sent if scratch is None else scratch.keep(sent), less=None)
    made = _encode(scheme, part, values, task_seed, memory)
    if scheme.error_feedback:
        if scratch is None:  # decode only once if memory allows
            made = replace(made, decoded=made.decode())
        with np.errstate(invalid="ignore", over="ignore"):  # such an update is refused
            for start, block in made.blocks():
                values[start : start + block.size] -= block
        errors[part.tensor] = _rest(_after(error, values, part, manifest), scratch)
    return part._replace(coded=made if scratch is None else made.resting(scratch.keep))


def _own(part: TensorPart) -> Floats:
    """The values as they would be sent, float32 [size], in a private copy."""
    sent = part.sent(np.float32)
    if isinstance(sent, Pieces) or sent is part.values:
        return np.array(sent).reshape(-1)
    return np.ascontiguousarray(sent).reshape(-1)


def _add(values: Floats, error: Values | None, coverage: Coverage) -> None:
    """Add the earlier error under the values' coverage."""
    if error is None:
        values += np.float32(0)  # turns -0.0 into 0.0, as adding an error does
        return
    match coverage:
        case Slice(ranges):
            error = Box(error if isinstance(error, Pieces) else Held(error), tuple(ranges))
        case Mask(bits):
            error = Chosen(error, bits)
    for start, piece in pieces_of(error):
        values[start : start + piece.size] += piece


def _after(
    error: Values | None, lost: Floats | None, part: TensorPart, manifest: Manifest
) -> Values:
    """The error to remember of a tensor: the new one where values are, the old one elsewhere.

    Args:
        error: the old one; None: zeros.
        lost: the new one, for each value; None: zeros.
        part: of the update.
        manifest: of the model.
    """
    shape = manifest.specs[part.tensor].shape
    nothing = np.broadcast_to(np.float32(0), shape)
    before, there = nothing if error is None else error, part.values.shape
    match part.coverage:
        case Slice(ranges) if shape:
            now = np.broadcast_to(np.float32(0), there) if lost is None else lost.reshape(there)
            return Patched(before, tuple(ranges), now)
        case Mask(bits):
            return changed(lambda of, _: np.where(of[1], 0, of[0]), before, bits, dtype=np.float32)
        case _:
            return nothing if lost is None else lost.reshape(shape)


def _rest(values: Values, scratch: Scratch | None) -> Values:
    """Store values in scratch space, or in a private array."""
    if scratch is not None:
        return scratch.keep(values)
    ours = not isinstance(values, Pieces) and values.flags.writeable
    return values if ours else np.array(values)


def _encode(
    scheme: Scheme,
    part: TensorPart,
    values: Floats,
    task_seed: int,
    memory: dict[str, dict[str, Values]],
) -> EncodedPart:
    prefix = f"{CODEC}.{part.group}."
    recalled = {
        slot.removeprefix(prefix): np.asarray(tensors[part.tensor])
        for slot, tensors in memory.items()
        if slot.startswith(prefix) and part.tensor in tensors
    }
    made = encode(
        scheme.codec,
        values,
        part.values.shape,
        task_seed=task_seed,
        key=(part.group, part.tensor),
        memory=recalled,
    )
    for name, array in made.encoded.memory.items():
        memory.setdefault(prefix + name, {})[part.tensor] = array
    return made
