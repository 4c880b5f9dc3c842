"""Models sent to clients as encoded differences from a model that the client has.

The server keeps the model that clients hold: the one that earlier differences decoded to, on both
sides alike. What encoding lost is part of the next difference, which is taken
from that model, so no loss adds up.

A difference is a container: `note` (U8) is JSON that names the codec and lists the tensors that
changed. Number i of the list is `i` where it comes whole, or the arrays `i.role` of its encoded
difference.

References:
    Tang et al. 2019, DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass
    Error-Compensated Compression, https://arxiv.org/abs/1905.05957, algorithm 1.
    Philippenko and Dieuleveut 2021, Preserved central model for faster bidirectional compression
    in distributed settings, https://arxiv.org/abs/2102.12528, section 2 (a model that the server
    keeps, and another that the clients hold).

Invariant: `apply` of what `make` wrote gives the very arrays that `make` returned.
"""

import json
import math
from collections.abc import Iterator, Mapping
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
"""Stands for the group in the seeds of a model's tensors."""
_NOTE = "note"


@dataclass(frozen=True, slots=True)
class Difference:
    """What leads from one model to the next.

    Attributes:
        arrays: of the container.
        dtypes: container dtypes by name where they differ from the arrays' own.
        result: the model that it leads to, by name.
    """

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    result: dict[str, NDArray[Any]] = field(default_factory=dict)


def make(base: Params, new: Params, manifest: Manifest, method: Codec, seed: int) -> Difference:
    """Encode what leads from the model that clients hold to near the new one.

    Args:
        base: that clients hold.
        new: where they should be.
        manifest: of both.
        method: the codec.
        seed: of the round.
    """
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
                wide = encoded.dtypes.get(role, "")  # bfloat16 is handed over widened
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
    """The model that a difference leads to.

    Args:
        base: the model that it was taken from.
        arrays: of the difference's container, as read.
        manifest: of the model.

    Returns:
        Tensors by name, which are made as they are asked for.

    Raises:
        IntegrityError: it is no difference from this model; some of what is wrong is found only
            where a tensor is asked for.
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


@contextmanager
def _trusting_nothing() -> Iterator[None]:
    """Say of whatever goes wrong that these are not the bytes that were expected."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise IntegrityError(
            f"Expected a difference from the model at hand, got: {type(error).__name__} {error}."
        ) from error


class _Decoded(Pieces):
    """The values of an encoded tensor.

    Args:
        method: the codec.
        encoded: by it.
        shape: of the tensor.
        seed: of its randomness.
    """

    def __init__(self, method: Codec, encoded: Encoded, shape: tuple[int, ...], seed: int) -> None:
        self.shape, self.dtype = shape, np.dtype(np.float32)
        self._decoder = method.decoder(shape, seed, held(encoded.arrays))

    def piece(self, start: int, stop: int) -> NDArray[Any]:
        """Decode them; they last until the next call."""
        with _trusting_nothing():
            found = self._decoder.block(start, stop)
            if found.size != stop - start:
                raise ValueError(f"Expected {stop - start} values, got {found.size}.")
            return found


def _shaped(values: Values, shape: tuple[int, ...]) -> Values:
    """The same values in a shape, which they must be enough for."""
    if not isinstance(values, Pieces):
        return values.reshape(shape)
    if values.size != math.prod(shape):
        raise ValueError(f"Expected values for the shape {shape}, got {values.size}.")
    return Changed(lambda of, _: of[0], (values,), shape, values.dtype)


def _check_each_once(names: list[str]) -> None:
    if len(set(names)) != len(names):  # each costs the decoding of a tensor
        raise ValueError("Expected each tensor once.")


def _raw(array: Values, method: Codec) -> Values:
    """An array as its decoder takes it: bfloat16, which is read widened, by its bits."""
    if method.name == "bf16" and array.dtype == np.float32:
        return changed(lambda of, _: narrow(of[0], "BF16"), array, dtype=np.uint16)
    return array


def _change(old: NDArray[Any], new: NDArray[Any], dtype: str, method: Codec) -> NDArray[np.float32]:
    """What to encode: new less old, in bits where every bit will come back."""
    if not method.exact:
        return np.asarray(np.subtract(new, old, dtype=np.float32))
    kept = np.ascontiguousarray(widen(narrow(new, dtype), dtype), np.float32)
    bits = kept.view(np.uint32) - np.ascontiguousarray(old, np.float32).view(np.uint32)
    return np.asarray(bits).view(np.float32)


def _moved(
    base: NDArray[Any], change: NDArray[np.float32], dtype: str, method: Codec
) -> NDArray[Any]:
    """Base and the change, rounded to what a file of this dtype holds."""
    change = change.reshape(base.shape)
    if method.exact:
        bits = np.ascontiguousarray(base, np.float32).view(np.uint32) + change.view(np.uint32)
        moved = np.asarray(bits).view(np.float32).reshape(base.shape)
    else:
        moved = np.asarray(np.add(base, change, dtype=np.float32))
    with np.errstate(over="ignore"):  # beyond half precision's range is infinity on both sides
        return np.asarray(widen(narrow(moved, dtype), dtype))


def _moved_piece(dtype: str, method: Codec, of: list[NDArray[Any]], _start: int) -> NDArray[Any]:
    """The same of pieces of both."""
    base, change = of
    return _moved(base, change, dtype, method)
