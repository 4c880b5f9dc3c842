"""Every codec: decoded values, checks of the receiver, and bounded, unbiased errors."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.codecs import CODECS, ArrayInfo, Sequential, codec, decode, held, stream
from fedloom.protocol.codecs.base import WORK
from fedloom.protocol.codecs.draws import Words64
from fedloom.protocol.codecs.low_rank import orthonormal
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.tensors.container import dtype_name

METHODS = [
    codec("fp16"),
    codec("bf16"),
    codec("int8"),
    codec("int8", {"block": 16}),
    codec("int4", {"block": 32}),
    codec("top_k", {"fraction": 0.05}),
    codec("top_k", {"fraction": 0.5}),
    codec("random_k", {"fraction": 0.1}),
    codec("random_k", {"fraction": 0.1, "scaled": True}),
    codec("low_rank", {"rank": 2}),
    codec("lossless"),
]
BY_NAME = pytest.mark.parametrize("method", METHODS, ids=str)


def test_every_codec_is_in_these_tests():
    """Every registered codec is listed here."""
    assert {method.name for method in METHODS} == set(CODECS)


def made(shape, seed, scale=0.01):
    return np.random.default_rng(seed).normal(0, scale, math.prod(shape)).astype(np.float32)


def stored(encoded, method):
    """What a container declares about the arrays."""
    dtype = {"bf16": "BF16"}.get(method.name)
    return {r: ArrayInfo(dtype or dtype_name(a.dtype), a.shape) for r, a in encoded.arrays.items()}


@pytest.mark.long
@BY_NAME
@given(shape=st.lists(st.integers(1, 40), max_size=3).map(tuple), seed=st.integers(0, 9))
def test_the_layout_is_that_of_the_encoding(method, shape, seed):
    """Exactly, but for the gain of `lossless` and the width of the gaps of `top_k`."""
    if not method.applies(shape):
        return
    encoded = method.encode(made(shape, seed), shape, seed, {})
    found, planned = stored(encoded, method), method.layout(shape)
    assert tuple(planned) in method.forms
    if method.name in {"lossless", "top_k"}:
        assert method.size_bytes(shape) == pytest.approx(encoded.size_bytes, rel=0.35, abs=32)
        return
    assert list(found.items()) == list(planned.items())
    assert method.size_bytes(shape) == encoded.size_bytes


def inspected(method, shape, arrays, declared, step=1 << 20):
    """All values that an inspector yields, for arrays in chunks of `step` items."""
    method.check(shape, declared)
    inspector = method.inspector(shape, declared)
    seen = [np.zeros(0, np.float32)]
    for role, array in arrays.items():
        flat = array.reshape(-1)
        for start in range(0, flat.size, step):
            seen += [v.copy() for v in inspector.feed(role, flat[start : start + step])]
    seen += [v.copy() for v in inspector.finish()]
    return np.concatenate(seen)


def refusal(method, shape, arrays, declared=None):
    with pytest.raises(Refusal) as caught:
        inspected(method, shape, arrays, declared or of_arrays(arrays))
    return caught.value.code


def of_arrays(arrays):
    return {role: ArrayInfo(dtype_name(a.dtype), a.shape) for role, a in arrays.items()}


shapes = st.tuples(st.integers(1, 40), st.integers(1, 60))


@pytest.mark.long
@BY_NAME
@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=st.integers(0, 2**64 - 1), step=st.integers(1, 700), data=st.data())
def test_inspected_values_are_the_decoded_ones_in_any_ranges(method, shape, seed, step, data):
    """For all chunks and ranges, in order and at random."""
    if not method.applies(shape):
        return
    values = made(shape, seed % 1000)
    encoded = method.encode(values, shape, seed, {})
    assert tuple(encoded.arrays) in method.forms
    whole = decode(method, encoded, shape, seed)
    seen = inspected(method, shape, encoded.arrays, stored(encoded, method), step)
    assert np.array_equal(np.sort(seen[seen != 0]), np.sort(whole[whole != 0]))
    cuts = data.draw(st.lists(st.integers(0, whole.size), max_size=6).map(sorted))
    edges = [0, *cuts, whole.size]
    read = Sequential(method.decoder(shape, seed, held(encoded.arrays)), whole.size)
    again = [read(b - a).copy() for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(again), whole)
    decoder = method.decoder(shape, seed, held(encoded.arrays))
    for a, b in reversed(list(pairwise(edges))):
        assert np.array_equal(decoder.block(a, b), whole[a:b])


@BY_NAME
def test_the_division_into_blocks_does_not_change_values(method):
    """For encoding and decoding of tensors longer than a block."""
    shape = (3, WORK - 7)
    values = made(shape, 1)
    encoded = method.encode(values, shape, 9, {})
    whole = decode(method, encoded, shape, 9)
    seen = inspected(method, shape, encoded.arrays, stored(encoded, method), 4099)
    assert np.array_equal(np.sort(seen[seen != 0]), np.sort(whole[whole != 0]))
    read = Sequential(method.decoder(shape, 9, held(encoded.arrays)), whole.size)
    again = np.concatenate([read(n).copy() for n in (WORK + 1, 5, whole.size - WORK - 6)])
    assert np.array_equal(again, whole)


@BY_NAME
def test_encoding_again_gives_the_same_bytes(method):
    """Randomness comes from the seed alone."""
    shape = (30, 50)
    first, second = (method.encode(made(shape, 2), shape, 5, {}) for _ in range(2))
    for role, array in first.arrays.items():
        assert array.tobytes() == second.arrays[role].tobytes()


@BY_NAME
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_stay_visible(method, bad):
    """A non-finite value is yielded as non-finite for the check, or is not sent."""
    shape = (20, 40)
    values = made(shape, 3)
    values[417] = bad
    encoded = method.encode(values, shape, 5, {})
    whole = decode(method, encoded, shape, 5)
    if method.name == "random_k":
        assert np.isfinite(whole).all() == (whole[417] == 0)
    else:
        assert not np.isfinite(whole).all()


@pytest.mark.parametrize("name", ["int8", "int4"])
@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 3000),
    seed=st.integers(0, 2**32),
    exponent=st.integers(-80, 60),
    spread=st.booleans(),
)
def test_quantisers_err_by_less_than_a_scale(name, size, seed, exponent, spread):
    """Every decoded value is within one scale of its block's largest magnitude over the levels."""
    method = codec(name, {"block": 128})
    values = made((size,), seed, 1.0) * np.float32(2.0**exponent)
    if spread:
        values *= np.exp2(np.arange(size) % 40).astype(np.float32)
    decoded = decode(method, method.encode(values, (size,), seed, {}), (size,), seed)
    rows = np.concatenate([values, np.zeros(-size % 128, np.float32)]).reshape(-1, 128)
    scales = np.abs(rows).max(axis=1).astype(np.float64) / method.levels * (1 + 2.0**-18)
    error = np.abs(decoded.astype(np.float64) - values)
    assert (error <= np.repeat(scales, 128)[:size]).all()
    assert (decoded[values == 0] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ["int8", "int4", "bf16", "random_k"])
def test_expectations_are_the_values(name):
    """The mean of 4000 encodings is within 5 standard errors of the values."""
    method = codec(name, {"fraction": 0.25, "scaled": True} if name == "random_k" else {})
    values = made((64,), 4)
    values[:4] = [0.0, 1e-3, -1e-3, 0.02]
    total, squares, count = np.zeros(64), np.zeros(64), 4000
    for seed in range(count):
        key = stream(seed, "delta", "w")
        decoded = decode(method, method.encode(values, (64,), key, {}), (64,), key).astype(float)
        total += decoded
        squares += decoded**2
    mean = total / count
    error = np.sqrt(np.maximum(squares / count - mean**2, 0) / count)
    assert (np.abs(mean - values) <= 5 * error + 1e-7).all()
    assert error.max() > 0


@pytest.mark.parametrize("method", [m for m in METHODS if m.contracts], ids=str)
def test_error_feedback_loses_nothing(method):
    """The decoded values of all rounds plus the memory equal the input."""
    shape = (24, 40)
    meant, sent, memory = np.zeros(960), np.zeros(960), np.zeros(960, np.float32)
    kept = {}
    for number in range(30):
        update = made(shape, number)
        meant += update
        values = update + memory
        encoded = method.encode(values, shape, number, kept)
        kept = encoded.memory
        decoded = decode(method, encoded, shape, number)
        sent += decoded
        memory = values - decoded
    assert np.abs(sent + memory - meant).max() < 1e-6


def test_int8_agrees_with_arithmetic_in_python():
    """Codes and scales are those of the definition, computed value by value with integers."""
    values = made((100,), 5)
    encoded = codec("int8").encode(values, (100,), 11, {})
    (scale,), codes = encoded.arrays["scales"], encoded.arrays["codes"]
    padded = [*values.tolist(), *[0.0] * 924]
    words = splitmix(11, 64)
    flips = (0, 0xFFFF, 0x8000, 0x7FFF)
    for place in range(100):
        quarter, index = divmod(place, 256)
        noise = (words[index // 4] >> (16 * (index % 4)) & 0xFFFF) ^ flips[quarter]
        fixed = math.trunc(float(np.float32(padded[place]) * (np.float32(65536) / scale)))
        assert codes[place] == (fixed + noise) >> 16
    assert scale == pytest.approx(np.abs(values).max() / 127, rel=1e-5)


def splitmix(seed, count):
    """SplitMix64 in Python integers."""
    mask, out = 2**64 - 1, []
    for number in range(1, count + 1):
        z = (seed + number * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_random_numbers_are_splitmix64():
    """The published outputs of seed 1234567, and Python's arithmetic for other seeds."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert Words64(1234567, 4).at(0, 4).tolist() == known == splitmix(1234567, 4)
    assert Words64(2**64 - 1, 40).at(7, 9).tolist() == splitmix(2**64 - 1, 16)[7:]


def test_int4_packs_two_values_in_a_byte():
    """A block's first half is in the low half bytes, its second in the high; padding is zero."""
    values = np.linspace(-1, 1, 40).astype(np.float32)
    method = codec("int4", {"block": 32})
    encoded = method.encode(values, (40,), 3, {})
    codes, scales = encoded.arrays["codes"], encoded.arrays["scales"]
    assert codes.shape == (32,)
    low = [(int(c) & 15) - (16 if int(c) & 8 else 0) for c in codes]
    high = [(int(c) >> 4) - (16 if int(c) & 128 else 0) for c in codes]
    whole = low[:16] + high[:16] + low[16:] + high[16:]
    assert whole[40:] == [0] * 24
    wanted = np.array(whole[:40]) * np.repeat(scales, 32)[:40].astype(float)
    assert decode(method, encoded, (40,), 3) == pytest.approx(wanted, rel=1e-6)


def test_fp16_is_numpys_and_bf16_is_one_of_its_neighbours():
    """fp16 rounds to nearest; bf16 gives the value below or above, and exact values exactly."""
    values = made((1000,), 6)
    got = decode(codec("fp16"), codec("fp16").encode(values, (1000,), 1, {}), (1000,), 1)
    assert np.array_equal(got, values.astype(np.float16).astype(np.float32))
    large = np.array([1e9, -7e4], np.float32)
    got = decode(codec("fp16"), codec("fp16").encode(large, (2,), 1, {}), (2,), 1)
    assert got.tolist() == [65504.0, -65504.0]
    bits = values.view(np.uint32)
    below = (bits & 0xFFFF0000).view(np.float32)
    above = ((bits & 0xFFFF0000) + 0x10000).view(np.float32)
    got = decode(codec("bf16"), codec("bf16").encode(values, (1000,), 1, {}), (1000,), 1)
    assert ((got == below) | (got == above)).all()
    exact = below.copy()
    got = decode(codec("bf16"), codec("bf16").encode(exact, (1000,), 1, {}), (1000,), 1)
    assert np.array_equal(got, exact)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0]), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
)
def test_top_k_keeps_the_largest_and_the_first_of_equals(values, fraction):
    """Compared with a stable sort by falling magnitude."""
    array = np.array(values, np.float32)
    method = codec("top_k", {"fraction": fraction})
    decoded = decode(method, method.encode(array, array.shape, 0, {}), array.shape, 0)
    chosen = np.argsort(-np.abs(array), kind="stable")[: math.ceil(fraction * array.size)]
    wanted = np.zeros_like(array)
    wanted[chosen] = array[chosen]
    assert np.array_equal(decoded, wanted)


@pytest.mark.parametrize(("fraction", "form"), [(0.001, "U32"), (0.01, "U16"), (0.4, "bits")])
def test_top_k_encodes_places_in_the_fewest_bytes(fraction, form):
    """Gaps are as wide as the widest needs; bits are sent if they are shorter."""
    size = 200_000
    values = np.linspace(2, 1, size).astype(np.float32) if form == "U32" else made((size,), 7)
    if form == "U32":
        values[-1] = 3.0
    method = codec("top_k", {"fraction": fraction})
    arrays = method.encode(values, (size,), 0, {}).arrays
    assert list(arrays) == ["values", "bits" if form == "bits" else "gaps"]
    assert dtype_name(list(arrays.values())[1].dtype) == ("U8" if form == "bits" else form)


def test_random_k_draws_the_documented_places():
    """One place of each run, by the upper half of a SplitMix64 output, times the run's length."""
    values = np.arange(1, 104, dtype=np.float32)
    method = codec("random_k", {"fraction": 0.1, "scaled": True})
    decoded = decode(method, method.encode(values, (103,), 21, {}), (103,), 21)
    wanted = np.zeros(103)
    for run, word in enumerate(splitmix(21, 11)):
        first, after = run * 103 // 11, (run + 1) * 103 // 11
        place = first + ((word >> 32) * (after - first) >> 32)
        wanted[place] = values[place] * (after - first)
    assert np.array_equal(decoded, wanted)


def test_low_rank_is_exact_for_matrices_of_that_rank_and_improves_when_warm():
    """A matrix of rank 2 is exact up to rounding; a full one improves with each warm start."""
    rng = np.random.default_rng(8)
    low = (rng.normal(size=(30, 2)) @ rng.normal(size=(2, 50))).astype(np.float32)
    method = codec("low_rank", {"rank": 2})
    got = decode(method, method.encode(low.reshape(-1), (30, 50), 1, {}), (30, 50), 1)
    assert np.abs(got - low.reshape(-1)).max() < 1e-4
    full = (rng.normal(size=(30, 30)) * 0.8 ** np.arange(30) @ rng.normal(size=(30, 50))).astype(
        "f4"
    )
    errors, memory = [], {}
    for _ in range(12):
        encoded = method.encode(full.reshape(-1), (30, 50), 1, memory)
        memory = encoded.memory
        errors.append(np.linalg.norm(decode(method, encoded, (30, 50), 1) - full.reshape(-1)))
    best = np.sqrt((np.linalg.svd(full.astype(float), compute_uv=False)[2:] ** 2).sum())
    assert errors[-1] < errors[0]
    assert best <= errors[-1] + 1e-4 < 1.05 * best


def test_dependent_columns_become_zeros():
    """Orthonormal columns are orthonormal up to rounding; a dependent one is dropped."""
    matrix = np.random.default_rng(9).normal(size=(20, 3))
    matrix[:, 1] = 2 * matrix[:, 0]
    got = orthonormal(matrix)
    assert got.T @ got == pytest.approx(np.diag([1.0, 0.0, 1.0]), abs=1e-12)


def test_lossless_gives_the_same_bits_and_compresses_if_possible():
    """Noise is stored, zeros shrink, and every bit is restored."""
    noise = np.frombuffer(np.random.default_rng(1).bytes(400_000), np.float32)
    method = codec("lossless")
    for values in (noise, np.zeros(100_000, np.float32), made((100_000,), 1)):
        encoded = method.encode(values, (100_000,), 0, {})
        whole = decode(method, encoded, (100_000,), 0)
        assert whole.tobytes() == values.tobytes()
        assert encoded.size_bytes <= values.nbytes + 8
    assert method.encode(np.zeros(100_000, np.float32), (100_000,), 0, {}).size_bytes < 4000


@pytest.mark.parametrize("name", list(CODECS))
def test_settings_rebuild_the_codec(name):
    """The sent settings build the same codec again."""
    given = {"fraction": 0.25} if name.endswith("_k") else {}
    method = codec(name, given)
    assert codec(name, method.settings()) == method


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("int9", {}, "Did you mean 'int8'"),
        ("top_k", {}, "setting fraction"),
        ("top_k", {"fraction": 1.0}, "below 1"),
        ("top_k", {"fraction": 0}, "> 0"),
        ("int8", {"block": 1000}, "power of two"),
        ("int8", {"blocks": 1024}, "Did you mean 'block'"),
        ("low_rank", {"rank": 0}, ">= 1"),
        ("lossless", {"level": 10}, "1 to 9"),
    ],
)
def test_settings_out_of_range_are_refused(name, given, said):
    """The message says what was expected."""
    with pytest.raises((ValueError, TypeError), match=said):
        codec(name, given)


# ---- invalid arrays ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "code"),
    [(np.nan, Code.NOT_FINITE), (np.inf, Code.NOT_FINITE), (-1.0, Code.MALFORMED)],
)
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_scales_must_be_finite_and_not_negative(name, scale, code):
    """Checked before decoding."""
    method = codec(name)
    arrays = dict(method.encode(made((3000,), 1), (3000,), 1, {}).arrays)
    arrays["scales"] = arrays["scales"].copy()
    arrays["scales"][1] = scale
    assert refusal(method, (3000,), arrays) is code


def test_the_padding_of_an_int4_block_must_be_zeros():
    """In the low and the high half, in any chunks."""
    method = codec("int4", {"block": 32})
    arrays = dict(method.encode(np.ones(40, np.float32), (40,), 1, {}).arrays)
    for place, value in ((24, 1), (31, 15), (16, 16), (31, 128)):
        bad = arrays | {"codes": arrays["codes"].copy()}
        bad["codes"][place] |= value
        for step in (1, 5, 17, 100):
            with pytest.raises(Refusal, match="zeros after"):
                inspected(method, (40,), bad, of_arrays(bad), step)


@pytest.mark.parametrize(
    "gaps",
    [[1, 0, 1], [1, 50, 50], [101, 1, 1], [2**32 - 1] * 3],
    ids=["twice", "past-the-end", "first-past-the-end", "overflow"],
)
def test_places_must_rise_within_the_tensor(gaps):
    """Duplicate, falling and outlying places are gaps that are zero or too long."""
    method = codec("top_k", {"fraction": 0.03})
    arrays = {"values": np.ones(3, np.float32), "gaps": np.array(gaps, np.uint32)}
    assert refusal(method, (100,), arrays) is Code.MALFORMED


def test_bits_must_be_as_many_as_values():
    """Too many, too few, and one past the last value."""
    method = codec("top_k", {"fraction": 0.5})
    for bits in (b"\xff\x0f", b"\x01\x00", b"\x1f\x10"):
        arrays = {"values": np.ones(5, np.float32), "bits": np.frombuffer(bits, np.uint8)}
        assert refusal(method, (10,), arrays) is Code.MALFORMED


@BY_NAME
def test_sizes_and_types_must_follow_from_the_shape(method):
    """One item more or less, or another dtype, is refused by the declaration alone."""
    shape = (20, 40)
    declared = stored(method.encode(made(shape, 1), shape, 1, {}), method)
    for role, array in declared.items():
        if (method.name, role) == ("lossless", "data"):
            continue
        wrong = (array.shape[0] + 1, *array.shape[1:])
        with pytest.raises(Refusal) as caught:
            method.check(shape, declared | {role: ArrayInfo(array.dtype, wrong)})
        assert caught.value.code is Code.WRONG_SHAPE
        with pytest.raises(Refusal) as caught:
            method.check(shape, declared | {role: ArrayInfo("F64", array.shape)})
        assert caught.value.code is Code.WRONG_DTYPE


@pytest.mark.long
def test_nothing_inflates_past_its_size():
    """Bombs, short blocks, extra data and false lengths are refused; none is inflated whole."""
    import zlib

    method = codec("lossless")
    bomb = zlib.compress(bytes(100 << 20), 9)
    short = zlib.compress(bytes(100))
    good = zlib.compress(bytes(4000))
    for data, lengths in (
        (bomb[:3999], None),
        (short, None),
        (good + b"x", None),
        (good[:-1], None),
        (b"abc", None),
        (good, len(good) - 1),
        (good, len(good) + 1),
        (good, 0),
    ):
        arrays = {
            "lengths": np.array([len(data) if lengths is None else lengths], np.uint32),
            "data": np.frombuffer(data, np.uint8),
        }
        assert refusal(method, (1000,), arrays) is Code.MALFORMED
    arrays = {"lengths": np.array([4001], "u4"), "data": np.zeros(4001, np.uint8)}
    assert refusal(method, (1000,), arrays) is Code.MALFORMED
