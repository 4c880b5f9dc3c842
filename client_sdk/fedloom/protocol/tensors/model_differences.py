"""Models sent to clients as encoded differences from a model that the client has.

The server keeps the model that clients hold, the result of decoding earlier differences, identical
on both sides. The next difference is computed from that model, so it includes the last loss, and
losses do not accumulate.

A difference is a container: `note` (U8) is JSON that names the codec and lists the tensors that
changed. Number i of the list is the array `i` if sent whole, or the arrays `i.role` of its encoded
difference.

References:
    Tang et al. 2019, DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass
    Error-Compensated Compression, https://arxiv.org/abs/1905.05957, algorithm 1.
    Philippenko and Dieuleveut 2021, Preserved central model for faster bidirectional compression
    in distributed settings, https://arxiv.org/abs/2102.12528, section 2 (a model that the server
    keeps, and another that the clients hold).

Invariant: `apply` to the output of `make` gives the arrays that `make` returned, bit for bit.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.codecs import Codec, Encoded, codec, decode, held, stream
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import narrow, widen
from fedloom.protocol.updates.compression import array_name
from fedloom.strategies.exact.lazy_arrays import Changed, Pieces, Values, changed

Params = Mapping[str, NDArray[Any]]

GROUP = "model"
"""The group name in the seeds of a model's tensors."""
_NOTE = "note"
_SLACK_BYTES = 1 << 16
"""By how much differences may be longer than the model that they lead to."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference from one model to the next.

    Attributes:
        arrays: of the container.
        dtypes: container dtypes by name, if they differ from the arrays' own.
        result: the resulting model, by name.
    """

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    result: dict[str, NDArray[Any]] = field(default_factory=dict)


def make(base: Params, new: Params, manifest: Manifest, method: Codec, seed: int) -> Difference:
    """Encode the difference from the clients' model to the new one, with loss."""
    done = Difference()
    listed: list[dict[str, Any]] = []
    for name, old in base.items():
        if np.array_equal(old, new[name]):
            done.result[name] = old
            continue
        dtype, number = manifest.dtypes[name], f"{len(listed)}"
        entry: dict[str, Any] = {"name": name}
        if manifest.wire_dtype(name) == "F32" and method.applies(old.shape):
            change = _change(old, new[name], dtype, method).reshape(-1)
            key = stream(seed, GROUP, name)
            encoded = method.encode(change, old.shape, key, {})
            entry |= {"arrays": list(encoded.arrays), "seed": str(key)}
            for role, array in encoded.arrays.items():
                at = array_name(number, role)
                wide = encoded.dtypes.get(role, "")  # bfloat16 is passed widened
                done.arrays[at] = widen(np.asarray(array), wide)
                if wide:
                    done.dtypes[at] = wide
            decoded = decode(method, encoded, old.shape, key)
            done.result[name] = _moved(old, decoded, dtype, method)
        else:
            done.arrays[number] = new[name]
            done.dtypes[number] = dtype
            done.result[name] = widen(narrow(new[name], dtype), dtype)
        listed.append(entry)
    note = {"codec": method.name, "settings": method.settings(), "tensors": listed}
    done.arrays[_NOTE] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    return done


def apply(
    base: Mapping[str, Values], arrays: Mapping[str, Values], manifest: Manifest
) -> dict[str, Values]:
    """Apply a difference.

    Args:
        base: the model from which it was computed.
        arrays: of the difference's container, as read.
        manifest: of the model.

    Returns:
        Tensors by name, decoded on access.

    Raises:
        IntegrityError: it is no difference from this model; some faults are found only when a
            tensor is accessed.
    """
    with _trusting_nothing():
        note = json.loads(np.asarray(arrays[_NOTE]).tobytes())
        method = codec(note["codec"], note["settings"])
        result, listed = dict(base), note["tensors"]
        _check_each_once([entry["name"] for entry in listed])
        for number, entry in enumerate(listed):
            name = entry["name"]
            if "arrays" not in entry:
                result[name] = _shaped(arrays[f"{number}"], base[name].shape)
                continue
            found = {role: arrays[array_name(f"{number}", role)] for role in entry["arrays"]}
            encoded = Encoded({role: _raw(array, method) for role, array in found.items()})
            change = _Decoded(method, encoded, base[name].shape, int(entry["seed"]))
            moved = partial(_moved_piece, manifest.dtypes[name], method)
            result[name] = changed(moved, base[name], change, dtype=manifest.specs[name].dtype)
    return result


def first_step(known: Sequence[bool], sizes: Sequence[int], model_bytes: int) -> int | None:
    """The first of the offered differences that a client downloads; None for the whole model.

    Args:
        known: whether it has the model from which each difference was computed, oldest first.
        sizes: of the differences, bytes.
        model_bytes: of the model that they lead to.
    """
    if not any(known) or sum(sizes) > model_bytes + _SLACK_BYTES:
        return None
    return max(number for number, has in enumerate(known) if has)


@contextmanager
def _trusting_nothing() -> Iterator[None]:
    """Convert any error into an IntegrityError about the difference."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise IntegrityError(
            f"Expected a difference from the model at hand, got: {type(error).__name__} {error}."
        ) from error


class _Decoded(Pieces):
    def __init__(self, method: Codec, encoded: Encoded, shape: tuple[int, ...], seed: int) -> None:
        self.shape, self.dtype = shape, np.dtype(np.float32)
        self._decoder = method.decoder(shape, seed, held(encoded.arrays))

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Decode them; valid until the next call."""
        with _trusting_nothing():
            found = self._decoder.block(start, stop)
            if found.size != stop - start:
                raise ValueError(f"Expected {stop - start} values, got {found.size}.")
            return found


def _shaped(values: Values, shape: tuple[int, ...]) -> Values:
    if not isinstance(values, Pieces):
        return values.reshape(shape)
    if values.size != math.prod(shape):
        raise ValueError(f"Expected values for the shape {shape}, got {values.size}.")
    return Changed(lambda of, _: of[0], (values,), shape, values.dtype)


def _check_each_once(names: list[str]) -> None:
    if len(set(names)) != len(names):  # each access decodes a tensor
        raise ValueError("Expected each tensor once.")


def _raw(array: Values, method: Codec) -> Values:
    """An array for its decoder: widened bfloat16 becomes bits again."""
    if method.name == "bf16" and array.dtype == np.float32:
        return changed(lambda of, _: narrow(of[0], "BF16"), array, dtype=np.uint16)
    return array


def _change(old: NDArray[Any], new: NDArray[Any], dtype: str, method: Codec) -> NDArray[np.float32]:
    """The values to encode: new minus old; for a lossless codec the difference of bits."""
    if not method.exact:
        return np.asarray(np.subtract(new, old, dtype=np.float32))
    kept = np.ascontiguousarray(widen(narrow(new, dtype), dtype), np.float32)
    bits = kept.view(np.uint32) - np.ascontiguousarray(old, np.float32).view(np.uint32)
    return np.asarray(bits).view(np.float32)


def _moved(
    base: NDArray[Any], change: NDArray[np.float32], dtype: str, method: Codec
) -> NDArray[Any]:
    """Base plus change, rounded to the dtype of the file."""
    change = change.reshape(base.shape)
    if method.exact:
        bits = np.ascontiguousarray(base, np.float32).view(np.uint32) + change.view(np.uint32)
        moved = np.asarray(bits).view(np.float32).reshape(base.shape)
    else:
        moved = np.asarray(np.add(base, change, dtype=np.float32))
    with np.errstate(over="ignore"):  # overflow of half precision is infinity on both sides
        return np.asarray(widen(narrow(moved, dtype), dtype))


def _moved_piece(dtype: str, method: Codec, of: list[NDArray[Any]], _start: int) -> NDArray[Any]:
    base, change = of
    return _moved(base, change, dtype, method)
