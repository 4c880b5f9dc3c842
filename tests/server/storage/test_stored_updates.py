"""Updates read from files: the same values for any block, within a memory budget."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.codecs import codec
from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES
from fedloom.protocol.updates.compression import describe, encode
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.stored_updates import SpoolUpdates, StoredUpdate
from fedloom.server.storage.update_parts import MaskPart, Raw, SlicePart, Span
from fedloom.strategies import DELTA, Full, Mask, Slice, TensorSpec
from fedloom.strategies.robust import ArrayUpdate, ArrayUpdates, Krum, Median
from support.robust import IDS, LAST, RULES, SHAPES, SPECS, ragged

MANIFEST = Manifest(
    dtypes=dict.fromkeys(SHAPES, "F32"),
    specs={name: spec for (_, name), spec in SPECS.items()},
    size_bytes=0,
)


def stored(folder, updates, manifest=MANIFEST):
    """Write updates like clients; return what the server knows of them."""
    found = []
    for client, update in updates.items():
        parts = [
            TensorPart(group, tensor, coverage, values)
            for (group, tensor), (coverage, values) in update.parts.items()
        ]
        path = folder / f"run.1.{client}"
        described, size, checksum = write_body(path, parts, manifest)
        header = fleet_pb2.UpdateHeader(
            weight=update.weight, parts=described, size_bytes=size, crc32c=checksum
        )
        found.append(StoredUpdate(client, path, header))
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ragged updates in files."""
    return stored(tmp_path_factory.mktemp("spool"), ragged())


@pytest.mark.long
@given(data=st.data(), budget_bytes=st.sampled_from([1, 300, 1000, 1 << 20]))
@settings(max_examples=50)
def test_any_block_has_the_sent_values(files, data, budget_bytes):
    """Whole tensors, boxes, masks and scalars, in any order of blocks."""
    expected, found = ArrayUpdates(SPECS, ragged()), SpoolUpdates(SPECS, files[::-1], budget_bytes)
    assert list(found.clients) == list(expected.clients)
    assert found.weights.tolist() == expected.weights.tolist()
    for _ in range(4):
        key = data.draw(st.sampled_from(list(SPECS)))
        start = data.draw(st.integers(0, SPECS[key].size - 1))
        stop = data.draw(st.integers(start + 1, SPECS[key].size))
        values, covered = found.block(key, start, stop)
        wanted, wanted_covered = expected.block(key, start, stop)
        np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(covered, wanted_covered)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
@pytest.mark.parametrize("budget_bytes", [1, 500, 1 << 20])
def test_rules_give_the_same_bits_from_files(rule, files, budget_bytes):
    """With any size of blocks."""
    expected = rule.reduce(ArrayUpdates(SPECS, ragged()), LAST)
    found = rule.reduce(SpoolUpdates(SPECS, files, budget_bytes), LAST)
    for key, spec in SPECS.items():
        assert found.covered(key) == expected.covered(key)
        for got, wanted in zip(
            found.mean_block(key, 0, spec.size), expected.mean_block(key, 0, spec.size), strict=True
        ):
            assert np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), data=st.data())
def test_values_before_a_box(shape, data):
    """Against a count of single values."""
    box = tuple(
        tuple(sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))) for n in shape
    )
    whole = np.zeros(shape, bool)
    whole[tuple(slice(*span) for span in box)] = True
    flat, part = whole.reshape(-1), SlicePart(Raw(0, DTYPES["F32"]), box)
    start = data.draw(st.integers(0, flat.size - 1))
    stop = data.draw(st.integers(start + 1, flat.size))
    before, inside = part.where(Span(-1, shape, start, stop))
    assert np.array_equal(np.broadcast_to(inside, stop - start), flat[start:stop])
    if flat[start:stop].any():
        assert before == np.count_nonzero(flat[:start])


def test_masks_are_counted_from_the_last_position(tmp_path):
    """Reading forward does not count again from the start; reading backward does."""
    bits = np.random.default_rng(0).random(3_000_000) < 0.3
    path = tmp_path / "mask"
    path.write_bytes(b"head" + np.packbits(bits, bitorder="little").tobytes())
    part, total = MaskPart(Raw(0, DTYPES["F32"]), 4), np.concatenate([[0], np.cumsum(bits)])
    with path.open("rb") as file:
        for start, stop in [(0, 9), (9, 100_000), (9, 50), (2_000_001, 2_900_000), (17, 18)]:
            before, found = part.where(Span(file.fileno(), (bits.size,), start, stop))
            assert before == total[start]
            assert np.array_equal(found, bits[start:stop])
            assert set(part.known) == {0, start, stop}


def test_a_missing_or_short_file_is_an_integrity_error(tmp_path):
    updates = stored(tmp_path, ragged())
    found = SpoolUpdates(SPECS, updates)
    updates[2].path.write_bytes(updates[2].path.read_bytes()[:-8])
    last = max(updates[2].header.parts, key=lambda part: int(part.values))
    with pytest.raises(IntegrityError, match="bytes at"):
        found.block((DELTA, last.tensor), 0, SPECS[DELTA, last.tensor].size)
    updates[2].path.unlink()
    with pytest.raises(IntegrityError, match=r"accepted update run\.1\.c2 is missing"):
        SpoolUpdates(SPECS, updates)


@pytest.mark.parametrize("dtype", ["F16", "F64", "I64"])
def test_other_dtypes_are_converted(tmp_path, dtype):
    """Half, double and integers are read as float64."""
    spec = TensorSpec(shape=(4,), dtype=DTYPES[dtype])
    manifest = Manifest(dtypes={"x": dtype}, specs={"x": spec}, size_bytes=0)
    rows = [[1, -2, 3, 4], [5, 6, 7, -8]]
    updates = {
        f"c{n}": ArrayUpdate({(DELTA, "x"): (Full(), np.array(row, DTYPES[dtype]))})
        for n, row in enumerate(rows)
    }
    found = SpoolUpdates({(DELTA, "x"): spec}, stored(tmp_path, updates, manifest))
    values, covered = found.block((DELTA, "x"), 0, 4)
    assert values.dtype == np.float64
    assert values.tolist() == rows
    assert covered is True


@pytest.mark.long
@pytest.mark.parametrize("rule", [Median(), Krum(num_byzantine=1)], ids=["median", "krum"])
@pytest.mark.parametrize("coverage", ["full", "mask", "slice"])
def test_memory_does_not_grow_with_clients(tmp_path, rule, coverage):
    """With four times the updates, 13 MB in total, the peak stays."""
    spec = {(DELTA, "x"): TensorSpec(shape=(100, 1000), dtype=np.dtype(np.float32))}
    manifest = Manifest(dtypes={"x": "F32"}, specs={"x": spec[DELTA, "x"]}, size_bytes=0)
    rng = np.random.default_rng(0)
    kind = {
        "full": Full(),
        "mask": Mask(np.arange(100_000) % 3 > 0),
        "slice": Slice(((10, 90), (0, 999))),
    }[coverage]
    one = rng.normal(size=kind.count((100, 1000))).astype(np.float32)
    update = ArrayUpdate({(DELTA, "x"): (kind, one)})
    files = stored(tmp_path, {f"c{n:02}": update for n in range(8)}, manifest)
    more = [dataclasses.replace(files[n % 8], client=f"c{n:02}") for n in range(32)]
    peaks = []
    for some in (files, more):
        tracemalloc.start()
        updates = SpoolUpdates(spec, some, budget_bytes=1 << 19)
        means = rule.reduce(updates, {})
        for start in range(0, 100_000, 32_768):
            means.mean_block((DELTA, "x"), start, min(start + 32_768, 100_000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (3 << 20)
    assert peaks[1] < 8 << 20


@pytest.mark.parametrize(
    "table",
    [
        ("fp16", {}),
        ("int8", {}),
        ("int4", {}),
        ("top_k", {"fraction": 0.1}),
        ("random_k", {"fraction": 0.2}),
        ("low_rank", {"rank": 2}),
        ("lossless", {}),
    ],
    ids=lambda table: table[0],
)
@pytest.mark.parametrize("budget_bytes", [400, 1 << 20])
def test_encoded_updates_are_decoded(tmp_path, table, budget_bytes):
    """Whole tensors and boxes, in small blocks or at once."""
    method = codec(*table)
    spec = TensorSpec(shape=(60, 50), dtype=np.dtype(np.float32))
    manifest = Manifest(dtypes={"x": "F32"}, specs={"x": spec}, size_bytes=0)
    rng, found, rows = np.random.default_rng(0), [], []
    for number in range(3):
        box = (slice(0, 60), slice(0, 50)) if number else (slice(3, 57), slice(10, 41))
        values = rng.normal(size=(60, 50)).astype(np.float32)[box]
        coded = encode(method, values.reshape(-1), values.shape, task_seed=number, key=(DELTA, "x"))
        coverage = Full() if number else Slice(((3, 57), (10, 41)))
        part = TensorPart(DELTA, "x", coverage, values, coded=coded)
        path = tmp_path / f"c{number}"
        described, size, checksum = write_body(path, [part], manifest)
        header = fleet_pb2.UpdateHeader(
            weight=1, parts=described, size_bytes=size, crc32c=checksum,
            compression=describe(method),
        )  # fmt: skip
        found.append(StoredUpdate(f"c{number}", path, header))
        row = np.zeros((60, 50))
        row[box] = coded.decode().reshape(values.shape)
        rows.append(row.reshape(-1))
    updates = SpoolUpdates({(DELTA, "x"): spec}, found, budget_bytes)
    for _ in range(2):
        got = [updates.block((DELTA, "x"), *span)[0] for span in updates.ranges((DELTA, "x"))]
        np.testing.assert_array_equal(np.concatenate(got, axis=1), rows)
