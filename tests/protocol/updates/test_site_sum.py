"""The sum of a site on the wire: the same on both sides, and no more than devices could send."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.message import Limits
from fedloom.protocol.updates.site_body import SiteSumChecker
from fedloom.protocol.updates.site_sum import (
    add_site_sum,
    check_site_header,
    metrics_message,
    metrics_of_site,
    write_site_sum,
)
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, Full, Partial, TensorSpec, exponent, weight_units
from fedloom.strategies.exact.fixed_point import UNIT_BITS
from fedloom.strategies.metrics import metric_sums

LIMITS = Limits(
    max_abs=10.0, max_norm=None, max_weight=50.0, weighting="examples", groups=(DELTA,),
    max_bytes=1 << 20,
)  # fmt: skip
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


def written(path, partial, devices=3):
    header = fleet_pb2.UpdateHeader(client="north", weight=devices * (devices + 1) / 2)
    header.site.devices = devices
    header.site.training.CopyFrom(metrics_message(metric_sums([(6, {"loss": 0.5})])))
    write_site_sum(path, partial, header)
    return header


def checked(header, body, *, chunk=1 << 20, devices=3, narrow=False):
    """Check a header and a body as a server does."""
    total = empty(narrow=narrow)
    planned = check_site_header(header, LIMITS, total, devices)
    checker = SiteSumChecker(header, planned, LIMITS, MANIFEST, total)
    for start in range(0, len(body), chunk):
        checker.feed(body[start : start + chunk])
    checker.finish()


@pytest.mark.parametrize("narrow", [False, True])
def test_a_sum_comes_through_its_file(tmp_path, narrow):
    """Merged with others it is the sum of all devices; equal sums have equal bytes."""
    parts = [device_sum(narrow=narrow, seed=seed) for seed in (1, 2)]
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
        header.site.devices = 3
        write_site_sum(tmp_path / "sum", partial, header)
        checked(header, (tmp_path / "sum").read_bytes(), narrow=narrow)


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


def name_badly(header):
    header.site.training.values["a\nb"].weights.append(1.0)


@pytest.mark.parametrize(
    ("lie", "code", "words"),
    [
        (change("site.exponent", S + 1), Code.MALFORMED, "exponent"),
        (change("site.narrow", True), Code.MALFORMED, "narrow"),
        (change("site.devices", 4), Code.WEIGHT_OUT_OF_RANGE, "1 to 3 devices"),
        (change("site.devices", 0), Code.WEIGHT_OUT_OF_RANGE, "1 to 3 devices"),
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
        (cover_a_slice, Code.MALFORMED, "whole"),
        (add_metrics, Code.MALFORMED, "training"),
        (weigh_in_metrics, Code.MAGNITUDE_TOO_LARGE, "'loss'"),
        (measure_nan, Code.NOT_FINITE, "'loss'"),
        (measure_much, Code.MAGNITUDE_TOO_LARGE, "'loss'"),
        (name_badly, Code.MALFORMED, "printable"),
    ],
)
def test_a_lie_in_the_header_is_refused_by_name(tmp_path, lie, code, words):
    """Before the body is received."""
    header = written(tmp_path / "sum", device_sum())
    lie(header)
    with pytest.raises(Refusal, match=words) as caught:
        check_site_header(header, LIMITS, empty(), 3)
    assert caught.value.code is code


def test_a_weight_below_that_of_the_values_is_refused(tmp_path):
    """A small declared weight cannot let large sums pass."""
    header = written(tmp_path / "sum", device_sum(scale=10.0))
    header.site.tensors[2].units = (1 << UNIT_BITS).to_bytes(11, "little")
    with pytest.raises(Refusal, match="'w'"):
        checked(header, (tmp_path / "sum").read_bytes())


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
    sums = metric_sums([(3, {"loss": 0.1, "top1": 1e-9}), (5, {"loss": 1e30})])
    assert metrics_of_site(metrics_message(sums)) == sums
