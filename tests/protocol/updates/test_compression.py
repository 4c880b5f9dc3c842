"""Encoded updates byte by byte: written updates are accepted and fold to their decoded values."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom.protocol.codecs import codec
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES, build_header, parse_header
from fedloom.protocol.updates.addends import UpdateFile, add_update, add_updates
from fedloom.protocol.updates.body import BodyChecker
from fedloom.protocol.updates.compression import (
    Scheme,
    codec_of,
    describe,
    encode,
    scheme,
    scheme_of,
)
from fedloom.protocol.updates.header import check_header
from fedloom.protocol.updates.message import Limits, TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.strategies import DELTA, Full, Mask, Partial, Slice, TensorSpec, exponent, weight_units

SPECS = {"w": ("F32", (24, 40)), "v": ("BF16", (7, 30)), "b": ("F32", (90,)), "d": ("F64", (4, 4))}
MANIFEST = Manifest(
    dtypes={name: dtype for name, (dtype, _) in SPECS.items()},
    specs={
        name: TensorSpec(shape=shape, dtype=np.dtype(np.float64 if dtype == "F64" else np.float32))
        for name, (dtype, shape) in SPECS.items()
    },
    size_bytes=0,
)
CODECS = {
    "fp16": {},
    "bf16": {},
    "int8": {"block": 64},
    "int4": {"block": 64},
    "top_k": {"fraction": 0.05},
    "random_k": {"fraction": 0.05},
    "low_rank": {"rank": 2},
    "lossless": {},
}
METHODS = [codec(name, given) for name, given in CODECS.items()]
METHODS.append(codec("top_k", {"fraction": 0.4}))
BY_NAME = pytest.mark.parametrize("method", METHODS, ids=str)
S = exponent(100.0, 1e6)


def limits(method, max_abs=100.0, max_norm=None):
    return Limits(
        max_abs=max_abs,
        max_norm=max_norm,
        max_weight=1000.0,
        weighting="client",
        groups=(DELTA,),
        max_bytes=1 << 20,
        codec=method,
    )


def values_of(shape, seed):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def coded(method, name, seed, coverage=None):
    """An encoded part of a tensor, or of a box of it."""
    shape = SPECS[name][1] if coverage is None else coverage.shape
    values = values_of(shape, seed)
    made = encode(method, values.reshape(-1), shape, task_seed=seed, key=(DELTA, name))
    return TensorPart(DELTA, name, coverage or Full(), values, coded=made)


def announce(path, made, method):
    described, size, checksum = write_body(path, made, MANIFEST)
    return fleet_pb2.UpdateHeader(
        weight=3.0, parts=described, size_bytes=size, crc32c=checksum, compression=describe(method)
    )


def verdict(header, body, accepted, cuts=()):
    """The refusal code of a body in these chunks, or its statistics."""
    try:
        planned = check_header(header, accepted, MANIFEST)
        checking = BodyChecker(header, planned, accepted, MANIFEST)
        for start, stop in pairwise([0, *sorted(cuts), len(body)]):
            checking.feed(body[start:stop])
        return checking.finish()
    except Refusal as refusal:
        return refusal.code


def empty():
    return Partial({(DELTA, name): spec for name, spec in MANIFEST.specs.items()}, S)


@pytest.mark.long
@BY_NAME
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=15,
)
@given(seed=st.integers(0, 1000), data=st.data())
def test_encoded_updates_check_in_any_chunks_and_fold_to_their_values(tmp_path, method, seed, data):
    """Whole tensors and boxes, beside unencoded ones; the norm is of the decoded values."""
    box = Slice(((2, 22), (3, 33)))
    made = [
        coded(method, "w", seed, data.draw(st.sampled_from([None, box]))),
        coded(method, "v", seed),
        TensorPart(DELTA, "b", Mask(np.arange(90) % 3 == 0), values_of((30,), seed)),
        TensorPart(DELTA, "d", Full(), np.ones((4, 4))),
    ]
    header = announce(tmp_path / "body", made, method)
    body = (tmp_path / "body").read_bytes()
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    through, direct = empty(), empty()
    add_update(through, tmp_path / "body", header)
    flat = []
    for part in made:
        values = part.values if part.coded is None else part.coded.decode()
        flat.append(values.reshape(-1).astype(np.float64))
        direct.add_array((DELTA, part.tensor), part.coverage, weight_units(3.0), values)
    direct.count = 1
    assert through == direct
    stats = verdict(header, body, limits(method, max_norm=1e4), cuts)
    assert stats.norm == pytest.approx(np.linalg.norm(np.concatenate(flat)), rel=1e-6)
    assert stats.max_abs == np.abs(np.concatenate(flat)).max()


@BY_NAME
def test_updates_of_several_forms_are_added_together(tmp_path, method):
    """Encoded and not, whole and a box: the bits of one by one."""
    box = Slice(((2, 22), (3, 33)))
    updates, one, together = [], empty(), empty()
    for seed, (w, encoded) in enumerate([(None, True), (box, True), (None, False), (None, True)]):
        shape = SPECS["w"][1]
        plain = TensorPart(DELTA, "w", Full(), values_of(shape, seed))
        made = [coded(method, "w", seed, w) if encoded else plain, coded(method, "v", seed)]
        header = announce(tmp_path / f"{seed}", made, method)
        updates.append(UpdateFile(tmp_path / f"{seed}", header, 1.0 / (1 + seed)))
        add_update(one, *updates[-1])
    add_updates(together, updates)
    assert together == one
    assert together.count == 4


@BY_NAME
def test_bounds_are_of_the_decoded_values(tmp_path, method):
    """One value, or the norm, above the run's bound: refused on arrival or at the end."""
    made = [coded(method, "w", 1)]
    header = announce(tmp_path / "body", made, method)
    body = (tmp_path / "body").read_bytes()
    decoded = made[0].coded.decode().astype(np.float64)
    largest, norm = np.abs(decoded).max(), np.linalg.norm(decoded)
    assert not isinstance(verdict(header, body, limits(method, largest, norm * 1.000001)), Code)
    low = limits(method, largest * 0.999)
    assert verdict(header, body, low) is Code.MAGNITUDE_TOO_LARGE
    low = limits(method, largest, norm * 0.999)
    assert verdict(header, body, low) is Code.NORM_TOO_LARGE


@BY_NAME
def test_non_finite_values_are_refused(tmp_path, method):
    values = values_of((24, 40), 1).reshape(-1)
    values[:] = np.nan
    made = encode(method, values, (24, 40), task_seed=1, key=(DELTA, "w"))
    part = TensorPart(DELTA, "w", Full(), values, coded=made)
    header = announce(tmp_path / "body", [part], method)
    body = (tmp_path / "body").read_bytes()
    assert verdict(header, body, limits(method)) is Code.NOT_FINITE


TYPED = {
    Code.MALFORMED,
    Code.UNKNOWN_TENSOR,
    Code.DUPLICATE_TENSOR,
    Code.WRONG_SHAPE,
    Code.WRONG_DTYPE,
    Code.NOT_FINITE,
    Code.MAGNITUDE_TOO_LARGE,
}


@BY_NAME
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
@given(data=st.data())
def test_damage_under_a_fitting_checksum_is_refused_by_type_or_folds(tmp_path, method, data):
    """A consistent forgery gets a typed refusal, or is another valid update."""
    header = announce(tmp_path / "body", [coded(method, "w", 1), coded(method, "v", 2)], method)
    body = bytearray((tmp_path / "body").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    header.crc32c = crc32c(bytes(body))
    answer = verdict(header, bytes(body), limits(method))
    if isinstance(answer, Code):
        assert answer in TYPED
    else:
        (tmp_path / "body").write_bytes(body)
        add_update(empty(), tmp_path / "body", header)


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.builds(
        fleet_pb2.UpdateHeader,
        size_bytes=st.just(100),
        weight=st.just(1.0),
        compression=st.builds(
            fleet_pb2.Compression,
            codec=st.sampled_from(["", "int8", "top_k"]) | st.text(max_size=3),
            settings=st.just({"block": 64.0})
            | st.dictionaries(st.sampled_from(["block", "x"]), st.floats(), max_size=2),
        ),
        parts=st.lists(
            st.builds(
                fleet_pb2.Part,
                group=st.just(DELTA),
                tensor=st.sampled_from([*SPECS, "x"]),
                values=st.text(max_size=2),
                full=st.just(fleet_pb2.Full()),
                encoding=st.none()
                | st.builds(
                    fleet_pb2.Encoding,
                    arrays=st.just(["scales", "codes"])
                    | st.lists(
                        st.sampled_from(["scales", "codes", "values"]) | st.text(), max_size=3
                    ),
                    seed=st.integers(0, 2**64 - 1),
                ),
            ),
            max_size=3,
        ),
    )
)
def test_arbitrary_encodings_are_refused_by_type(header):
    """For any protobuf content the result is a plan or a refusal."""
    method = codec("int8", {"block": 64})
    try:
        planned = check_header(header, limits(method), MANIFEST)
    except Refusal as refusal:
        str(refusal).encode()
    else:
        assert all(p.code is None or p.code.roles == ("scales", "codes") for p in planned)


def changed(header, **fields):
    other = fleet_pb2.UpdateHeader()
    other.CopyFrom(header)
    for name, value in fields.items():
        getattr(other, name).CopyFrom(value)
    return other


def test_only_the_run_s_codec_and_settings_are_accepted(tmp_path):
    """Not another codec or setting, nor a codec if the run has none."""
    method = codec("int8", {"block": 64})
    header = announce(tmp_path / "body", [coded(method, "w", 1)], method)
    body = (tmp_path / "body").read_bytes()
    assert not isinstance(verdict(header, body, limits(method)), Code)
    for other in (None, codec("int8"), codec("int4"), codec("fp16")):
        assert verdict(header, body, limits(other)) is Code.WRONG_CODEC
    more = changed(header)
    more.compression.settings["level"] = 1.0
    assert verdict(more, body, limits(method)) is Code.WRONG_CODEC
    without = changed(header)
    without.ClearField("compression")
    assert verdict(without, body, limits(method)) is Code.MALFORMED


def test_updates_that_are_not_encoded_are_accepted(tmp_path):
    """Unencoded values lose nothing, with any codec of the run."""
    made = [TensorPart(DELTA, "w", Full(), values_of((24, 40), 1))]
    header = announce(tmp_path / "body", made, None)
    stats = verdict(header, (tmp_path / "body").read_bytes(), limits(codec("int8")))
    assert not isinstance(stats, Code)


def test_masks_wide_tensors_and_small_ones_are_not_encoded(tmp_path):
    """Such a part with an encoding is refused by its header alone."""
    method = codec("int8", {"block": 64})
    header = announce(tmp_path / "body", [coded(method, "w", 1)], method)
    masked = changed(header)
    masked.parts[0].mask.bits = "bits"
    assert verdict(masked, b"", limits(method)) is Code.MALFORMED
    wide = changed(header)
    wide.parts[0].tensor = "d"
    assert verdict(wide, b"", limits(method)) is Code.WRONG_DTYPE
    small = changed(header)
    small.parts[0].slice.ranges.extend([fleet_pb2.Range(stop=1), fleet_pb2.Range(stop=1)])
    assert verdict(small, b"", limits(method)) is Code.MALFORMED
    low = codec("low_rank")
    vector = announce(tmp_path / "body", [coded(low, "w", 1)], low)
    vector.parts[0].tensor = "b"
    assert verdict(vector, b"", limits(low)) is Code.MALFORMED


def rearranged(body, order):
    """The same tensors in another order."""
    length = int.from_bytes(body[:8], "little")
    layout = parse_header(body[8 : 8 + length])
    data, described, position = b"", {}, 0
    for name in order:
        info = layout.tensors[name]
        raw = body[layout.data_start + info.start : layout.data_start + info.stop]
        described[name] = {
            "dtype": info.dtype,
            "shape": list(info.shape),
            "data_offsets": [position, position + len(raw)],
        }
        position += len(raw)
        data += raw
    text = json.dumps(described).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_scales_come_before_their_codes(tmp_path):
    """The other order would need memory for the codes; it is refused."""
    method = codec("int8", {"block": 64})
    header = announce(tmp_path / "body", [coded(method, "w", 1)], method)
    body = rearranged((tmp_path / "body").read_bytes(), ["0.codes", "0.scales"])
    header.size_bytes, header.crc32c = len(body), crc32c(body)
    assert verdict(header, body, limits(method)) is Code.MALFORMED


@pytest.mark.parametrize("role", ["scales", "codes"])
def test_arrays_must_match_the_announced_ones(tmp_path, role):
    """A missing, extra or renamed array is refused before its bytes arrive."""
    method = codec("int8", {"block": 64})
    header = announce(tmp_path / "body", [coded(method, "w", 1)], method)
    body = (tmp_path / "body").read_bytes()
    body = body.replace(f'"0.{role}"'.encode(), f'"1.{role}"'.encode())
    header.crc32c = crc32c(body)
    assert verdict(header, body, limits(method)) is Code.UNKNOWN_TENSOR


def test_names_of_arrays_are_used_once(tmp_path):
    method = codec("int8", {"block": 64})
    made = [coded(method, "w", 1), TensorPart(DELTA, "d", Full(), np.ones((4, 4)))]
    header = announce(tmp_path / "body", made, method)
    header.parts[1].values = "0.codes"
    body = (tmp_path / "body").read_bytes()
    assert verdict(header, body, limits(method)) is Code.DUPLICATE_TENSOR


@BY_NAME
def test_bodies_have_the_compressed_size_of_the_codec(tmp_path, method):
    """Only the header's JSON is added."""
    part = coded(method, "w", 1)
    announce(tmp_path / "body", [part], method)
    size = (tmp_path / "body").stat().st_size
    entries = [entry for entry, _ in part.coded.entries("0")]
    assert size == part.coded.encoded.size_bytes + len(build_header(entries)[0])
    assert all(DTYPES[entry.dtype].itemsize for entry in entries)


# ---- schemes -------------------------------------------------------------------------------------


def test_schemes_survive_the_wire():
    for values in (
        {"name": "int8", "block": 256},
        {"name": "top_k", "fraction": 0.01, "error_feedback": False},
        {"name": "random_k", "fraction": 0.5, "scaled": True},
        {"name": "low_rank"},
    ):
        made = scheme(values)
        assert scheme_of(describe(made.codec, error_feedback=made.error_feedback)) == made
    assert scheme({"name": "none"}) is None
    assert codec_of(fleet_pb2.Compression()) is None


def test_error_feedback_is_on_for_biased_codecs():
    """top_k and low_rank; where a strategy adds up updates, all that lose anything."""
    for name, chosen in {"top_k": {"fraction": 0.1}, "low_rank": {}}.items():
        assert scheme({"name": name, **chosen}).error_feedback
    for name in ("fp16", "bf16", "int8", "int4"):
        assert not scheme({"name": name}).error_feedback
        assert scheme({"name": name}, sums=True).error_feedback
    for sums in (False, True):
        assert not scheme({"name": "lossless"}, sums=sums).error_feedback
        assert not scheme({"name": "random_k", "fraction": 0.1}, sums=sums).error_feedback


@pytest.mark.parametrize("scaled", [True, False])
def test_error_feedback_with_random_k_is_refused(scaled):
    """What waits would overshoot, or grow; the message names both settings."""
    with pytest.raises(ValueError, match=r"error_feedback.*random_k"):
        Scheme(codec=codec("random_k", {"fraction": 0.1, "scaled": scaled}), error_feedback=True)


@pytest.mark.parametrize(
    "values",
    [
        {"name": 3},
        {},
        {"name": "none", "block": 3},
        {"name": "int8", "error_feedback": 1},
        {"name": "int8", "block": "x"},
    ],
)
def test_bad_settings_are_refused(values):
    with pytest.raises((TypeError, ValueError), match="Expected"):
        scheme(values)


def test_infinity_is_refused_as_a_setting():
    with pytest.raises(TypeError):
        codec_of(fleet_pb2.Compression(codec="int8", settings={"block": math.inf}))
    assert replace(codec("int8"), block=64) == codec("int8", {"block": 64.0})


# ---- single updates ------------------------------------------------------------------------------


@BY_NAME
def test_rules_that_read_each_update_get_decoded_values(tmp_path, method):
    """Block by block, whole tensors and boxes, with any memory budget."""
    box, stored, wanted = Slice(((2, 22), (3, 33))), [], []
    for number, coverage in enumerate((None, box, None)):
        part = coded(method, "w", number, coverage)
        path = tmp_path / f"{number}"
        stored.append(StoredUpdate(f"client-{number}", path, announce(path, [part], method)))
        dense = np.zeros((24, 40))
        dense[... if coverage is None else np.s_[2:22, 3:33]] = part.coded.decode().reshape(
            part.values.shape
        )
        wanted.append(dense.reshape(-1))
    key = DELTA, "w"
    for budget in (8 * 3 * 7, 8 * 3 * 1000):
        updates = SpoolUpdates({key: MANIFEST.specs["w"]}, stored, budget)
        blocks = [updates.block(key, *at) for at in updates.ranges(key)]
        assert np.array_equal(np.concatenate([values for values, _ in blocks], axis=1), wanted)
