"""Updates to tamper with: tests can change every field, the body's JSON and its bytes."""

import json
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, Full, Mask, Slice

SHAPES = {"w": (4, 6), "b": (7,), "half": (3, 2), "count": ()}
DTYPES = {"w": "F32", "b": "F32", "half": "BF16", "count": "I64"}
MASK = np.array([1, 0, 1, 1, 0, 0, 1], np.bool_)
BOX = ((1, 3), (0, 1))


def write_model(path):
    """The base model of these updates."""
    rng = np.random.default_rng(0)
    params = {
        "w": rng.normal(size=SHAPES["w"]).astype(np.float32),
        "b": rng.normal(size=SHAPES["b"]).astype(np.float32),
        "half": rng.normal(size=SHAPES["half"]).astype(np.float32),
        "count": np.array(41, np.int64),
    }
    write_file(path, params, DTYPES)


def coverages():
    """The coverages of an update here: a tensor, half of one, a box of one, and a scalar."""
    return {"w": Full(), "b": Mask(MASK), "half": Slice(BOX), "count": Full()}


def values_of(client):
    """The values that a client of this name sends, by tensor, flat."""
    rng = np.random.default_rng(list(client.encode()))
    sizes = {"w": 24, "b": int(MASK.sum()), "half": 2, "count": 1}
    return {
        name: rng.normal(size=size).astype(np.float64 if name == "count" else np.float32)
        for name, size in sizes.items()
    }


def examples_of(client):
    """How many examples a client of this name has."""
    return 3 + sum(client.encode()) % 11


@dataclass
class Forgery:
    """An update, valid until a test changes it.

    Attributes:
        header: as sent after `seal` has set its length and checksum.
        tensors: the body's JSON before it is written: name to dtype, shape and data_offsets.
        data: the body's bytes after its JSON.
        text: the JSON's bytes, if they differ from those of `tensors`.
    """

    header: fleet_pb2.UpdateHeader
    tensors: dict = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    text: bytes | None = None

    def add(self, name, dtype, values, shape=None):
        """Append a tensor to the body."""
        raw = np.ascontiguousarray(values).tobytes()
        start = len(self.data)
        self.data += raw
        self.tensors[name] = {
            "dtype": dtype,
            "shape": list(np.shape(values) if shape is None else shape),
            "data_offsets": [start, start + len(raw)],
        }

    def put(self, name, index, value):
        """Overwrite one value of a tensor of the body."""
        start, stop = self.tensors[name]["data_offsets"]
        dtype = {"F32": "<f4", "F64": "<f8", "U8": "u1"}[self.tensors[name]["dtype"]]
        np.frombuffer(self.data, dtype, (stop - start) // np.dtype(dtype).itemsize, start)[
            index
        ] = value

    def body(self):
        """The present bytes."""
        text = self.text
        if text is None:
            text = json.dumps(self.tensors).encode()
            text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + bytes(self.data)

    def seal(self, body=None):
        """Announce the length and checksum of the body; returns the body."""
        body = self.body() if body is None else body
        self.header.size_bytes = len(body)
        self.header.crc32c = crc32c(body)
        return body

    def part(self, tensor):
        """The header's part of a tensor."""
        return next(p for p in self.header.parts if p.tensor == tensor)


def honest(client, offer):
    """The valid update of a client for an offer: one part of each kind of coverage."""
    header = fleet_pb2.UpdateHeader(
        task=offer.key,
        client=client,
        model_digest=offer.model.digest,
        weight=examples_of(client),
        training=fleet_pb2.Metrics(num_examples=examples_of(client), values={"loss": 0.5}),
    )
    forged = Forgery(header)
    values = values_of(client)
    for name in ("count", "w", "b", "half"):  # widest first: aligned without a hole
        part = header.parts.add(group=DELTA, tensor=name, values=name)
        match coverages()[name]:
            case Full():
                part.full.SetInParent()
                shape = SHAPES[name]
            case Slice(ranges):
                part.slice.ranges.extend(fleet_pb2.Range(start=a, stop=b) for a, b in ranges)
                shape = tuple(b - a for a, b in ranges)
            case Mask():
                part.mask.bits = f"{name}.bits"
                shape = values[name].shape
        forged.add(name, "F64" if name == "count" else "F32", values[name], shape)
    forged.add("b.bits", "U8", np.packbits(MASK, bitorder="little"))
    forged.seal()
    return forged
