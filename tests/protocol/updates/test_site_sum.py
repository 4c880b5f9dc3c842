"""The sum of a site on the wire: the same on both sides, and no more than devices could send."""

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_body import SiteSumChecker
from fedloom.protocol.updates.site_header import check_site_header
from fedloom.protocol.updates.site_sum import (
    add_site_sum,
    metrics_message,
    metrics_of_site,
    write_site_sum,
)
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import (
    DELTA,
    Full,
    MetricsSettings,
    Partial,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.exact.coverage import Mask, Slice
from fedloom.strategies.exact.fixed_point import UNIT_BITS
from fedloom.strategies.summed_metrics import metric_sums

LIMITS = Limits(
    max_abs=10.0, max_norm=None, max_weight=50.0, weighting="examples", groups=(DELTA,),
    max_bytes=1 << 20,
)  # fmt: skip
METRICS = MetricsSettings(quantiles=[0, 1], edges={"loss": [0.0, 1.0]})
SPECS = {
    (DELTA, name): TensorSpec(shape=shape, dtype=np.dtype(np.float32))
    for name, shape in {"w": (40, 17), "b": (3,), "frozen": (5,), "none": (0, 2)}.items()
}
MANIFEST = Manifest(
    dtypes={name: "F32" for _, name in SPECS},
    specs={name: spec for (_, name), spec in SPECS.items()},
    size_bytes=0,
)
S = exponent(LIMITS.max_abs, 100 * LIMITS.max_weight)


def empty(*, narrow=False):
    return Partial(SPECS, S, narrow=narrow)


def device_sum(devices=3, *, narrow=False, scale=1.0, seed=0):
    """The sum of some devices that each send two of the tensors."""
    partial, rng = empty(narrow=narrow), np.random.default_rng(seed)
    for device in range(devices):
        for name in ("w", "b", "none"):
            values = rng.uniform(-scale, scale, SPECS[DELTA, name].shape).astype(np.float32)
            partial.add_array((DELTA, name), Full(), weight_units(device + 1), values)
        partial.count += 1
    return partial


def parts_sum(devices=3, *, narrow=False, scale=1.0, seed=0):
    """The sum of some devices that each send parts of tensors, and the first one all of them."""
    partial, rng = empty(narrow=narrow), np.random.default_rng(seed)
    for device in range(devices):
        bits = rng.random(40 * 17) < 0.5
        for name, covered in (
            ("w", Mask(bits) if device else Full()),
            ("b", Slice(((device % 3, 3),))),
        ):
            count = covered.count(SPECS[DELTA, name].shape)
            values = rng.uniform(-scale, scale, count).astype(np.float32)
            partial.add_array((DELTA, name), covered, weight_units(device + 1), values)
        partial.count += 1
    return partial


def written(path, partial, devices=3):
    header = fleet_pb2.UpdateHeader(client="north", weight=devices * (devices + 1) / 2)
    header.site.devices, header.site.updates = devices, partial.count
    header.site.training.CopyFrom(metrics_message(metric_sums([(6, {"loss": 0.5})], METRICS)))
    write_site_sum(path, partial, header)
    return header


def checked(header, body, *, chunk=1 << 20, devices=3, narrow=False):
    """Check a header and a body as a server does."""
    total = empty(narrow=narrow)
    planned = check_site_header(header, LIMITS, total, devices, METRICS)
    checker = SiteSumChecker(header, planned, LIMITS, MANIFEST, total)
    for start in range(0, len(body), chunk):
        checker.feed(body[start : start + chunk])
    checker.finish()


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("make", [device_sum, parts_sum])
def test_a_sum_comes_through_its_file(tmp_path, make, narrow):
    """Merged with others it is the sum of all devices; equal sums have equal bytes."""
    parts = [make(narrow=narrow, seed=seed) for seed in (1, 2)]
    total, whole = empty(narrow=narrow), empty(narrow=narrow)
    for number, partial in enumerate(parts):
        header = written(tmp_path / f"{number}", partial)
        checked(header, (tmp_path / f"{number}").read_bytes(), narrow=narrow)
        add_site_sum(total, tmp_path / f"{number}", header)
        whole.merge(partial)
    assert total == whole
    again = written(tmp_path / "again", parts[0])
    assert again == written(tmp_path / "0", parts[0])
    assert (tmp_path / "again").read_bytes() == (tmp_path / "0").read_bytes()


def test_a_sum_is_smaller_than_two_words(tmp_path):
    """Less than eight bytes a coordinate, whatever the number of devices."""
    header = written(tmp_path / "sum", device_sum(50), 50)
    assert header.size_bytes < 8 * sum(spec.size for spec in SPECS.values()) + 400


@settings(max_examples=20, deadline=None)
@given(chunk=st.integers(1, 3000))
def test_chunks_of_any_size_are_checked_alike(tmp_path_factory, chunk):
    """The last value is checked too."""
    path = tmp_path_factory.mktemp("sum") / "body"
    checked(written(path, parts_sum()), path.read_bytes(), chunk=chunk)
    checked(written(path, device_sum()), path.read_bytes(), chunk=chunk)
    partial = device_sum()
    partial.add_array((DELTA, "b"), Full(), weight_units(1), np.array([0, 0, 90], np.float32))
    with pytest.raises(Refusal, match="'b'") as caught:
        checked(written(path, partial), path.read_bytes(), chunk=chunk)
    assert caught.value.code is Code.MAGNITUDE_TOO_LARGE


def test_the_largest_sums_of_devices_pass(tmp_path):
    """At the bound, and not above it."""
    for narrow in (False, True):
        partial = empty(narrow=narrow)
        for sign in (1, 1, 1):
            value = np.full(3, sign * LIMITS.max_abs, np.float32)
            partial.add_array((DELTA, "b"), Full(), weight_units(50.0), value)
        header = fleet_pb2.UpdateHeader(weight=150.0)
        header.site.devices = header.site.updates = 3
        write_site_sum(tmp_path / "sum", partial, header)
        checked(header, (tmp_path / "sum").read_bytes(), narrow=narrow)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_largest_sums_of_parts_pass(tmp_path, narrow):
    """By coordinate: a value at the bound of its own weight, and none above it."""
    for value, passes in ((10.0, True), (np.nextafter(np.float32(10.0), 11), False)):
        partial = empty(narrow=narrow)
        partial.add_array((DELTA, "b"), Slice(((0, 1),)), weight_units(50.0), np.array([-9.0]))
        partial.add_array((DELTA, "b"), Slice(((2, 3),)), weight_units(7.0), np.array([value]))
        partial.count = 2
        header = fleet_pb2.UpdateHeader(weight=57.0)
        header.site.devices = header.site.updates = 2
        write_site_sum(tmp_path / "sum", partial, header)
        body = (tmp_path / "sum").read_bytes()
        if passes:
            checked(header, body, narrow=narrow)
        else:
            with pytest.raises(Refusal, match="'b'"):
                checked(header, body, narrow=narrow)


def change(path, value):
    """A change of a field of the header, by its path."""

    def do(header):
        *above, last = path.split(".")
        for name in above:
            header = header[int(name)] if name.isdigit() else getattr(header, name)
        setattr(header, last, value)

    return do


def drop_description(header):
    del header.site.tensors[0]


def name_twice(header):
    header.parts[1].tensor = header.parts[0].tensor


def share_values(header):
    header.parts[1].values = header.parts[0].values


def cover_a_slice(header):
    header.parts[0].slice.SetInParent()


def add_metrics(header):
    header.training.num_examples = 3


def weigh_in_metrics(header):
    header.site.training.values["loss"].weights[:] = [7.0]


def measure_nan(header):
    header.site.training.values["loss"].products[:] = [float("nan")]


def measure_much(header):
    header.site.training.values["loss"].products[:] = [1e120]


def measured(field, value):
    """A change of an extreme of a metric."""
    return lambda header: setattr(header.site.training.values["loss"], field, value)


def leave_out_the_least(header):
    header.site.training.values["loss"].ClearField("least")


def count(counts):
    """A change of the counts of a metric."""

    def do(header):
        header.site.training.values["loss"].counts[:] = counts

    return do


def name_badly(header):
    header.site.training.values["a\nb"].weights.append(1.0)


@pytest.mark.parametrize(
    ("lie", "code", "words"),
    [
        (change("site.exponent", S + 1), Code.MALFORMED, "exponent"),
        (change("site.narrow", True), Code.MALFORMED, "narrow"),
        (change("site.devices", 4), Code.WEIGHT_OUT_OF_RANGE, "1 to 3 devices"),
        (change("site.devices", 0), Code.WEIGHT_OUT_OF_RANGE, "1 to 3 devices"),
        (change("site.updates", 4), Code.MALFORMED, "got 4"),
        (change("site.updates", 0), Code.MALFORMED, "got 0"),
        (change("weight", 151.0), Code.WEIGHT_OUT_OF_RANGE, "weight"),
        (change("weight", float("nan")), Code.WEIGHT_OUT_OF_RANGE, "weight"),
        (change("parts.0.tensor", "v"), Code.UNKNOWN_TENSOR, "'v'"),
        (change("parts.0.group", "control"), Code.UNKNOWN_TENSOR, "'control'"),
        (change("site.tensors.0.units", b""), Code.WEIGHT_OUT_OF_RANGE, "'b'"),
        (
            change("site.tensors.0.units", ((150 << UNIT_BITS) + 1).to_bytes(12, "little")),
            Code.WEIGHT_OUT_OF_RANGE,
            "'b'",
        ),
        (change("site.tensors.0.bits", 1000), Code.MAGNITUDE_TOO_LARGE, "'b'|b:"),
        (change("site.tensors.0.low", -5000), Code.MAGNITUDE_TOO_LARGE, "'b'|b:"),
        (drop_description, Code.MALFORMED, "description"),
        (name_twice, Code.DUPLICATE_TENSOR, "twice"),
        (share_values, Code.DUPLICATE_TENSOR, "twice"),
        (cover_a_slice, Code.MALFORMED, "whole"),
        (add_metrics, Code.MALFORMED, "training"),
        (weigh_in_metrics, Code.MAGNITUDE_TOO_LARGE, "'loss'"),
        (measure_nan, Code.NOT_FINITE, "'loss'"),
        (measured("least", 0.6), Code.MAGNITUDE_TOO_LARGE, "mean 0.5"),
        (measured("most", 0.4), Code.MAGNITUDE_TOO_LARGE, "mean 0.5"),
        (measured("most", 2e100), Code.MAGNITUDE_TOO_LARGE, "mean 0.5"),
        (measured("most", float("nan")), Code.MAGNITUDE_TOO_LARGE, "nan"),
        (measured("least", float("nan")), Code.MAGNITUDE_TOO_LARGE, "nan"),
        (leave_out_the_least, Code.MAGNITUDE_TOO_LARGE, "least"),
        (count([0, 4, 0]), Code.MALFORMED, "1 to 3 devices"),
        (count([0, 0, 0]), Code.MALFORMED, "1 to 3 devices"),
        (count([0, 1]), Code.MALFORMED, "3 counts"),
        (count([]), Code.MALFORMED, "3 counts"),
        (measure_much, Code.MAGNITUDE_TOO_LARGE, "'loss'"),
        (name_badly, Code.MALFORMED, "printable"),
    ],
)
def test_a_lie_in_the_header_is_refused_by_name(tmp_path, lie, code, words):
    """Before the body is received."""
    header = written(tmp_path / "sum", device_sum())
    lie(header)
    with pytest.raises(Refusal, match=words) as caught:
        check_site_header(header, LIMITS, empty(), 3, METRICS)
    assert caught.value.code is code


def test_a_weight_below_that_of_the_values_is_refused(tmp_path):
    """A small declared weight cannot let large sums pass."""
    header = written(tmp_path / "sum", device_sum(scale=10.0))
    header.site.tensors[2].units = (1 << UNIT_BITS).to_bytes(11, "little")
    with pytest.raises(Refusal, match="'w'"):
        checked(header, (tmp_path / "sum").read_bytes())


def test_what_a_run_does_not_ask_for_is_refused(tmp_path):
    """Extremes of a single device, and counts."""
    header = written(tmp_path / "sum", device_sum())
    for words, asked in (
        ("Expected 0 counts of 'loss'", MetricsSettings(quantiles=[0])),
        ("if the run asks", MetricsSettings(edges=METRICS.edges)),
    ):
        with pytest.raises(Refusal, match=words):
            check_site_header(header, LIMITS, empty(), 3, asked)


def test_a_weight_below_that_of_any_device_lets_no_sum_pass(tmp_path):
    """The mean of a tensor that only this site covers is within max_abs."""
    partial = empty()
    partial.add_array((DELTA, "b"), Full(), weight_units(1), np.full(3, 1e-9, np.float32))
    partial.count = 1
    header = written(tmp_path / "sum", partial, 1)
    header.site.tensors[0].units = b"\x01"
    with pytest.raises(Refusal, match="'b'"):
        checked(header, (tmp_path / "sum").read_bytes())


@pytest.mark.parametrize(
    ("path", "value"), [("bits", 12), ("bits", 1), ("bits", 0), ("low", -1), ("low", 9)]
)
def test_weights_in_other_bits_than_those_of_devices_are_refused(tmp_path, path, value):
    """Before the body is received: more bits or finer steps would take memory."""
    header = written(tmp_path / "sum", parts_sum())
    setattr(header.site.tensors[1].weights, path, value)
    with pytest.raises(Refusal, match="weights of 'w'") as caught:
        check_site_header(header, LIMITS, empty(), 3, METRICS)
    assert caught.value.code is Code.WEIGHT_OUT_OF_RANGE


def lying_weights(path, weights):
    """A sum of three devices with these weights of the three coordinates of b, of values of 1."""
    partial = empty()
    for place, weight in enumerate(weights):
        sums = partial if weight > 0 else empty()
        at = Slice(((place, place + 1),))
        for _ in range(3):  # one device may not have so much
            sums.add_array((DELTA, "b"), at, weight_units(abs(weight) / 3), np.ones(1, np.float32))
        if weight < 0:
            entry, other = partial._entries[DELTA, "b"], sums._entries[DELTA, "b"]
            entry.words().word(0)[:] += other.words().word(0)
            entry.weight_words().word(0)[:] -= other.weight_words().word(0)
    partial.count = 3
    return written(path, partial)


@pytest.mark.parametrize("lie", [151.0, -3.0])
def test_a_weight_that_devices_cannot_have_is_refused(tmp_path, lie):
    """At one coordinate, above theirs or below zero."""
    body = tmp_path / "sum"
    checked(lying_weights(body, [150.0, 3.0, 3.0]), body.read_bytes())
    header = lying_weights(body, [3.0, 3.0, lie])
    with pytest.raises(Refusal, match="weights of 'b'") as caught:
        checked(header, body.read_bytes())
    assert caught.value.code is Code.WEIGHT_OUT_OF_RANGE


def test_sums_before_their_weights_are_refused(tmp_path):
    """Their bounds are not known yet."""
    path = tmp_path / "sum"
    header = written(path, parts_sum())
    arrays = {name: np.array(array) for name, array in read_params(path).items()}
    write_file(path, dict(reversed(arrays.items())))
    body = path.read_bytes()
    header.size_bytes, header.crc32c = len(body), crc32c(body)
    with pytest.raises(Refusal, match="before its sums") as caught:
        checked(header, body)
    assert caught.value.code is Code.MALFORMED


def test_damaged_bytes_are_refused(tmp_path):
    """By checksum, as in other bodies."""
    header = written(tmp_path / "sum", device_sum())
    body = bytearray((tmp_path / "sum").read_bytes())
    body[-1] ^= 1
    with pytest.raises(Refusal) as caught:
        checked(header, bytes(body))
    assert caught.value.code in (Code.BAD_CHECKSUM, Code.MAGNITUDE_TOO_LARGE)


def test_metrics_come_through_their_message():
    """Exactly."""
    sums = metric_sums([(3, {"loss": 0.1, "top1": 1e-9}), (5, {"loss": 1e30})], METRICS)
    assert metrics_of_site(metrics_message(sums)) == sums
