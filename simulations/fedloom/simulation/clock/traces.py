"""Traces of real devices in FedScale's two formats: capacity and behaviour.

A file is a pickled dictionary, or the same as JSON; each entry is one device:

    capacity   {"computation": 162.0, "communication": 5648.1}
    behaviour  {"duration": 60, "inactive": [40, 100], "finish_time": 120, "active": [10, 70],
                "model": "…"}

`computation` is milliseconds of inference for one example and `communication` kbit/s in both
directions; training takes three times the inference (one pass forward, two for the gradients). A
device is available from each `active` second to its `inactive` one; the cycle repeats after
`finish_time`.

Sources: Lai et al. 2022, "FedScale: Benchmarking Model and System Performance of Federated
Learning at Scale", section 3.2; SymbioticLab/FedScale at 7ec441c,
benchmark/dataset/data/device_info/README.md (fields) and
fedscale/cloud/internal/client_metadata.py (`get_completion_time`: units and the factor of three;
`is_active`: windows and their repetition).

Invariant: reading a trace runs no code from the file; only containers, text and numbers are built.
"""

import json
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError

from .availability import Window

TRAINING_FACTOR = 3.0
"""Cost of training one example, in inferences."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One device of a capacity trace.

    Attributes:
        inference_s: seconds of inference for one example, > 0.
        bytes_per_s: of download and of upload, > 0.
    """

    inference_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One device of a behaviour trace.

    Attributes:
        windows: seconds from arrival to departure; they may touch or overlap.
        cycle_s: length of the cycle, > 0.
    """

    windows: tuple[Window, ...]
    cycle_s: float


def read_capacity(path: Path) -> list[Capacity]:
    """The devices of a capacity trace, in the file's order.

    Raises:
        UsageError: the file is missing, is not a trace, or an entry is invalid.
    """
    return [_capacity(f"{path}, device {key}", entry) for key, entry in _read(path)]


def read_behaviour(path: Path) -> list[Behaviour]:
    """The devices of a behaviour trace, in the file's order.

    Raises:
        UsageError: the file is missing, is not a trace, or an entry is invalid.
    """
    return [_behaviour(f"{path}, device {key}", entry) for key, entry in _read(path)]


def _capacity(where: str, entry: Mapping[str, Any]) -> Capacity:
    computation = _number(where, entry, "computation")
    communication = _number(where, entry, "communication")
    for name, value in (("computation", computation), ("communication", communication)):
        if value <= 0:
            raise UsageError(f"Expected {name} > 0, got {value} in {where}.")
    return Capacity(inference_s=computation / 1e3, bytes_per_s=communication * 1e3 / 8)


def _behaviour(where: str, entry: Mapping[str, Any]) -> Behaviour:
    cycle_s = _number(where, entry, "finish_time")
    if cycle_s <= 0:
        raise UsageError(f"Expected finish_time > 0 seconds, got {cycle_s} in {where}.")
    begins, ends = _seconds(where, entry, "active"), _seconds(where, entry, "inactive")
    if len(begins) != len(ends):
        raise UsageError(
            f"Expected one second in inactive for each in active, got {len(ends)} for "
            f"{len(begins)} in {where}."
        )
    for begin, end in zip(begins, ends, strict=True):
        if not 0 <= begin <= end:
            raise UsageError(
                f"Expected 0 <= active <= inactive, got active {begin:g} and inactive {end:g} in "
                f"{where}."
            )
    # FedScale takes the time modulo finish_time, so later times never occur.
    pairs = zip(begins, ends, strict=True)
    return Behaviour(tuple((b, min(e, cycle_s)) for b, e in pairs if b < cycle_s), cycle_s)


def _seconds(where: str, entry: Mapping[str, Any], name: str) -> list[float]:
    values = entry.get(name)
    if not isinstance(values, list | tuple):
        raise UsageError(f"Expected {name} as a list of seconds, got {values!r} in {where}.")
    return [_number(where, {name: value}, name) for value in values]


def _number(where: str, entry: Mapping[str, Any], name: str) -> float:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise UsageError(f"Expected {name} as a finite number, got {value!r} in {where}.")
    return float(value)


# ---- files -----------------------------------------------------------------------------------


def _read(path: Path) -> list[tuple[object, Mapping[str, Any]]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"The trace {path} cannot be read: {error.strerror}.") from error
    try:
        looks_like_json = content.lstrip()[:1] == b"{"
        entries = json.loads(content) if looks_like_json else _Plain(BytesIO(content)).load()
    except UsageError as error:
        raise UsageError(f"{error} File: {path}.") from error
    except Exception as error:  # an invalid pickle may raise anything
        raise UsageError(f"{path} is neither a pickled dictionary nor JSON ({error}).") from error
    if not isinstance(entries, Mapping) or not entries:
        raise UsageError(f"Expected a dictionary of at least one device in {path}.")
    for key, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise UsageError(f"Expected a dictionary for device {key} in {path}, got {entry!r}.")
    return list(entries.items())


class _Plain(pickle.Unpickler):
    """Builds plain containers, text and numbers; NumPy's scalars become numbers."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up one of the allowed names; refuses others."""
        if (module, name) not in _ADMITTED:
            raise UsageError(
                f"Expected a trace of plain dictionaries, lists, text and numbers, got "
                f"{module}.{name}."
            )
        return _ADMITTED[module, name]

    def persistent_load(self, _: object) -> Any:
        """Refuse references to objects outside the file."""
        raise UsageError("The trace refers to an object outside the file.")


class _Dtype:
    """Replaces numpy.dtype: reads one number."""

    _CODES: Mapping[str, str] = {
        "f2": "e", "f4": "f", "f8": "d",
        "i1": "b", "i2": "h", "i4": "i", "i8": "q",
        "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    }  # fmt: skip

    def __init__(self, code: str, *_: object) -> None:
        if code not in self._CODES:
            raise UsageError(f"Expected numbers, got NumPy's {code!r}.")
        self.code, self.order = self._CODES[code], "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


def _scalar(dtype: object, content: object) -> float | int:
    """Replaces the function that unpickles a NumPy scalar; refuses what is not a number."""
    if isinstance(content, str):  # old protocols
        content = content.encode("latin-1")
    if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
        raise UsageError("Expected numbers, got another value of NumPy.")
    value: float | int = struct.unpack(dtype.order + dtype.code, content)[0]
    return value


def _encoded(text: str, encoding: str) -> bytes:
    """Replaces codecs.encode, which old protocols use for bytes."""
    if encoding != "latin1":
        raise UsageError(f"Expected bytes as latin1, got {encoding!r}.")
    return text.encode("latin-1")


_ADMITTED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encoded,
}
