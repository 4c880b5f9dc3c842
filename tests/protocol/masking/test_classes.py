"""The class of a narrow update: its width, and a digest of its slices."""

import hashlib
import struct

import pytest

from fedloom.protocol import masking
from fedloom.protocol.errors import Refusal
from fedloom.protocol.updates.masked_parts import from_parts, to_parts
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Slice

SLICES = {
    ("delta", "w"): Slice(((0, 3), (1, 7))),
    ("delta", "a"): Slice(((0, 2),)),
    ("control", "w"): Slice(((0, 3), (1, 7))),
}


def framed(raw):
    return struct.pack(">I", len(raw)) + raw


def test_a_class_is_its_width_and_the_digest_of_its_slices():
    """As docs/protocol.md says, written once more."""
    number = lambda n: framed(n.to_bytes(8, "big"))  # noqa: E731 - short
    cuts = b"".join(
        framed(
            framed(group)
            + framed(name)
            + b"".join(number(start) + number(stop) for start, stop in ranges)
        )
        for group, name, ranges in [
            (b"control", b"w", [(0, 3), (1, 7)]),
            (b"delta", b"a", [(0, 2)]),
            (b"delta", b"w", [(0, 3), (1, 7)]),
        ]
    )
    hashed = hashlib.sha256(b"fedloom-secagg-1\0slices\0" + cuts).hexdigest()
    assert masking.width_class(0.3, SLICES) == f"0.3:{hashed[:40]}"


def test_the_order_of_slices_does_not_count_and_all_else_does():
    """Each range, tensor, group and width; the longest class fits an advert."""
    other = dict(reversed(SLICES.items()))
    changed = [
        SLICES | {("delta", "a"): Slice(((0, 3),))},
        SLICES | {("delta", "b"): Slice(((0, 2),))},
        {key: each for key, each in SLICES.items() if key[0] == "delta"},
        {},
    ]
    found = {masking.width_class(0.5, each) for each in (SLICES, *changed)}
    assert masking.width_class(0.5, other) == masking.width_class(0.5, SLICES)
    assert len(found | {masking.width_class(0.25, SLICES)}) == 6
    assert len(masking.width_class(2.2250738585072014e-308, SLICES)) <= 64


def test_parts_of_a_header_have_the_slices():
    """By group and name, whatever the order of the slices."""
    parts = to_parts(SLICES)
    assert [(part.group, part.tensor) for part in parts] == sorted(SLICES)
    assert from_parts(parts) == SLICES
    assert from_parts([]) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.reverse(),
        lambda parts: parts.append(parts[-1]),
        lambda parts: setattr(parts[0], "values", "x"),
        lambda parts: parts[0].full.SetInParent(),
        lambda parts: parts[0].ClearField("slice"),
        lambda parts: parts[0].encoding.SetInParent(),
        lambda parts: parts[0].MergeFromString(b"\xfa\x3f\x01x"),
    ],
)
def test_other_parts_are_refused(change):
    """A masked header has nothing of values, and one order."""
    parts = [fleet_pb2.Part.FromString(part.SerializeToString()) for part in to_parts(SLICES)]
    change(parts)
    with pytest.raises(Refusal, match="Expected the slices of a masked update"):
        from_parts(parts)


@pytest.mark.parametrize("widths", [[0.0], [1.5], [float("nan")]])
def test_a_task_with_impossible_widths_has_no_terms(widths):
    """Nothing could be recomputed from it."""
    asked = fleet_pb2.Masking(sum_bits=32, group=8, attempt=1)
    task = fleet_pb2.Task(masking=asked, kind=fleet_pb2.TASK_KIND_TRAIN)
    task.train.widths.extend(widths)
    with pytest.raises(Refusal, match="widths"):
        masking.terms_of(task, "tests")


def test_an_evaluation_has_no_classes():
    """All its members send words alone."""
    asked = fleet_pb2.Masking(sum_bits=32, group=8, attempt=1)
    task = fleet_pb2.Task(masking=asked, kind=fleet_pb2.TASK_KIND_EVALUATE)
    task.train.widths.append(0.5)
    assert masking.terms_of(task, "tests").width("client") is None
