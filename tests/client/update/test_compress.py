"""Compression on a device: sent values and the stored error add up to the update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.client.update.compress import CODEC, ERROR, compress
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.compression import Scheme, scheme
from fedloom.protocol.updates.message import TensorPart
from fedloom.strategies import DELTA, Full, Mask, Slice, TensorSpec

SHAPE = (12, 20)
MANIFEST = Manifest(
    dtypes={"w": "F32", "d": "F64"},
    specs={
        "w": TensorSpec(shape=SHAPE, dtype=np.dtype(np.float32)),
        "d": TensorSpec(shape=SHAPE, dtype=np.dtype(np.float64)),
    },
    size_bytes=0,
)
SCHEMES = [
    scheme({"error_feedback": True, **values})
    for values in (
        {"name": "fp16"},
        {"name": "bf16"},
        {"name": "int8", "block": 16},
        {"name": "int4", "block": 16},
        {"name": "top_k", "fraction": 0.05},
        {"name": "low_rank", "rank": 1},
        {"name": "lossless"},
    )
]


def part(kind, rng, tensor="w"):
    """A random part: a tensor, a box of it, or some of its coordinates."""
    values = rng.normal(size=SHAPE).astype(np.float32)
    less = rng.normal(size=SHAPE).astype(np.float32)
    match kind:
        case "full":
            return TensorPart(DELTA, tensor, Full(), values, less)
        case "slice":
            box = np.s_[1:11, 2:19]
            covered = Slice(((1, 11), (2, 19)))
            return TensorPart(DELTA, tensor, covered, values[box], less[box])
        case "mask":
            bits = rng.random(SHAPE) < 0.4
            return TensorPart(DELTA, tensor, Mask(bits.reshape(-1)), values[bits], less[bits])


def dense(made, values):
    """A part's values in the shape of the tensor; zeros elsewhere."""
    out = np.zeros(SHAPE)
    match made.coverage:
        case Slice(ranges):
            out[tuple(slice(*r) for r in ranges)] = values.reshape(made.values.shape)
        case Mask(bits):
            out[bits.reshape(SHAPE)] = values
        case _:
            out[:] = values.reshape(SHAPE)
    return out


def sent(made):
    if made.coded is not None:
        return made.coded.decode()
    return made.values if made.less is None else made.values - made.less


@pytest.mark.parametrize("how", SCHEMES, ids=lambda how: how.codec.name)
@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["full", "slice", "mask"]), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_sent_values_and_memory_add_up_to_the_updates(how, kinds, seed):
    """For any coverage in any round, up to rounding."""
    rng = np.random.default_rng(seed)
    meant, through, memory = np.zeros(SHAPE), np.zeros(SHAPE), {}
    for number, kind in enumerate(kinds):
        update = part(kind, rng)
        meant += dense(update, update.values.astype(float) - update.less)
        done = compress(how, [update], MANIFEST, number, memory)
        (made,) = done.parts
        assert (made.coded is None) == (kind == "mask")
        through += dense(made, sent(made))
        memory = done.memory
    remembered = memory.get(f"{ERROR}.{DELTA}", {}).get("w", 0)
    np.testing.assert_allclose(through + remembered, meant, rtol=0, atol=2e-5)


def test_the_given_memory_is_not_changed():
    """A repeated task starts from the same memory and gives the same."""
    how = scheme({"name": "low_rank"})
    rng = np.random.default_rng(1)
    first = compress(how, [part("full", rng)], MANIFEST, 1, {})
    kept = {slot: {t: a.copy() for t, a in ts.items()} for slot, ts in first.memory.items()}
    update = part("full", rng)
    one, two = (compress(how, [update], MANIFEST, 2, first.memory) for _ in range(2))
    for slot, tensors in kept.items():
        for tensor, array in tensors.items():
            assert np.array_equal(first.memory[slot][tensor], array)
            assert np.array_equal(one.memory[slot][tensor], two.memory[slot][tensor])
    assert np.array_equal(sent(one.parts[0]), sent(two.parts[0]))
    assert set(kept) == {f"{ERROR}.{DELTA}", f"{CODEC}.{DELTA}.right"}


def test_memory_of_unsent_tensors_is_kept():
    """A client rule's memory is not returned."""
    how = scheme({"name": "top_k", "fraction": 0.1})
    first = compress(how, [part("full", np.random.default_rng(1))], MANIFEST, 1, {})
    after = compress(how, [], MANIFEST, 2, {**first.memory, "control": {"w": np.ones(3)}})
    assert after.parts == []
    assert after.memory.keys() == first.memory.keys()
    error = f"{ERROR}.{DELTA}"
    assert np.array_equal(after.memory[error]["w"], first.memory[error]["w"])


def test_float64_tensors_are_not_encoded():
    """Nor remembered, nor copied."""
    update = part("full", np.random.default_rng(1), "d")
    done = compress(scheme({"name": "top_k", "fraction": 0.1}), [update], MANIFEST, 1, {})
    assert done.parts == [update]
    assert not any(done.memory.values())


def test_without_error_feedback_there_is_no_memory():
    how = Scheme(codec=scheme({"name": "int8"}).codec, error_feedback=False)
    done = compress(how, [part("full", np.random.default_rng(1))], MANIFEST, 1, {})
    assert not any(done.memory.values())
    assert done.parts[0].coded is not None
