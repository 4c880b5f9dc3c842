"""Invalid updates for the tests of refusals: each changes a valid one in one way.

A change gets a `Forgery`, may change its header, and returns the bytes of the body to send. If the
fault is in the body, length and checksum are set again, so that nothing else is wrong.
"""

import json
import math
import struct

import numpy as np

from fedloom.protocol.errors import Code
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA
from support.forgery import MASK, values_of


def value(number, tensor="w"):
    """Put a number into a tensor of the body."""

    def change(forged):
        forged.put(tensor, 1, number)
        return forged.seal()

    return change


def weight(number):
    """Claim a weight."""

    def change(forged):
        forged.header.weight = number
        return forged.body()

    return change


def examples(number):
    """Claim a weight with as many examples."""

    def change(forged):
        forged.header.weight = number
        forged.header.training.num_examples = number
        return forged.body()

    return change


def described(tensor, **fields):
    """Describe a tensor otherwise in the body's JSON, and seal that."""

    def change(forged):
        forged.tensors[tensor].update(fields)
        return forged.seal()

    return change


def text(raw):
    """Replace the body's JSON, and seal that."""

    def change(forged):
        forged.text = raw(forged) if callable(raw) else raw
        return forged.seal()

    return change


def prefix(length):
    """Let the first eight bytes declare a JSON of another length, and seal that."""

    def change(forged):
        return forged.seal(struct.pack("<Q", length) + forged.body()[8:])

    return change


def announced(**fields):
    """Change fields of the update's header; the body stays."""

    def change(forged):
        for name, new in fields.items():
            setattr(forged.header, name, new)
        return forged.body()

    return change


def part(tensor, **fields):
    """Change fields of a part in the update's header; the body stays."""

    def change(forged):
        for name, new in fields.items():
            setattr(forged.part(tensor), name, new)
        return forged.body()

    return change


def reshape(tensor, shape):
    """Claim another shape for the same number of values."""
    return described(tensor, shape=list(shape))


def wrong_dtype(forged):
    """Send float64 where float32 travels."""
    forged.tensors = {}
    forged.data.clear()
    values = values_of("mallory")
    forged.add("count", "F64", values["count"], ())
    forged.add("w", "F64", values["w"].astype(np.float64), (4, 6))
    forged.add("b", "F32", values["b"])
    forged.add("half", "F32", values["half"], (2, 1))
    forged.add("b.bits", "U8", np.packbits(MASK, bitorder="little"))
    return forged.seal()


def as_integers(forged):
    """Call the values integers: of the same width, so that everything else fits."""
    forged.tensors["w"]["dtype"] = "I32"
    return forged.seal()


def unknown_tensor(forged):
    """Name a tensor that the model does not have."""
    forged.part("w").tensor = "nope"
    return forged.body()


def unknown_group(forged):
    """Name a group that the strategy does not sum."""
    forged.part("w").group = "control"
    return forged.body()


def unannounced(forged):
    """Add one more tensor to the body."""
    forged.add("extra", "U8", np.zeros(3, np.uint8))
    return forged.seal()


def missing(forged):
    """Announce a tensor that the body does not hold."""
    added = forged.header.parts.add(group=DELTA, tensor="w", values="ghost")
    added.full.SetInParent()
    del forged.header.parts[1]
    return forged.body()


def twice_in_json(forged):
    """Name a tensor twice in the body's JSON."""
    once = json.dumps(forged.tensors)
    return once[:-1].encode() + b"," + once[1:].encode()


def twice_in_parts(forged):
    """Cover a tensor by two parts."""
    added = forged.header.parts.add(group=DELTA, tensor="w", values="w2")
    added.full.SetInParent()
    forged.add("w2", "F32", np.zeros((4, 6), np.float32))
    return forged.seal()


def one_body_tensor_for_two_parts(forged):
    """Let two parts share the same values."""
    forged.part("half").values = "b"
    return forged.body()


def bits_as_values(forged):
    """Let a part's values be another's mask."""
    forged.part("half").values = "b.bits"
    return forged.body()


def overlong_inside(forged):
    """Send one message that goes past the declared end."""
    body = forged.seal()
    return body + b"\0"


def size_of(size):
    """Send fewer bytes than a container needs, with right length and checksum."""

    def change(forged):
        return forged.seal(forged.body()[:size])

    return change


def short_of_its_json(forged):
    """A body that ends before its JSON, with right length and checksum."""
    return forged.seal(struct.pack("<Q", 40) + b"{" + b" " * 31)


def huge_gap(forged):
    """Leave a hole between two tensors."""
    forged.data += bytes(8)
    forged.tensors["b.bits"]["data_offsets"] = [
        o + 8 for o in forged.tensors["b.bits"]["data_offsets"]
    ]
    return forged.seal()


def overlap(forged):
    """Let a tensor begin within another."""
    forged.tensors["half"]["data_offsets"] = [o - 4 for o in forged.tensors["half"]["data_offsets"]]
    return forged.seal()


def misaligned(forged):
    """Put a byte tensor before a float tensor."""
    forged.tensors, forged.data = {}, bytearray()
    values = values_of("mallory")
    forged.add("b.bits", "U8", np.packbits(MASK, bitorder="little"))
    forged.add("count", "F64", values["count"], ())
    forged.add("w", "F32", values["w"], (4, 6))
    forged.add("b", "F32", values["b"])
    forged.add("half", "F32", values["half"], (2, 1))
    return forged.seal()


def trailing(forged):
    """Append bytes that no tensor claims."""
    return forged.seal(forged.body() + bytes(16))


def clipped(forged):
    """Declare, and send, a byte less than the JSON adds up to."""
    return forged.seal(forged.body()[:-1])


def popcount(forged):
    """Set a bit more than there are values."""
    forged.put("b.bits", 0, int(np.packbits(MASK, bitorder="little")[0]) | 2)
    return forged.seal()


def padding(forged):
    """Set the bit after the last coordinate."""
    forged.put("b.bits", 0, int(np.packbits(MASK, bitorder="little")[0]) | 128)
    return forged.seal()


def long_mask(forged):
    """Send a mask with a byte too many."""
    forged.tensors["b.bits"]["shape"] = [2]
    forged.tensors["b.bits"]["data_offsets"][1] += 1
    forged.data += b"\0"
    return forged.seal()


def mask_of_floats(forged):
    """Describe the mask's byte as a boolean."""
    forged.tensors["b.bits"]["dtype"] = "BOOL"
    return forged.seal()


def masked_values_in_a_square(forged):
    """Give the values under a mask two dimensions."""
    forged.tensors["b"]["shape"] = [2, 2]
    return forged.seal()


def ranges(*new):
    """Cover another box."""

    def change(forged):
        covered = forged.part("half").slice
        del covered.ranges[:]
        covered.ranges.extend(fleet_pb2.Range(start=a, stop=b) for a, b in new)
        return forged.body()

    return change


def no_coverage(forged):
    """Omit the coverage of a part."""
    forged.part("w").ClearField("coverage")
    return forged.body()


def no_parts(forged):
    """Send a body that the header does not describe."""
    del forged.header.parts[:]
    return forged.body()


def no_body(forged):
    """Describe a body that does not come."""
    forged.header.size_bytes = 0
    forged.header.crc32c = 0
    return b""


def metric(number):
    """Report a metric."""

    def change(forged):
        forged.header.training.values["loss"] = number
        return forged.body()

    return change


def many_metrics(forged):
    """Report more metrics than allowed."""
    for number in range(257):
        forged.header.evaluation.values[f"m{number}"] = 1.0
    return forged.body()


def reversed_metric(forged):
    """Report a metric whose name reverses the reading order."""
    forged.header.evaluation.values["loss\u202e1.0"] = 1.0
    return forged.body()


def long_metric(forged):
    """Report a metric with a name of 300 characters."""
    forged.header.evaluation.values["m" * 300] = 1.0
    return forged.body()


def evaluated(number):
    """Claim to have evaluated on this many examples."""

    def change(forged):
        forged.header.evaluation.num_examples = number
        forged.header.evaluation.values["loss"] = 0.5
        return forged.body()

    return change


def giant(forged):
    """Send a header of a megabyte, all of it empty submessages."""
    forged.header.parts.extend([fleet_pb2.Part()] * 400_000)
    return forged.body()


def flipped(forged):
    """Flip the lowest bit of a value after the checksum."""
    body = bytearray(forged.body())
    body[len(body) - len(forged.data) + forged.tensors["w"]["data_offsets"][0]] ^= 1
    return bytes(body)


def other_run(run):
    """Name a run that does not exist."""

    def change(forged):
        forged.header.task.run = run
        return forged.body()

    return change


def other_round(number):
    """Name another round."""

    def change(forged):
        forged.header.task.round = number
        return forged.body()

    return change


def deep_json(forged):
    """Nest the JSON deeper than a parser's stack."""
    return b'{"w":' + b"[" * 2000 + b"]" * 2000 + b"}"


def one_bad_name(forged):
    """Describe a tensor whose dtype is no text that can be sent back."""
    forged.tensors["w"]["dtype"] = "\ud800"
    return json.dumps(forged.tensors).encode()


def long_name(forged):
    """Name a tensor by thousands of letters that take four bytes each."""
    forged.tensors["\U0001f9f6" * 500] = forged.tensors.pop("w")
    return json.dumps(forged.tensors).encode()


BAD_UPDATES = {
    # values
    "nan": (Code.NOT_FINITE, value(math.nan)),
    "signalling nan": (Code.NOT_FINITE, value(np.uint32(0x7F800001).view(np.float32))),
    "infinity": (Code.NOT_FINITE, value(math.inf)),
    "minus infinity": (Code.NOT_FINITE, value(-math.inf)),
    "nan under a mask": (Code.NOT_FINITE, value(math.nan, "b")),
    "nan in a slice": (Code.NOT_FINITE, value(math.nan, "half")),
    "magnitude": (Code.MAGNITUDE_TOO_LARGE, value(100.5)),
    "negative magnitude": (Code.MAGNITUDE_TOO_LARGE, value(-100.5)),
    "largest float": (Code.MAGNITUDE_TOO_LARGE, value(np.finfo(np.float32).max)),
    # tensors
    "transposed": (Code.WRONG_SHAPE, reshape("w", (6, 4))),
    "flattened": (Code.WRONG_SHAPE, reshape("w", (24,))),
    "one dimension more": (Code.WRONG_SHAPE, reshape("w", (1, 4, 6))),
    "scalar as a vector": (Code.WRONG_SHAPE, reshape("count", (1,))),
    "float64 for float32": (Code.WRONG_DTYPE, wrong_dtype),
    "integers for float32": (Code.WRONG_DTYPE, as_integers),
    "unknown dtype": (Code.WRONG_DTYPE, described("w", dtype="C128")),
    "dtype that is no text": (Code.MALFORMED, text(one_bad_name)),
    "unknown tensor": (Code.UNKNOWN_TENSOR, unknown_tensor),
    "unknown group": (Code.UNKNOWN_TENSOR, unknown_group),
    "unannounced tensor": (Code.UNKNOWN_TENSOR, unannounced),
    "missing tensor": (Code.UNKNOWN_TENSOR, missing),
    "reserved name": (Code.UNKNOWN_TENSOR, part("w", values="__metadata__")),
    "long name": (Code.UNKNOWN_TENSOR, text(long_name)),
    "twice in the json": (Code.DUPLICATE_TENSOR, text(twice_in_json)),
    "two parts for one tensor": (Code.DUPLICATE_TENSOR, twice_in_parts),
    "two parts with one body tensor": (Code.DUPLICATE_TENSOR, one_body_tensor_for_two_parts),
    "a mask as values": (Code.DUPLICATE_TENSOR, bits_as_values),
    # coverage
    "popcount": (Code.WRONG_SHAPE, popcount),
    "padding bits": (Code.MALFORMED, padding),
    "long mask": (Code.WRONG_SHAPE, long_mask),
    "mask of booleans": (Code.WRONG_DTYPE, mask_of_floats),
    "masked values in a square": (Code.WRONG_SHAPE, masked_values_in_a_square),
    "slice past the end": (Code.WRONG_SHAPE, ranges((1, 4), (0, 1))),
    "slice backwards": (Code.WRONG_SHAPE, ranges((3, 1), (0, 1))),
    "slice of fewer dimensions": (Code.WRONG_SHAPE, ranges((0, 2))),
    "slice of another size": (Code.WRONG_SHAPE, ranges((0, 3), (0, 1))),
    "slice far out": (Code.WRONG_SHAPE, ranges((2**64 - 2, 2**64 - 1), (0, 1))),
    "ten thousand ranges": (Code.WRONG_SHAPE, ranges(*[(0, 1)] * 10_000)),
    "no coverage": (Code.MALFORMED, no_coverage),
    "body without parts": (Code.MALFORMED, no_parts),
    "parts without body": (Code.MALFORMED, no_body),
    # the container
    "garbage json": (Code.MALFORMED, text(b"{]")),
    "json that is a list": (Code.MALFORMED, text(b"[]      ")),
    "json in utf-16": (Code.MALFORMED, text(lambda f: json.dumps(f.tensors).encode("utf-16-le"))),
    "json after a space": (Code.MALFORMED, text(lambda f: b" " + json.dumps(f.tensors).encode())),
    "json with a byte order mark": (
        Code.MALFORMED,
        text(lambda f: b"\xef\xbb\xbf" + json.dumps(f.tensors).encode()),
    ),
    "json that is no utf-8": (Code.MALFORMED, text(b'{"\xff": 0}')),
    "deep json": (Code.MALFORMED, text(deep_json)),
    "metadata that is no text": (
        Code.MALFORMED,
        text(lambda f: json.dumps(f.tensors | {"__metadata__": {"n": 1}}).encode()),
    ),
    "no dtype": (Code.MALFORMED, text(b'{"w": {"shape": [4, 6], "data_offsets": [0, 96]}}')),
    "a number for a tensor": (Code.MALFORMED, text(b'{"w": 1}')),
    "huge json length": (Code.MALFORMED, prefix(2**63)),
    "json length past the end": (Code.MALFORMED, prefix(10_000)),
    "json length of zero": (Code.MALFORMED, prefix(0)),
    "overlapping offsets": (Code.MALFORMED, overlap),
    "a hole": (Code.MALFORMED, huge_gap),
    "bytes after the last tensor": (Code.MALFORMED, trailing),
    "bytes that are not there": (Code.MALFORMED, clipped),
    "misaligned": (Code.MALFORMED, misaligned),
    "negative dimension": (Code.MALFORMED, described("w", shape=[-4, -6])),
    "fractional dimension": (Code.MALFORMED, described("w", shape=[4.0, 6])),
    "boolean dimension": (Code.MALFORMED, described("half", shape=[2, True])),
    "vast dimensions": (Code.MALFORMED, described("w", shape=[2**47] * 32)),
    "negative offset": (Code.MALFORMED, described("count", data_offsets=[-8, 0])),
    "boolean offset": (Code.MALFORMED, described("count", data_offsets=[False, 8])),
    "offsets backwards": (Code.MALFORMED, described("count", data_offsets=[8, 0])),
    "five bytes": (Code.MALFORMED, size_of(5)),
    "nothing but a prefix": (Code.MALFORMED, size_of(8)),
    "short of its json": (Code.MALFORMED, short_of_its_json),
    # length and checksum
    "overlong inside a message": (Code.OVERLONG, overlong_inside),
    "flipped bit": (Code.BAD_CHECKSUM, flipped),
    "wrong checksum": (Code.BAD_CHECKSUM, announced(crc32c=1)),
    # weight and metrics
    "weight of zero": (Code.WEIGHT_OUT_OF_RANGE, weight(0.0)),
    "examples of zero": (Code.WEIGHT_OUT_OF_RANGE, examples(0)),
    "weight below zero": (Code.WEIGHT_OUT_OF_RANGE, weight(-1.0)),
    "weight of nan": (Code.WEIGHT_OUT_OF_RANGE, weight(math.nan)),
    "weight of infinity": (Code.WEIGHT_OUT_OF_RANGE, weight(math.inf)),
    "weight above the cap": (Code.WEIGHT_OUT_OF_RANGE, examples(1001)),
    "weight that is not the examples": (Code.WEIGHT_OUT_OF_RANGE, weight(999.0)),
    "metric of nan": (Code.NOT_FINITE, metric(math.nan)),
    "metric of infinity": (Code.NOT_FINITE, metric(math.inf)),
    "metric that overflows a mean": (Code.MAGNITUDE_TOO_LARGE, metric(1e308)),
    "evaluated on too many": (Code.WEIGHT_OUT_OF_RANGE, evaluated(2**64 - 1)),
    "too many metrics": (Code.MALFORMED, many_metrics),
    "metric with a long name": (Code.MALFORMED, long_metric),
    "metric with an unprintable name": (Code.MALFORMED, reversed_metric),
    # the round
    "another model": (Code.WRONG_MODEL, announced(model_digest="0" * 64)),
    "stale round": (Code.STALE_ROUND, other_round(0)),
    "future round": (Code.FUTURE_ROUND, other_round(2)),
    "last round of all": (Code.FUTURE_ROUND, other_round(2**32 - 1)),
    "unknown run": (Code.UNKNOWN_RUN, other_run("no-such-run")),
    "a run with a line break": (Code.UNKNOWN_RUN, other_run("x\n2026-01-01 INFO all is well")),
    "a run with a very long name": (Code.UNKNOWN_RUN, other_run("\U0001f9f6" * 50_000)),
    "oversize declaration": (Code.TOO_LARGE, announced(size_bytes=2**40)),
    "largest declaration": (Code.TOO_LARGE, announced(size_bytes=2**64 - 1)),
    "giant header": (Code.TOO_LARGE, giant),
    "another's name": (Code.WRONG_IDENTITY, announced(client="alice")),
    "no name": (Code.WRONG_IDENTITY, announced(client="")),
}
