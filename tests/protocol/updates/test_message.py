"""Updates byte by byte: results do not depend on chunks, damage is detected, sums are exact."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES
from fedloom.protocol.transport import methods
from fedloom.protocol.updates.addends import add_update
from fedloom.protocol.updates.body import BodyChecker
from fedloom.protocol.updates.header import check_header, header_limit_bytes
from fedloom.protocol.updates.message import Limits, TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, Adapters, Full, Mask, Partial, Slice, exponent, weight_units
from fedloom.strategies.exact.partial import SCALAR, TensorSpec

GROUPS = (DELTA, "control")
LIMITS = Limits(
    max_abs=100.0,
    max_norm=None,
    max_weight=1000.0,
    weighting="client",
    groups=GROUPS,
    max_bytes=1 << 20,
)
S = exponent(LIMITS.max_abs, 100 * LIMITS.max_weight)
DAMAGE = {
    Code.MALFORMED,
    Code.UNKNOWN_TENSOR,
    Code.DUPLICATE_TENSOR,
    Code.WRONG_SHAPE,
    Code.WRONG_DTYPE,
    Code.NOT_FINITE,
    Code.MAGNITUDE_TOO_LARGE,
    Code.BAD_CHECKSUM,
}


def empty_partial():
    """The sum of no updates."""
    return Partial({(group, n): spec for group in GROUPS for n, spec in MANIFEST.specs.items()}, S)


def manifest_of(tensors):
    """A manifest of tensors given as name: (container dtype, shape)."""
    return Manifest(
        dtypes={name: dtype for name, (dtype, _) in tensors.items()},
        specs={
            name: TensorSpec(
                shape=shape, dtype=np.dtype(np.float32) if dtype == "BF16" else DTYPES[dtype]
            )
            for name, (dtype, shape) in tensors.items()
        },
        size_bytes=0,
    )


MANIFEST = manifest_of(
    {
        "w": ("F32", (3, 5)),
        "b": ("BF16", (11,)),
        "d": ("F64", (2, 2)),
        "n": ("I64", ()),
        "none": ("F32", (0, 4)),
    }
)


@st.composite
def coverages(draw, shape):
    """Any coverage of a shape."""
    match draw(st.sampled_from(["full", "slice", "mask"])):
        case "full":
            return Full()
        case "slice":
            bounds = (sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape)
            return Slice(tuple((a, b) for a, b in bounds))
        case "mask":
            size = math.prod(shape)
            bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            return Mask(np.array(bits, np.bool_))


@st.composite
def parts(draw):
    """Parts of an update: any subset of the tensors of any subset of the groups."""
    keys = [(group, name) for group in GROUPS for name in MANIFEST.specs]
    chosen = draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = []
    for group, name in chosen:
        shape = MANIFEST.specs[name].shape
        coverage = draw(coverages(shape))
        values = rng.uniform(-100, 100, coverage.count(shape))
        if isinstance(coverage, Full):
            values = values.reshape(shape)
        elif isinstance(coverage, Slice):
            values = values.reshape(coverage.shape)
        made.append(TensorPart(group, name, coverage, values.astype(wire_dtype(name))))
    return made


def wire_dtype(name):
    return DTYPES[MANIFEST.wire_dtype(name)]


def announce(path, made, weight=1.0):
    """Write a body and the header that announces it."""
    described, size, checksum = write_body(path, made, MANIFEST)
    return fleet_pb2.UpdateHeader(weight=weight, parts=described, size_bytes=size, crc32c=checksum)


def checker(header, limits=LIMITS):
    return BodyChecker(header, check_header(header, limits, MANIFEST), limits, MANIFEST)


def verdict(header, body, cuts=(), limits=LIMITS):
    """The refusal code of a body in these chunks, or its statistics."""
    edges = [0, *sorted(cuts), len(body)]
    checking = checker(header, limits)
    try:
        for start, stop in pairwise(edges):
            checking.feed(body[start:stop])
        return checking.finish()
    except Refusal as refusal:
        return refusal.code


def sealed(header, body):
    """The header with the length and checksum of other bytes."""
    changed = fleet_pb2.UpdateHeader()
    changed.CopyFrom(header)
    changed.size_bytes, changed.crc32c = len(body), crc32c(body)
    return changed


@pytest.fixture
def path(tmp_path):
    """The path of a body."""
    return tmp_path / "body"


CALM = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.long
@CALM
@given(parts(), st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=3))
def test_a_written_update_folds_to_the_same_sum(path, made, weights):
    """As its arrays do directly."""
    through, direct = (empty_partial() for _ in range(2))
    for weight in weights:
        header = announce(path, made, weight)
        stats = verdict(header, path.read_bytes())
        flat = np.concatenate([p.values.reshape(-1).astype(np.float64) for p in made])
        assert stats.max_abs == (np.abs(flat).max() if flat.size else 0)
        assert stats.norm == pytest.approx(np.linalg.norm(flat), rel=1e-6)
        add_update(through, path, header)
        for part in made:
            key = (part.group, part.tensor)
            direct.add_array(key, part.coverage, weight_units(weight), part.values)
        direct.count += 1
    assert through == direct


@pytest.mark.long
@CALM
@given(parts(), st.data())
def test_any_chunks_give_the_same_result(path, made, data):
    """Valid or not, whole, in pieces or byte by byte."""
    header = announce(path, made)
    body = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        header = sealed(header, bytes(body))
    body = bytes(body)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=6))
    limits = data.draw(st.sampled_from([LIMITS, bounded(1e-3), bounded(200.0)]))
    whole = verdict(header, body, limits=limits)
    singly = verdict(header, body, range(1, len(body)), limits)
    pieces = verdict(header, body, cuts, limits)
    if isinstance(whole, Code):
        assert singly == pieces == whole
    else:
        assert singly.norm == pytest.approx(whole.norm, rel=1e-6)
        assert pieces.norm == pytest.approx(whole.norm, rel=1e-6)
        assert singly.max_abs == pieces.max_abs == whole.max_abs


def bounded(norm):
    """Limits with a bound on the norm."""
    return replace(LIMITS, max_norm=norm)


EXAMPLE = [
    TensorPart(DELTA, "w", Full(), np.linspace(-9, 9, 15, dtype=np.float32).reshape(3, 5)),
    TensorPart(DELTA, "b", Mask(np.arange(11) % 3 == 0), np.arange(4, dtype=np.float32)),
    TensorPart("control", "d", Slice(((0, 2), (1, 2))), np.array([[0.5], [-0.5]])),
]


def test_damage_of_any_byte_is_detected(path):
    """Every other value of every byte of a body is refused, at least by its checksum."""
    header = announce(path, EXAMPLE)
    body = path.read_bytes()
    assert not isinstance(verdict(header, body), Code)
    for position in range(len(body)):
        for flip in (1, 0x20, 0x80, 0xFF):
            damaged = bytearray(body)
            damaged[position] ^= flip
            assert verdict(header, bytes(damaged)) in DAMAGE


@pytest.mark.long
def test_damage_under_a_fitting_checksum_is_a_refusal_or_other_values(path):
    """A consistent forgery gets a typed refusal, or is another valid update."""
    header = announce(path, EXAMPLE)
    body = path.read_bytes()
    data_start = 8 + int.from_bytes(body[:8], "little")
    for position in range(len(body)):
        for flip in (1, 0x20, 0x80, 0xFF):
            damaged = bytearray(body)
            damaged[position] ^= flip
            answer = verdict(sealed(header, bytes(damaged)), bytes(damaged))
            if isinstance(answer, Code):
                assert answer in DAMAGE - {Code.BAD_CHECKSUM}
                continue
            assert position >= 8
            path.write_bytes(damaged)
            total = empty_partial()
            add_update(total, path, header)  # accepted bodies can be folded
            assert position >= data_start or total == folded(header, body, path)


def folded(header, body, path):
    """The sum of one body."""
    path.write_bytes(body)
    total = empty_partial()
    add_update(total, path, header)
    return total


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_every_cut_is_truncated_and_every_growth_overlong(path, chunk):
    """A missing byte is detected at the end, an extra byte on arrival."""
    header = announce(path, EXAMPLE)
    body = path.read_bytes()
    for size in range(len(body)):
        assert verdict(header, body[:size], range(0, size, chunk)) is Code.TRUNCATED
    grown = body + b"\0"
    assert verdict(header, grown, range(0, len(grown), chunk)) is Code.OVERLONG


@CALM
@given(st.binary(max_size=120), st.booleans())
def test_arbitrary_bodies_are_refused_by_type(path, body, with_prefix):
    """The checker raises refusals only, and accepts no invalid body."""
    header = announce(path, EXAMPLE)
    if with_prefix:
        body = max(0, len(body) - 8).to_bytes(8, "little") + body[8:]
    if body:
        answer = verdict(sealed(header, body), body)
        assert isinstance(answer, Code)


NUMBERS = st.integers(0, 12) | st.integers(0, 2**64 - 1)
NAMES = st.sampled_from([DELTA, "w", "b", "none", ""]) | st.text(max_size=3)
PARTS = st.builds(fleet_pb2.Part, group=NAMES, tensor=NAMES, values=NAMES) | st.builds(
    fleet_pb2.Part,
    group=st.just(DELTA),
    tensor=NAMES,
    slice=st.builds(
        fleet_pb2.Slice,
        ranges=st.lists(st.builds(fleet_pb2.Range, start=NUMBERS, stop=NUMBERS), max_size=3),
    ),
    mask=st.none() | st.builds(fleet_pb2.Mask, bits=NAMES),
)
METRICS = st.builds(
    fleet_pb2.Metrics,
    num_examples=NUMBERS,
    values=st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
)
HEADERS = st.builds(
    fleet_pb2.UpdateHeader,
    size_bytes=NUMBERS,
    weight=st.just(1.0) | st.floats(),
    parts=st.lists(PARTS, max_size=3),
    training=METRICS,
    evaluation=METRICS,
)


@pytest.mark.long
@given(HEADERS | st.binary(max_size=200))
@settings(max_examples=300)
def test_arbitrary_headers_are_refused_by_type(raw):
    """For any protobuf content the result is a plan or a refusal that can be sent."""
    try:
        header = methods.parse(fleet_pb2.UpdateHeader, raw) if isinstance(raw, bytes) else raw
        planned = check_header(header, LIMITS, MANIFEST)
    except Refusal as refusal:
        str(refusal).encode()
    else:
        assert all(part.tensor in MANIFEST.specs for part in planned)


def test_half_a_body_is_checked_before_the_rest_arrives(path):
    """An invalid value is refused in its chunk, not at the end."""
    made = [TensorPart(DELTA, "w", Full(), np.full((3, 5), np.nan, np.float32))]
    header = announce(path, made)
    body = path.read_bytes()
    checking = checker(header)
    start = 8 + int.from_bytes(body[:8], "little")
    checking.feed(body[: start + 3])
    with pytest.raises(Refusal) as caught:
        checking.feed(body[start + 3 : start + 4])
    assert caught.value.code is Code.NOT_FINITE


def test_an_update_without_parts_has_no_body(path):
    """No length and no checksum."""
    assert write_body(path, [], MANIFEST) == ([], 0, 0)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 100.0, -100.0])
def test_values_up_to_the_bound_are_accepted(path, value):
    """Zero of either sign, the smallest number and the bound."""
    made = [TensorPart(DELTA, "w", Full(), np.full((3, 5), value, np.float32))]
    header = announce(path, made)
    assert verdict(header, path.read_bytes()).max_abs == abs(np.float32(value))


def test_norm_at_its_bound_is_accepted_and_beyond_it_refused(path):
    """It is computed in float64."""
    made = [TensorPart(DELTA, "w", Full(), np.full((3, 5), 2.0, np.float32))]
    header = announce(path, made)
    body = path.read_bytes()
    norm = math.sqrt(60.0)
    assert verdict(header, body, limits=bounded(norm)).norm == norm
    assert verdict(header, body, limits=bounded(math.nextafter(norm, 0))) is Code.NORM_TOO_LARGE


def test_squares_past_float32_do_not_overflow(path):
    """A run with a huge bound still gets a finite norm."""
    vast = replace(LIMITS, max_abs=1e38)
    made = [TensorPart(DELTA, "w", Full(), np.full((3, 5), 1e37, np.float32))]
    header = announce(path, made)
    stats = verdict(header, path.read_bytes(), limits=vast)
    assert stats.norm == pytest.approx(1e37 * math.sqrt(15), rel=1e-6)


def test_headers_of_honest_updates_stay_within_the_limit(path):
    """With every tensor masked, and long names."""
    names = {f"layer.{n}." + "x" * 200: ("F32", (2,)) for n in range(200)}
    manifest = manifest_of(names)
    bits = np.ones(2, np.bool_)
    made = [TensorPart(DELTA, n, Mask(bits), np.zeros(2, np.float32)) for n in names]
    described, size, checksum = write_body(path, made, manifest)
    metrics = fleet_pb2.Metrics(values={f"{n}" * 40: 1.0 for n in range(256)})
    header = fleet_pb2.UpdateHeader(
        weight=1.0, parts=described, size_bytes=size, crc32c=checksum,
        training=metrics, evaluation=metrics,
    )  # fmt: skip
    assert header.ByteSize() <= header_limit_bytes(manifest, 1)
    assert size <= manifest.full_update_bytes()
    checking = BodyChecker(header, check_header(header, LIMITS, manifest), LIMITS, manifest)
    checking.feed(path.read_bytes())
    checking.finish()


NUMBERS = replace(LIMITS, scalars=("curvature", "steps"))


@pytest.mark.parametrize(
    ("scalars", "code"),
    [
        ({"curvature": 1.0, "steps": 3.0}, None),
        ({"steps": 3.0}, Code.MALFORMED),
        ({}, Code.MALFORMED),
        ({"curvature": 1.0, "steps": 3.0, "more": 1.0}, Code.MALFORMED),
        ({"curvature": np.nan, "steps": 3.0}, Code.NOT_FINITE),
        ({"curvature": 1.0, "steps": -np.inf}, Code.NOT_FINITE),
        ({"curvature": 1.0, "steps": 100.5}, Code.MAGNITUDE_TOO_LARGE),
    ],
)
def test_scalars_must_match_those_of_the_strategy(path, scalars, code):
    """Exactly those, finite and within the bound of values; they are folded with the weight."""
    header = announce(path, [TensorPart(DELTA, "w", Full(), np.ones((3, 5), np.float32))], 2.0)
    for name, value in scalars.items():
        header.scalars[name] = value
    if code is not None:
        with pytest.raises(Refusal) as caught:
            check_header(header, NUMBERS, MANIFEST)
        assert caught.value.code is code
        return
    assert check_header(header, NUMBERS, MANIFEST)
    specs = {(SCALAR, n): TensorSpec(shape=(), dtype=np.dtype(np.float64)) for n in scalars}
    total = Partial({(DELTA, "w"): MANIFEST.specs["w"], **specs}, S)
    add_update(total, path, header)
    for name, value in scalars.items():
        assert total.mean_block((SCALAR, name), 0, 1)[0] == [value]
    assert total.count == 1


def test_unexpected_scalars_are_refused(path):
    """Also in an update without tensors."""
    header = announce(path, [TensorPart(DELTA, "w", Full(), np.ones((3, 5), np.float32))])
    header.scalars["steps"] = 1.0
    with pytest.raises(Refusal, match=r"that the strategy averages \(none\)"):
        check_header(header, LIMITS, MANIFEST)
    assert check_header(fleet_pb2.UpdateHeader(weight=1.0), NUMBERS, MANIFEST) == []


@pytest.mark.parametrize("wrong", GROUPS)
def test_the_ranks_of_every_group_are_checked(path, wrong):
    """Factors of one rank are averaged, in each group of the client rule."""
    manifest = manifest_of({"x.lora_a": ("F32", (4, 5)), "x.lora_b": ("F32", (6, 4))})
    whole, part = Full(), Slice(((0, 6), (0, 2)))

    def checked(covered):
        made = [
            TensorPart(g, "x.lora_b", c, np.ones((6, 4 if c is whole else 2), np.float32))
            for g, c in covered.items()
        ]
        described, size, checksum = write_body(path, made, manifest)
        header = fleet_pb2.UpdateHeader(
            weight=1.0, parts=described, size_bytes=size, crc32c=checksum
        )
        limits = replace(LIMITS, adapters=Adapters(aggregate="freeze_a"))
        return check_header(header, limits, manifest)

    assert len(checked(dict.fromkeys(GROUPS, whole))) == 2
    with pytest.raises(Refusal, match="Expected rank 4 in x") as caught:
        checked(dict.fromkeys(GROUPS, whole) | {wrong: part})
    assert caught.value.code is Code.WRONG_SHAPE
